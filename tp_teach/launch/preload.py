"""Imported by the fork server alone, last: what every rank begins with, and at the end what a killed launcher left."""

import atexit
import contextlib
import gc
import importlib
import multiprocessing.popen_forkserver  # noqa: F401
import os
import signal
import sys

from tp_teach.launch import folders, start, worker  # noqa: F401
from tp_teach.launch.server import REST

QUIET = 0.3
"""Seconds after which the server imports the rest. A launch that comes before them does not wait for it."""
PAUSE = 0.05
"""Seconds between two of these imports."""
SERVER = os.getpid()


def import_rest(*signal_and_frame: object) -> None:
    """One module at a time: in between, a launch is served, and the end of the launcher is seen."""
    missing = [name for name in REST if name not in sys.modules]
    for name in missing[:1]:
        importlib.import_module(name)
        signal.setitimer(signal.ITIMER_REAL, PAUSE)
    if not missing:
        settle()


def settle() -> None:
    """Keep garbage collection away from what is loaded: in a rank it would copy all of it into private memory."""
    gc.collect()
    gc.freeze()


def clear_up() -> None:
    if os.getpid() == SERVER:
        folders.remove_socket()
        folders.sweep()


def _state(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


# Found here and not in the rank, where reading every name would copy the memory around it.
OURS = {
    name: (module.__file__, _state(module.__file__))
    for name, module in list(sys.modules.items())
    if name.partition(".")[0] == "tp_teach"
}


def edited() -> bool:
    """Whether a file of tp_teach is not as the server found it."""
    return any(_state(path) != state for path, state in OURS.values())


def forget() -> None:
    """In a rank: have tp_teach imported anew."""
    for name in OURS:
        sys.modules.pop(name, None)


# Who ends a notebook's kernel ends the kernel's process group. The server leaves it, and ends when it has cleared up.
with contextlib.suppress(OSError):
    os.setsid()
atexit.register(clear_up)
# A signal's handler runs between two requests. A thread would be in the middle of an import when a rank is forked.
signal.signal(signal.SIGALRM, import_rest)
settle()
signal.setitimer(signal.ITIMER_REAL, QUIET)
