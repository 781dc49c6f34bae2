"""The fork server that ranks start from. It imports torch once, and each rank begins as its copy."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver

# Third-party only: an edited tp_teach is seen at the next launch.
PRELOAD = ["torch", "torch.distributed.tensor.parallel", "torch._dynamo", "torch.utils.data", "cloudpickle"]


def available() -> bool:
    """Windows has no fork."""
    return "forkserver" in multiprocessing.get_all_start_methods()


def warm() -> None:
    """Start the server, unless it runs; it imports torch while this process goes on."""
    if available():
        multiprocessing.forkserver.set_forkserver_preload(PRELOAD)
        multiprocessing.forkserver.ensure_running()
