"""Imported by a notebook's fork server alone: torch at once, and what training needs when nobody asks for a rank."""

import gc
import importlib
import os
import signal
import sys

import cloudpickle  # noqa: F401
import torch  # noqa: F401

from tp_teach.launch.server import REST

QUIET = 1.0
"""Seconds after which the server imports the rest. A launch that comes before them does not wait for it."""


def import_rest(*signal_and_frame: object) -> None:
    for name in REST:
        importlib.import_module(name)
    settle()


def settle() -> None:
    """Keep garbage collection away from what is loaded: in a rank it would copy all of it into private memory."""
    gc.collect()
    gc.freeze()


# A signal's handler runs between two requests. A thread would be in the middle of an import when a rank is forked.
signal.signal(signal.SIGALRM, import_rest)
signal.setitimer(signal.ITIMER_REAL, QUIET)

# Found here and not in the rank, where reading every name would copy the memory around it.
OURS = [name for name in sys.modules if name.partition(".")[0] == "tp_teach"]


def forget_tp_teach() -> None:
    """In a rank, not in what a rank starts: import tp_teach anew, so that an edit is seen at the next launch."""
    if __name__ in sys.modules:
        for name in OURS:
            del sys.modules[name]


settle()
os.register_at_fork(after_in_child=forget_tp_teach)
