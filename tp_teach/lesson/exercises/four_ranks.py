"""Exercises of notebook 00, Four ranks in a cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tp_teach.launch import RanksStuck, launch


def own_row(answer: Callable[[], torch.Tensor]) -> str | None:
    """Each rank returns its own row of the identity matrix, so that all ranks together hold the whole matrix."""
    for size in (4, 3):
        rows = launch(answer, world_size=size, timeout=5).values
        if any(row is None for row in rows):
            return "a rank returned nothing; end the function with `return`"
        if not all(isinstance(row, torch.Tensor) for row in rows):
            return f"a rank returned a {type(rows[0]).__name__}; return a tensor"
        shapes = {tuple(row.shape) for row in rows}
        if shapes != {(size,)}:
            return f"with {size} ranks each row has shape ({size},); got {sorted(shapes)}"
        if size > 1 and all(torch.equal(row, rows[0]) for row in rows):
            return "all ranks returned the same row; ask `dist.get_rank()` which rank this is"
        if not torch.equal(torch.stack(rows).float(), torch.eye(size)):
            return f"with {size} ranks the rows together are not the identity matrix"
    return None


def who_waits(answer: tuple[Callable[[], Any], dict[str, Any]]) -> str | None:
    """Tell, before running it on four ranks, which ranks are missing and in which call the others wait."""
    puzzle, told = answer
    if set(told) != {"missing", "call"}:
        raise ValueError("the answer needs the keys 'missing' and 'call'")
    try:
        launch(puzzle, world_size=4, timeout=2)
    except RanksStuck as stuck:
        waits_in = {stand.waits_in.split()[0] for stand in stuck.stands if stand.waits_in}
        missing = stuck.missing
    else:
        return "the function ran to its end; run the one of the exercise, unchanged"
    if told["missing"] is None or told["call"] is None:
        return "fill in both: the list of missing ranks, and the name of the call"
    if sorted(told["missing"]) != missing:
        return "other ranks are missing; go through the function once for each rank, with the number that it has"
    if {str(told["call"]).removeprefix("dist.").split("(")[0]} != waits_in:
        return "the ranks are right, but they wait in another call"
    return None
