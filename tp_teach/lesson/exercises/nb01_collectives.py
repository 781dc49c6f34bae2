"""Exercises of notebook 01, Collectives by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tp_teach.launch import device, launch
from tp_teach.lesson.check import Solved
from tp_teach.measure import measure
from tp_teach.run import Run

NUMBERS = 120
"""Length of the array that is summed: 2, 3, 4 and 5 ranks divide it."""

RANKS, MIB = 8, 64
"""The world of `ring-bytes`: how many ranks, and what each brings."""


def reduce_scatter(answer: Callable[[torch.Tensor], torch.Tensor]) -> str | None:
    """Rank r returns chunk r of the sum of all ranks' arrays; the busiest rank sends (n-1)/n of an array."""
    if not callable(answer):
        return "pass the function itself, `my_reduce_scatter`"
    costs = {}
    for size in (4, 3):
        run = launch(_watched, answer, world_size=size, timeout=5, check=False)
        hint = _wrong_chunks(run.values, size) or _wrong_calls(run)
        if hint:
            return f"with {size} ranks, {hint}"
        costs[size] = int(run.comm.groupby("rank")["wire_bytes"].sum().max()) / (8 * NUMBERS)
    for size, cost in costs.items():
        if cost > (size - 1) / size:
            return f"right sums, but one of {size} ranks sends {cost:.2f} arrays; {(size - 1) / size:.2f} is enough"
    return Solved(f"none of 4 ranks sends more than {costs[4]:.2f} arrays, and less is not possible")


def _watched(answer: Callable[[torch.Tensor], Any]) -> Any:
    x = _array(dist.get_rank(), device())
    with measure(nn.Identity()):
        return answer(x)


def _array(rank: int, where: torch.device | str = "cpu") -> torch.Tensor:
    """Whole numbers of which every sum over some of at most four ranks is different, and exact in any order."""
    return (torch.arange(NUMBERS, device=where) + 1) * 10**rank


def _wrong_chunks(values: list[Any], size: int) -> str | None:
    """What is wrong with what the ranks returned; None if rank r returned chunk r of the sum."""
    sums = sum(_array(rank) for rank in range(size)).chunk(size)
    for rank, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            return f"rank {rank} returned no tensor; end the function with `return` and this rank's chunk"
        if value.shape == (NUMBERS,):
            return f"rank {rank} returned the whole array; return its chunk of 1/{size} of it"
        if value.shape != sums[rank].shape:
            return f"rank {rank} returned the shape {tuple(value.shape)}; a chunk has {tuple(sums[rank].shape)}"
    chunks = [value.long() for value in values]
    wrong = [rank for rank, chunk in enumerate(chunks) if not torch.equal(chunk, sums[rank])]
    if not wrong:
        return None
    rank = wrong[0]
    for other, complete in enumerate(sums):
        if torch.equal(chunks[rank], complete):
            return f"rank {rank} returned the sum of chunk {other}; it is complete, but it is not rank {rank}'s"
    return f"rank {rank} returned {_who(chunks[rank], rank, size)}"


def _who(chunk: torch.Tensor, rank: int, size: int) -> str:
    """Whose numbers are in a wrong chunk: the digits tell, for each rank has its power of ten."""
    own = _array(0).chunk(size)[rank]
    times = int(chunk[0] // own[0])
    counts = [int(digit) for digit in reversed(f"{times:0{size}}")]
    if len(counts) != size or not torch.equal(chunk, own * times):
        return "numbers that are no sum of its own chunk; follow one chunk through the ring, step by step"
    if max(counts) > 1:
        return f"a chunk to which rank {counts.index(max(counts))}'s numbers were added {max(counts)} times"
    missing = " and ".join(str(other) for other, count in enumerate(counts) if not count)
    return f"a sum in which the numbers of rank {missing} are missing; one step adds those of one rank"


def _wrong_calls(run: Run) -> str | None:
    others = sorted(set(run.comm["op"]) - {"send", "recv"})
    return f"`{others[0]}` does the work; use messages between two ranks" if others else None


def ring_bytes(answer: tuple[Mapping[str, float], Mapping[str, int]]) -> str | None:
    """MiB that one of eight ranks sends, and steps, for three collectives to which each rank brings 64 MiB."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(isinstance(part, Mapping) for part in answer):
        return "the answer is a pair of dictionaries, `(mib, steps)`"
    part = (RANKS - 1) / RANKS
    sizes = {"all_reduce": 2 * part * MIB, "reduce_scatter": part * MIB, "all_gather": part * MIB * RANKS}
    turns = {"all_reduce": 2 * (RANKS - 1), "reduce_scatter": RANKS - 1, "all_gather": RANKS - 1}
    for told in answer:
        if set(told) != set(sizes):
            return f"fill in one number each for {', '.join(sizes)}"
        if any(value is None for value in told.values()):
            return "fill in all six numbers"
    mib, steps = answer
    for op, size in sizes.items():
        if mib[op] != size:
            return _why_not(op, mib[op])
    for op, count in turns.items():
        if steps[op] != count:
            return f"{op}: the bytes are right, the steps are not; in a step a rank sends one chunk"
    return None


def _why_not(op: str, told: float) -> str:
    """The hint for a wrong number of MiB."""
    part = (RANKS - 1) / RANKS
    if op == "all_gather" and told == part * MIB:
        return "all_gather: 64 MiB is what each rank brings; the payload is the array that comes out"
    if told in (MIB, 2 * MIB, MIB * RANKS):
        return f"{op}: a rank never sends the chunk that it needs last; count n-1 chunks, not n"
    if op == "all_reduce" and told == part * MIB:
        return "all_reduce: that is one half of it; it adds up, then hands round"
    if op != "all_reduce" and told in (2 * part * MIB, 2 * part * MIB * RANKS):
        return f"{op}: that is a whole all_reduce, and {op} is one half of one"
    return f"{op}: count the chunks that one rank sends, and how large one is"


EXERCISES = {"reduce-scatter": reduce_scatter, "ring-bytes": ring_bytes}
