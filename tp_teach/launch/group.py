"""The default process group of one rank: joined before its function runs, left even after an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


@dataclass(frozen=True)
class RankInfo:
    """A rank's place in its world. `local_size` ranks are on this machine; `timeout` is seconds a collective."""

    rank: int
    world_size: int
    local_size: int
    backend: str
    device: str
    timeout: float
    check: bool


@contextmanager
def process_group(info: RankInfo, store: dist.Store | None) -> Iterator[None]:
    """Join the default process group; without a store, as torchrun's variables say."""
    os.environ["TP_TEACH_DEVICE"] = info.device
    # With NCCL too, waiting then happens in the call, so that a rank that waits can say where.
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    if info.local_size == info.world_size:
        # Without this Gloo and NCCL look up the host's name, which fails on a laptop without a network.
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        os.environ.update(GLOO_SOCKET_IFNAME=loopback, NCCL_SOCKET_IFNAME=loopback)
    torch.set_num_threads(max(1, _cores() // info.local_size))
    dist.set_debug_level(dist.DebugLevel.DETAIL if info.check else dist.DebugLevel.OFF)
    device = torch.device(info.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Groups that the function makes, a mesh's too, take these and not the default group's.
    timeout = timedelta(seconds=info.timeout)
    distributed_c10d.default_pg_timeout = distributed_c10d.default_pg_nccl_timeout = timeout
    dist.init_process_group(
        info.backend,
        store=store,
        rank=info.rank,
        world_size=info.world_size,
        timeout=timeout,
        device_id=device if info.backend == "nccl" else None,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
