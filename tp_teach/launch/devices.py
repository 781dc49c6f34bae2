"""Which backend and which device each rank gets: a pure function of the machine, the ranks and the request."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Choice:
    """`backend` is nccl or gloo; `devices[r]` is the device of rank r; `reason` says why, in one line."""

    backend: str
    devices: tuple[str, ...]
    reason: str

    @property
    def world_size(self) -> int:
        return len(self.devices)


def choose(
    gpus: int, ranks: int, device: str | None = None, backend: str | None = None, *, nccl: bool = True
) -> Choice:
    """Choose for `ranks` ranks on a machine with `gpus` CUDA devices; `nccl` says whether torch was built with NCCL.

    As many GPUs as ranks: NCCL, rank r on `cuda:r`. Otherwise the CPU with Gloo. `device="cuda"` with fewer GPUs
    than ranks: Gloo, and the ranks share the GPUs, so memory is real and speed means nothing.

    Raises ValueError for a request that cannot work, naming it and what would.
    """
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"device={device!r} is not known; use 'cpu', 'cuda' or leave it out")
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f"backend={backend!r} is not known; use 'gloo', 'nccl' or leave it out")
    if backend == "nccl":
        _check_nccl(gpus, ranks, device, nccl)
    if device == "cuda" and gpus == 0:
        raise ValueError("device='cuda' needs an NVIDIA GPU, and torch sees none here; use device='cpu'")

    enough = gpus >= ranks
    on_gpu = device == "cuda" or (device is None and backend != "gloo" and enough and nccl)
    if not on_gpu:
        return Choice(
            "gloo",
            ("cpu",) * ranks,
            f"{_many(ranks, 'rank')} on the CPU with Gloo{_why_cpu(gpus, ranks, device, backend, nccl)}",
        )
    devices = tuple(f"cuda:{rank % gpus}" for rank in range(ranks))
    if enough and nccl and backend != "gloo":
        return Choice("nccl", devices, f"{_many(ranks, 'rank')} on {_many(ranks, 'GPU')} with NCCL")
    if enough:
        return Choice("gloo", devices, f"{_many(ranks, 'rank')} on {_many(ranks, 'GPU')} with Gloo")
    shared = f"{_many(ranks, 'rank')} share {_many(gpus, 'GPU')} with Gloo: real memory, meaningless speed"
    return Choice("gloo", devices, shared)


def choose_here(ranks: int, device: str | None = None, backend: str | None = None) -> Choice:
    """`choose` for this machine. Counting the GPUs does not initialise CUDA."""
    return choose(torch.cuda.device_count(), ranks, device, backend, nccl=dist.is_nccl_available())


def device() -> torch.device:
    """This rank's torch device. Raises RuntimeError outside a rank."""
    name = os.environ.get("TP_TEACH_DEVICE")
    if name is None:
        raise RuntimeError("tp.device() is known only inside a rank: call it in the function that you launch")
    return torch.device(name)


def _check_nccl(gpus: int, ranks: int, device: str | None, nccl: bool) -> None:
    if device == "cpu":
        raise ValueError("backend='nccl' cannot work with device='cpu'; use backend='gloo'")
    if not nccl:
        raise ValueError("backend='nccl' is not part of this build of torch; use backend='gloo'")
    if gpus < ranks:
        raise ValueError(
            f"backend='nccl' needs one GPU a rank: {_many(ranks, 'rank')}, and torch sees {_many(gpus, 'GPU')}; "
            f"use {'at most ' + _many(gpus, 'rank') + ' or ' if gpus else ''}backend='gloo'"
        )


def _why_cpu(gpus: int, ranks: int, device: str | None, backend: str | None, nccl: bool) -> str:
    if device == "cpu" or backend == "gloo":
        return ", as asked"
    if gpus == 0:
        return ": torch sees no GPU here"
    if gpus < ranks:
        return f": torch sees {_many(gpus, 'GPU')}, fewer than the ranks"
    return ": this build of torch has no NCCL"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
