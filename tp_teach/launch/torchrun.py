"""The same function, the same `Run`, when torchrun or Slurm has started the ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from tp_teach.launch.devices import choose_here
from tp_teach.launch.group import RankInfo, process_group
from tp_teach.run import Run, world_of
from tp_teach.tables import Log, current_log


def started_by_torchrun() -> bool:
    """Whether this process is already a rank: RANK, WORLD_SIZE and MASTER_ADDR are set."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def join(
    fn: Callable[..., Any],
    *args: Any,
    device: str | None = None,
    backend: str | None = None,
    timeout: float = 600.0,
    check: bool = False,
) -> Run | None:
    """Run `fn(*args)` as the rank that this process is. Rank 0 gets the `Run` of all ranks, the others get None.

    Call it in a process that torchrun started; `tp.launch` says what the options mean. What ranks print goes where
    torchrun sends it, so `Run.output` is empty.

    Raises ValueError for a device or backend that cannot work here.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    choice = choose_here(local_size, device, backend)
    log = Log(rank)
    token = current_log.set(log)
    try:
        device_name = choice.devices[local_rank]
        with process_group(
            RankInfo(rank, world_size, local_size, choice.backend, device_name, timeout, check), store=None
        ):
            mine = (device_name, fn(*args), log)
            everyone: list | None = [None] * world_size if rank == 0 else None
            dist.gather_object(mine, everyone, dst=0)
    finally:
        current_log.reset(token)
        # Gloo's threads drop their last tensors a little late, and need Python's lock to do so. A program that ends
        # while one of them waits for it is aborted ("terminate called without an active exception").
        time.sleep(0.1)
    if everyone is None:
        return None
    devices, values, logs = zip(*everyone, strict=True)
    reason = choice.reason if local_size == world_size else f"{world_size} ranks, on each machine {choice.reason}"
    return Run.from_logs(world_of(choice.backend, devices, reason), logs, values)
