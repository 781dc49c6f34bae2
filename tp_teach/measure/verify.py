"""Is what the ranks hold right? Checks for a rank, used as `tp.verify.replicas(model)`; they answer in words.

Each compares one hash a tensor over the ranks of a group, in one all_gather_object, so every rank of the group must
call it; all of them get the same answer. Without a process group they look at this process alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

MOST_LINES = 8


@dataclass(frozen=True)
class Answer:
    """True when all is right; `str` says what was found, one line a fault."""

    right: str
    faults: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        rest = len(self.faults) - MOST_LINES
        more = [f"and {rest} more like these"] if rest > 0 else []
        return "\n".join([*self.faults[:MOST_LINES], *more]) if self.faults else self.right

    __repr__ = __str__


def replicas(model: nn.Module, shards: Iterable[str] = (), group: dist.ProcessGroup | None = None) -> Answer:
    """Does every rank of the group (default: all ranks) hold the same value of what should be equal?

    Plain parameters should be equal on all ranks. Of a DTensor the local parts are compared, between the ranks that
    hold the same part: all of them on an axis of the mesh where it is replicated. Compared are bits, except that a NaN
    equals a NaN and 0 equals -0.

    `shards` names plain parameters that were cut by hand, as patterns such as "layers.*.fc1.weight": their parts
    belong to one matrix and should differ. Parts that are all equal were drawn from the same seed on every rank.

    Raises ValueError for a pattern that names no plain parameter.
    """
    by_hand = _matching(model, list(shards))
    mine = {name: _held(parameter) for name, parameter in model.named_parameters()}
    ranks, everyone = _gather(mine, group)
    faults, copied = [], 0
    for name in dict.fromkeys(name for held in everyone for name in held):
        holders = {rank: held[name] for rank, held in zip(ranks, everyone, strict=True) if name in held}
        if name in by_hand:
            faults += _equal_parts(name, holders)
        else:
            faults += _differing_copies(name, holders)
            copied += len({held.part for held in holders.values()}) < len(holders)
        if len(holders) < len(ranks):
            faults.append(f"{name} is on {_ranks(holders)} and not on {_ranks(set(ranks) - set(holders))}")
    said = f"{_many(len(mine), 'parameter')}; copies of {copied} are equal on {_ranks(ranks)}"
    said += f", parts of {len(by_hand)} differ" if by_hand else ""
    return Answer(said, tuple(faults))


def batch(*tensors: torch.Tensor, group: dist.ProcessGroup | None = None) -> Answer:
    """Did all ranks of the group (default: all ranks) get the same batch: `tp.verify.batch(tokens, labels)`?

    With data parallelism ask within a tensor-parallel group: `group=mesh["tp"].get_group()`.
    """
    ranks, everyone = _gather([_held(tensor) for tensor in tensors], group)
    faults = []
    if len({len(held) for held in everyone}) > 1:
        counts = {rank: len(held) for rank, held in zip(ranks, everyone, strict=True)}
        faults.append("the ranks gave different numbers of tensors: " + _by_value(counts))
    for place, helds in enumerate(zip(*everyone, strict=False), start=1):
        holders = dict(zip(ranks, helds, strict=True))
        faults += _differing_copies(f"tensor {place} of the batch", holders)
    return Answer(f"the batch is the same on {_ranks(ranks)}", tuple(faults))


def optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None) -> Answer:
    """Was the optimizer built over the live parameters of the model, on every rank of the group (default: all)?

    Cutting a model replaces its parameters; an optimizer that was built before goes on to move the old ones. Frozen
    parameters (`requires_grad=False`) may be left out.
    """
    held = {id(parameter) for part in optimizer.param_groups for parameter in part["params"]}
    live = {id(parameter) for parameter in model.parameters()}
    absent = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    total = sum(p.requires_grad for p in model.parameters())
    said = ""
    if absent:
        said = f"{len(absent)} of {_many(total, 'parameter')} of the model are not in the optimizer ({_some(absent)})"
        said += ": it was built before the model was cut or replaced" if held - live else " and will not move"
    elif held - live:
        said = f"the optimizer also holds {_many(len(held - live), 'tensor')} outside the model"
    ranks, everyone = _gather(said, group)
    if len(set(everyone)) == 1:
        faults = [said] if said else []
    else:
        faults = [f"rank {rank}: {words}" for rank, words in zip(ranks, everyone, strict=True) if words]
    return Answer(f"the optimizer holds all {_many(total, 'parameter')} of the model", tuple(faults))


@dataclass(frozen=True)
class _Held:
    """What one rank holds of a tensor. Ranks with an equal `part` hold the same part of it."""

    shape: tuple[int, ...]
    dtype: str
    part: tuple[int, ...]
    digest: bytes


def _held(tensor: torch.Tensor) -> _Held:
    part: tuple[int, ...] = ()
    with torch.no_grad():
        if isinstance(tensor, DTensor):
            where = zip(tensor.placements, tensor.device_mesh.get_coordinate(), strict=True)
            part = tuple(place for placement, place in where if not placement.is_replicate())
            tensor = tensor.to_local()
        return _Held(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), part, _digest(tensor))


def _digest(tensor: torch.Tensor) -> bytes:
    """A hash of the numbers, in which 0 is -0 and all NaNs are one."""
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
        tensor = torch.where(tensor.isnan(), torch.nan, tensor + 0.0)
    numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(numbers, digest_size=16).digest()


def _gather(mine: Any, group: dist.ProcessGroup | None) -> tuple[list[int], list[Any]]:
    """The group's ranks in the whole world, and what each of them gave."""
    if not dist.is_initialized():
        return [0], [mine]
    ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
    everyone: list[Any] = [None] * len(ranks)
    dist.all_gather_object(everyone, mine, group=group)
    return ranks, everyone


