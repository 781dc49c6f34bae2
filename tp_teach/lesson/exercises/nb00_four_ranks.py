"""Exercises of notebook 00, Four ranks in a cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tp_teach.launch import RanksStuck, launch


def own_row(answer: Callable[[], torch.Tensor]) -> str | None:
    """Each rank returns its own row of the identity matrix, so that all ranks together hold the whole matrix."""
    if not callable(answer):
        return "pass the function itself, `own_row`"
    for size in (4, 3):
        rows = launch(answer, world_size=size, timeout=5).values
        if any(row is None for row in rows):
            return "a rank returned nothing; end the function with `return`"
        if not all(isinstance(row, torch.Tensor) for row in rows):
            return f"a rank returned a value of type {type(rows[0]).__name__}; return a tensor"
        shapes = {tuple(row.shape) for row in rows}
        if shapes == {(size, size)}:
            return f"with {size} ranks each returned the whole {size} x {size} matrix; keep one row"
        if shapes != {(size,)}:
            got = ", ".join(map(str, sorted(shapes)))
            return f"with {size} ranks each row has shape ({size},); got {got}"
        if size > 1 and all(torch.equal(row, rows[0]) for row in rows):
            return "all ranks returned the same row; ask `dist.get_rank()` which rank this is"
        if not torch.equal(torch.stack(rows).float(), torch.eye(size)):
            wrong = next(rank for rank, row in enumerate(rows) if not torch.equal(row.float(), torch.eye(size)[rank]))
            return f"with {size} ranks, rank {wrong} returned {rows[wrong].tolist()}, which is not its row"
    return None


def who_waits(answer: tuple[Callable[[], Any], dict[str, Any]]) -> str | None:
    """Tell, before running it on four ranks, which ranks are missing and in which call the others wait."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not callable(answer[0]) or not isinstance(answer[1], dict):
        return "the answer is a pair: the function `puzzle`, and what you say about it"
    puzzle, told = answer
    if set(told) != {"missing", "call"}:
        return "say two things, under the names 'missing' and 'call'"
    if told["missing"] is None or told["call"] is None:
        return "fill in both: 'missing' with a list of ranks, 'call' with a name"
    if not isinstance(told["missing"], list | tuple | set) or not all(
        isinstance(rank, int) for rank in told["missing"]
    ):
        return "'missing' is a list of ranks, such as [0, 2]"
    try:
        launch(puzzle, world_size=4, timeout=2)
    except RanksStuck as stuck:
        return judge_waiting(told, stuck)
    return "the function ran to its end; run the one of the exercise, unchanged"


def judge_waiting(told: dict[str, Any], stuck: RanksStuck) -> str | None:
    """What is wrong with what was told, beside what the ranks did."""
    waits_in = {state.waits_in.split()[0] for state in stuck.states if state.waits_in}
    if sorted(told["missing"]) != stuck.missing:
        return "other ranks are missing; go through the function once for each rank, with the number that it has"
    call = getattr(told["call"], "__name__", str(told["call"]))
    if {call.removeprefix("dist.").split("(")[0]} != waits_in:
        return "the ranks are right, but they wait in another call"
    return None


EXERCISES = {"own-row": own_row, "who-waits": who_waits}
