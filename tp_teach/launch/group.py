"""The default process group of one rank: joined before its function runs, left even after an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist


@contextmanager
def process_group(
    backend: str,
    device_name: str,
    init_method: str,
    rank: int,
    world_size: int,
    local_size: int,
    timeout: float,
    check: bool,
) -> Iterator[None]:
    """Join as `rank` of `world_size` with this device, `local_size` of the ranks being on this machine.

    `timeout` in seconds is that of each collective; `check` turns torch's comparison of collectives on.
    """
    os.environ["TP_TEACH_DEVICE"] = device_name
    # With NCCL too, waiting then happens in the call, so that a rank that waits can say where.
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    if local_size == world_size:
        # Without this Gloo and NCCL look up the host's name, which fails on a laptop without a network.
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        os.environ.update(GLOO_SOCKET_IFNAME=loopback, NCCL_SOCKET_IFNAME=loopback)
    torch.set_num_threads(max(1, _cores() // local_size))
    dist.set_debug_level(dist.DebugLevel.DETAIL if check else dist.DebugLevel.OFF)
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=init_method,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout),
        device_id=device if backend == "nccl" else None,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