def _differing_copies(name: str, holders: dict[int, _Held]) -> list[str]:
    """Where ranks that should hold the same hold something else, in words."""
    faults = []
    shapes = {rank: f"{held.dtype} {held.shape}" for rank, held in holders.items()}
    parts = {held.part for held in holders.values()}
    for part in sorted(parts):
        same = {rank: held.digest for rank, held in holders.items() if held.part == part}
        what = f"{name}, part {', '.join(map(str, part))}," if len(parts) > 1 else name
        if len({shapes[rank] for rank in same}) > 1:
            faults.append(f"{what} has another shape or dtype: " + _by_value({rank: shapes[rank] for rank in same}))
        elif len(set(same.values())) > 1:
            faults.append(f"{what} differs: " + _values(same))
    return faults


def _equal_parts(name: str, holders: dict[int, _Held]) -> list[str]:
    if len(holders) < 2 or len({held.digest for held in holders.values()}) > 1:
        return []
    return [f"{name} is the same on {_ranks(holders)}: parts of one matrix that were drawn from the same seed"]


def _values(digests: dict[int, bytes]) -> str:
    """`ranks 0, 2 hold one value, rank 1 another`."""
    sets = _alike(digests)
    if len(sets) == len(digests) > 2:
        return f"{_ranks(digests)} hold a value each"
    first = f"{_ranks(sets[0])} hold{'' if len(sets[0]) > 1 else 's'} one value"
    return ", ".join([first, *(f"{_ranks(ranks)} another" for ranks in sets[1:])])


def _by_value(values: dict[int, Any]) -> str:
    return ", ".join(f"{values[ranks[0]]} on {_ranks(ranks)}" for ranks in _alike(values))


def _alike(values: dict[int, Any]) -> list[list[int]]:
    """Ranks with equal values, together."""
    sets: dict[Any, list[int]] = {}
    for rank, value in values.items():
        sets.setdefault(value, []).append(rank)
    return list(sets.values())


def _matching(model: nn.Module, patterns: Sequence[str]) -> set[str]:
    plain = [name for name, parameter in model.named_parameters() if not isinstance(parameter, DTensor)]
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in plain):
            raise ValueError(f"shards names {pattern!r}, which no plain parameter matches; they are {_some(plain, 6)}")
    return {name for name in plain if any(fnmatch(name, pattern) for pattern in patterns)}


def _ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"ranks {numbers[0]}–{numbers[-1]}"
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _some(names: Sequence[str], most: int = 2) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
