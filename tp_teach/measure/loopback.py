"""`wire`: the bytes that really crossed the loopback interface, to hold against the ring formula."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch.distributed as dist

from tp_teach.measure.simulated import simulated


@dataclass
class Wire:
    """`bytes` is what all ranks of the group together sent, None where it is not known; `reason` then says why."""

    ranks: int
    bytes: int | None = None
    reason: str = "the block has not ended"

    @property
    def per_rank(self) -> float | None:
        """Bytes that one rank sent, in the mean over the group."""
        return None if self.bytes is None else self.bytes / self.ranks


@contextmanager
def wire(group: dist.ProcessGroup | None = None) -> Iterator[Wire]:
    """Count the bytes that cross the loopback interface while the block runs: `with tp.wire() as wire: …`.

    Every rank of the group (default: all ranks) enters the block, and all are given the same number when it ends:
    `wire.bytes` for all ranks together, `wire.per_rank` for one. It is the machine's own counter, so it holds TCP/IP
    headers and acknowledgements (0.1 to 1.2 % of 4 MiB) and whatever other programs send to each other meanwhile:
    they can only add, so of several repetitions the least is nearest to the truth. The barriers around the block are
    counted once without it and taken off, to some KiB. `launch(…, check=True)` makes each collective send a little
    more.

    NCCL does not use this interface, nor do ranks on several machines; `wire.bytes` is then None, and `wire.reason`
    says why.
    """
    counted = Wire(dist.get_world_size(group))
    reason = _why_not(group)
    if reason:
        yield counted
        counted.reason = reason
        return
    empty = min(_between_barriers(group) for _ in range(3))
    began = _read(group)
    dist.barrier(group)
    yield counted
    dist.barrier(group)
    told = [max(0, _read(group) - began - empty)]
    dist.broadcast_object_list(told, dist.get_global_rank(group or dist.group.WORLD, 0), group)
    counted.bytes, counted.reason = told[0], ""


def _why_not(group: dist.ProcessGroup | None) -> str:
    if simulated():
        return "a simulation sends nothing"
    backend = dist.get_backend(group)
    if backend != "gloo":
        return f"{backend.upper()} moves data between GPUs, not through the loopback interface"
    name = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if not name.startswith("lo"):
        return "the ranks are not all on this machine, so their bytes cross other interfaces"
    if name not in psutil.net_io_counters(pernic=True):
        return f"this system has no counter for the interface {name}"
    return ""


def _read(group: dist.ProcessGroup | None) -> int:
    """Bytes sent through the interface since the machine started, read while all ranks of the group are silent."""
    dist.barrier(group)
    # The counter of 32 bits that some systems have wraps at 4 GiB; psutil makes up for it within a process.
    return psutil.net_io_counters(pernic=True)[os.environ["GLOO_SOCKET_IFNAME"]].bytes_sent


def _between_barriers(group: dist.ProcessGroup | None) -> int:
    """What the barriers of an empty block send."""
    began = _read(group)
    dist.barrier(group)
    dist.barrier(group)
    return _read(group) - began
