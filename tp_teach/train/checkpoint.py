"""Checkpoints that do not depend on the number of ranks: `torch.distributed.checkpoint`, written beside and renamed.

    folder/step-20/checkpoint.json    what is in it: format, step, configuration, and the bytes of each file
                  .metadata           which part of which tensor lies in which file
                  __0_0.distcp …      each rank's parts of parameters and optimizer state
    folder/step-30/                   the newest; the one before it is kept too

A checkpoint takes its name when all of it is on the disk, so a `step-` folder is whole unless something cut it later;
what a training run that was killed has left half-written has another name and is removed by the next.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from tp_teach.model.config import TrainConfig

FORMAT = 1
ABOUT = "checkpoint.json"
KEPT = 2
MODEL_FIELDS = (
    *("model", "vocab_size", "seq_len", "d_model", "hidden_dim", "num_layers", "num_classes", "block", "num_heads"),
    *("num_kv_heads", "tied", "qkv_bias", "dtype"),
)
"""Fields of the configuration that must be those of the checkpoint; how the model is cut is not among them."""


def newest(folder: str | os.PathLike) -> int | None:
    """How many steps the newest checkpoint in `folder` has behind it; None if there is none yet.

    Raises ValueError when the folder holds other things, and when the newest checkpoint is not whole.
    """
    folder = Path(folder)
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise ValueError(f"checkpoint={str(folder)!r} is a file; name a folder")
    steps = _steps(folder)
    foreign = [entry.name for entry in folder.iterdir() if not entry.name.startswith((".step-", "step-"))]
    if not steps:
        if foreign:
            raise ValueError(f"checkpoint={str(folder)!r} holds {foreign[0]!r} and no checkpoint; name a new folder")
        return None
    _read(folder, steps)
    return steps[-1]


def load(
    folder: str | os.PathLike, config: TrainConfig, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> int:
    """Put the newest checkpoint into the model and its optimizer, in place. Returns how many steps it has behind it.

    The model may be cut over any number of ranks, which then all call this, or whole: its state dict is then the dense
    one. The learning rate stays that of the configuration.

    Raises ValueError when there is no checkpoint, when it is not whole, and when it is of another model.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    folder = Path(folder)
    if newest(folder) is None:
        raise ValueError(f"checkpoint={str(folder)!r} holds no checkpoint")
    steps = _steps(folder)
    about = _read(folder, steps)
    for field in MODEL_FIELDS:
        here, there = getattr(config, field), about["config"].get(field)
        if here != there:
            raise ValueError(
                f"checkpoint={str(folder)!r} was saved with {field}={there!r}; this model has {field}={here!r}"
            )
    state = _state(model, optimizer)
    with _quietly():
        dcp.load(state, checkpoint_id=folder / f"step-{steps[-1]}")
    set_state_dict(
        model,
        optimizer if optimizer is not None else [],
        model_state_dict=state["model"],
        optim_state_dict=state.get("optimizer", {}),
    )
    if optimizer is not None:
        for group in optimizer.param_groups:
            group["lr"] = config.lr
    torch.set_rng_state(state["rng"])
    return steps[-1]


def save(
    folder: str | os.PathLike, config: TrainConfig, model: nn.Module, optimizer: torch.optim.Optimizer, step: int
) -> Path:
    """Save model and optimizer as the checkpoint that has `step` steps behind it. Every rank calls this.

    The folder must be one that all ranks write to: on several machines, one of a shared file system.

    Raises ValueError when the folder holds other things.
    """
    import torch.distributed.checkpoint as dcp

    folder = Path(folder)
    draft, final = folder / f".step-{step}", folder / f"step-{step}"
    first = not dist.is_initialized() or dist.get_rank() == 0
    if first:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*"):
            shutil.rmtree(left)
    _meet()
    with _quietly():
        dcp.save(_state(model, optimizer), checkpoint_id=draft)
    if first:
        files = {entry.name: entry.stat().st_size for entry in draft.iterdir()}
        about = {"format": FORMAT, "step": step, "config": asdict(config), "files": files}
        (draft / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        if final.exists():
            final.replace(folder / f".step-{step}-before")
        draft.replace(final)
        for old in [*folder.glob(".step-*"), *(folder / f"step-{number}" for number in _steps(folder)[:-KEPT])]:
            shutil.rmtree(old)
    _meet()
    return final


def _state(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict:
    """What a checkpoint holds. Parameters and optimizer state go by the parameter's name, not by its number."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict

    # The state of random numbers is the same on every rank. With it, dropout goes on as if nothing had happened.
    rng = {"rng": torch.get_rng_state()}
    if optimizer is None:
        return {"model": get_model_state_dict(model)} | rng
    names = ("model", "optimizer")
    return dict(zip(names, get_state_dict(model, optimizer), strict=True)) | rng


def _steps(folder: Path) -> list[int]:
    """The checkpoints' steps, the newest last."""
    return sorted(int(entry.name[5:]) for entry in folder.glob("step-*") if entry.name[5:].isdigit())


def _read(folder: Path, steps: list[int]) -> dict:
    """The newest checkpoint's own account of itself, if it is true."""
    path = folder / f"step-{steps[-1]}"
    before = f"; remove it to go on from step-{steps[-2]}" if len(steps) > 1 else "; name a new folder"
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        files, found = about["files"], about["format"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{str(path)!r} is not a whole checkpoint: its {ABOUT} cannot be read{before}") from None
    if found != FORMAT:
        raise ValueError(f"{str(path)!r} has format {found!r}; this version reads format {FORMAT}{before}")
    for name, size in files.items():
        there = 0
        with suppress(OSError):
            there = (path / name).stat().st_size
        if there != size:
            raise ValueError(f"{str(path)!r} is not a whole checkpoint: {name} has {there} of {size} bytes{before}")
    return about


@contextmanager
def _quietly() -> Iterator[None]:
    """Without torch's remark that one process saves and loads alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _meet() -> None:
    if dist.is_initialized():
        dist.barrier()
