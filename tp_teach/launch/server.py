"""The fork server that ranks start from. It imports torch once, and each rank begins as its copy."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import signal
import sys
import tempfile

REST = ("torch.distributed.tensor.parallel", "torch._dynamo", "torch.utils.data")
"""What training needs beside torch itself."""


def available() -> bool:
    """Windows has no fork."""
    return "forkserver" in multiprocessing.get_all_start_methods()


def warm() -> None:
    """Start the server, unless it runs; it imports torch while this process goes on.

    Raises ValueError when the folder for temporary files has too long a name for a socket.
    """
    if not available():
        return
    # The first launch is often a small one, and somebody waits for it; `preload` brings the rest a little later.
    rest = REST if "torch.distributed.tensor" in sys.modules else ()
    # `preload` sets a timer, so it comes last. The server says nothing of a module that it does not find.
    multiprocessing.forkserver.set_forkserver_preload(["torch", "cloudpickle", *rest, "tp_teach.launch.preload"])
    # An interrupt reaches the server too. It ignores it once it serves, but not yet while it imports torch. The
    # tracker comes first, because starting it lifts the block.
    multiprocessing.resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        multiprocessing.forkserver.ensure_running()
    except OSError as error:
        if "too long" not in str(error):
            raise
        folder = tempfile.gettempdir()
        raise ValueError(f"the temporary folder {folder!r} has too long a name for a socket; set TMPDIR") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
