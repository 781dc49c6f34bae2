"""What every figure asks of a `Run` before it draws."""

from __future__ import annotations

import pandas as pd

from tp_teach.run import Run

FILLED_BY = (
    ("shards", "wrap the training step in `tp.measure(model, optimizer)`"),
    ("comm", "wrap the training step in `tp.measure(model, optimizer)`"),
    ("memory", "wrap the training step in `tp.measure(model, optimizer)`"),
    ("timeline", "launch a function, and wrap what it does in `with tp.timeline():`"),
    ("steps", "train with `tp.train`, or record one row a step in your own loop"),
)


def rows_of(run: Run, table: str) -> pd.DataFrame:
    """A table of the run. Raises ValueError when it is empty, saying what fills it."""
    rows = getattr(run, table)
    if rows.empty:
        raise ValueError(f"this run has no rows in `{table}`: {dict(FILLED_BY)[table]}")
    return rows


def origin(run: Run) -> str:
    """Where the numbers come from: `measured`, `simulated` or `predicted`."""
    mode = run.world.get("mode")
    return mode if mode in ("simulated", "predicted") else "measured"


def rank_sets(signatures: dict[int, object]) -> list[list[int]]:
    """Ranks with equal rows, together, in rank order. `signatures` has what one rank's rows say."""
    sets: list[tuple[object, list[int]]] = []
    for rank in sorted(signatures):
        for signature, ranks in sets:
            if signature == signatures[rank]:
                ranks.append(rank)
                break
        else:
            sets.append((signatures[rank], [rank]))
    return [ranks for _, ranks in sets]
