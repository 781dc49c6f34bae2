"""`timeline`: one lane a rank, compute above and collectives below, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tp_teach.plot.page import Page
from tp_teach.plot.picture import Picture, neutral
from tp_teach.plot.rows import origin, rank_sets, rows_of
from tp_teach.plot.style import (
    GRID,
    INK,
    MARGIN,
    PAPER,
    QUIET,
    SMALL,
    WIDTH,
    collective,
    hatch_colour,
    rank_colour,
    rank_hatch,
)
from tp_teach.plot.words import counted, listed, ranks_in_words
from tp_teach.run import Run

LANE, GAP = 0.52, 0.14  # inches: one rank, and the space to the next
LABELS, SHARE = 1.4, 1.35  # inches at the left for the rank, at the right for its share
MOST = 16
UNITS = (("microseconds", 1e6), ("milliseconds", 1e3), ("seconds", 1.0))


@neutral()
def timeline(run: Run) -> Picture:
    """What each rank does when: compute in the rank's colour, below it the collectives, waiting included.

    Time runs from the start of the first row that is drawn; the axis says its unit. A rank that was traced with
    `tp.timeline()` shows its operations, any other its whole call. At the right stands the part of the rank's time in
    which a collective was open. Of more than 16 ranks the first 16 are drawn.

    Raises ValueError when the run has no rows in `timeline`.
    """
    rows = _operations(rows_of(run, "timeline").sort_values(["rank", "start"], kind="stable"))
    ranks = [int(rank) for rank in rows["rank"].unique()]
    shown = ranks[:MOST]
    drawn = rows[rows["rank"].isin(shown)]
    ops = list(dict.fromkeys(drawn.loc[drawn["kind"] == "collective", "name"]))
    page = Page()
    y = page.title("What each rank does when", _subtitle(run, ranks, ops))
    y = _legend(page, y, ops) if ops else y
    top, height = y + (0.28 if ops else 0.05), len(shown) * (LANE + GAP)
    left, right = MARGIN + LABELS, SHARE if ops else 0.1
    page.plot(left, top, WIDTH - MARGIN - right - left, height, lambda axes: _lanes(axes, drawn, shown, bool(ops)))
    for place, rank in enumerate(shown):
        _label(page, top + place * (LANE + GAP), rank)
    if ops:
        _shares(page, top, drawn, shown)
    return page.picture(top + height + 0.72 + MARGIN, _alt(run, rows, ranks))


def _operations(rows: pd.DataFrame) -> pd.DataFrame:
    """Without the whole call of each rank that was traced: the row around all its others."""
    calls = []
    for _, part in rows.groupby("rank"):
        start, end = part["start"], part["start"] + part["seconds"]
        around = part[(start <= start.min()) & (end >= end.max()) & (part["kind"] == "compute")]
        calls += list(around.index) if len(part) > 1 else []
    return rows.drop(calls)


def _subtitle(run: Run, ranks: Sequence[int], ops: Sequence[str]) -> str:
    said = f"{counted(len(ranks), 'rank')}, {origin(run)}"
    said += f"; drawn are the first {MOST}" if len(ranks) > MOST else ""
    return said + (": above compute, below collectives, waiting for other ranks included" if ops else ": whole calls")


def _legend(page: Page, y: float, ops: Sequence[str]) -> float:
    entries = [(f"{collective(op)[0]} {op}", {"colour": collective(op)[1], "hatch": ""}) for op in ops]
    return page.legend(MARGIN, y, entries)


def _lanes(axes: Axes, rows: pd.DataFrame, ranks: Sequence[int], halves: bool) -> None:
    began = rows["start"].min()
    length = float((rows["start"] + rows["seconds"]).max() - began) or 1e-6
    unit, factor = next(((unit, factor) for unit, factor in UNITS if length * factor < 1000), UNITS[-1])
    axes.set_xlim(0, length * factor)
    axes.set_ylim(len(ranks) * (LANE + GAP), 0)
    axes.set_yticks([])
    axes.grid(axis="x", color=GRID)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(f"{unit} since the first of these operations")
    scaled = rows.assign(start=(rows["start"] - began) * factor)
    scaled["seconds"] = (rows["seconds"] * factor).clip(lower=length * factor / 1500)  # about a pixel
    for place, rank in enumerate(ranks):
        y, mine = place * (LANE + GAP), scaled[scaled["rank"] == rank]
        computes = mine[mine["kind"] == "compute"]
        colour = rank_colour(rank)
        looks = {"facecolor": colour, "edgecolor": hatch_colour(colour), "hatch": rank_hatch(rank)}
        _bars(axes, computes, y, LANE / 2 if halves else LANE, gid=f"compute {rank}", **looks)
        for op, part in mine[mine["kind"] == "collective"].groupby("name", sort=False):
            _bars(axes, part, y + LANE / 2, LANE / 2, gid=f"{op} {rank}", facecolor=collective(op)[1])
        if not halves:
            first = computes.iloc[0]
            _name(axes, first["start"] + length * factor / 100, y + LANE / 2, first["name"])


def _bars(axes: Axes, rows: pd.DataFrame, y: float, height: float, **looks: Any) -> None:
    axes.broken_barh(list(zip(rows["start"], rows["seconds"], strict=True)), (y, height), linewidth=0, **looks)


def _name(axes: Axes, x: float, y: float, name: str) -> None:
    plate = {"boxstyle": "square,pad=0.1", "facecolor": PAPER, "edgecolor": "none"}
    axes.text(x, y, name, size=SMALL, va="center_baseline", color=INK, bbox=plate, parse_math=False)


def _label(page: Page, y: float, rank: int) -> None:
    page.rank_box(MARGIN, y + 0.06, LANE - 0.12, LANE - 0.12, rank)
    page.text(MARGIN + LANE, y + LANE / 2, f"rank {rank}", va="center_baseline")


def _shares(page: Page, top: float, rows: pd.DataFrame, ranks: Sequence[int]) -> None:
    right = WIDTH - MARGIN
    page.text(right, top - 0.1, "in collectives", ha="right", va="bottom", color=QUIET)
    for place, rank in enumerate(ranks):
        mine = rows[rows["rank"] == rank]
        whole = (mine["start"] + mine["seconds"]).max() - mine["start"].min()
        share = _covered(mine[mine["kind"] == "collective"]) / whole if whole else 0.0
        page.text(right, top + place * (LANE + GAP) + LANE / 2, f"{share:.0%}", ha="right", va="center_baseline")


def _covered(rows: pd.DataFrame) -> float:
    """Seconds in which at least one of the rows, in order of their start, goes on."""
    total, until = 0.0, float("-inf")
    for begins, lasts in zip(rows["start"], rows["seconds"], strict=True):
        total += max(0.0, begins + lasts - max(begins, until))
        until = max(until, begins + lasts)
    return total


def _alt(run: Run, rows: pd.DataFrame, ranks: Sequence[int]) -> str:
    """Counts alone: times differ from run to run."""
    said = {rank: _counts(rows[rows["rank"] == rank]) for rank in ranks}
    sets = rank_sets(said)
    head = f"Timeline, {counted(len(ranks), 'rank')}, {origin(run)}."
    if len(sets) == 1:
        return f"{head} {'Every rank' if len(ranks) > 1 else 'The only rank'}: {said[ranks[0]]}."
    parts = [f"{ranks_in_words(same).capitalize()}: {said[same[0]]}." for same in sets[:8]]
    return " ".join([head, *parts, *(["And more."] if len(sets) > 8 else [])])


def _counts(rows: pd.DataFrame) -> str:
    talk = rows.loc[rows["kind"] == "collective", "name"]
    if talk.empty:
        return listed([f"{name}" for name in dict.fromkeys(rows["name"])][:4]) + ", no collectives"
    numbers = talk.value_counts(sort=False)
    return "compute, and " + listed([f"{count} × {name}" for name, count in numbers.items()])
