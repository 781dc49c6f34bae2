"""`loss`: how the loss fell over the steps, of one run or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from tp_teach.plot.line_draw import HEIGHT, LEFT, STEP, Curve, course, curve, legend, lines
from tp_teach.plot.page import Page
from tp_teach.plot.picture import Picture, neutral
from tp_teach.plot.rows import rank_sets, rows_of
from tp_teach.plot.style import MARGIN, WIDTH, rank_colour
from tp_teach.plot.words import counted, listed, ranks_in_words
from tp_teach.run import Run

SAME = 1e-5  # relative difference below which ranks are said to agree
MOST_RANKS = 8


@neutral()
def loss(run: Run, *others: Run, labels: Sequence[str] | None = None) -> Picture:
    """The loss over the training steps, of `run` and of any `others` in the same axes.

    One curve a run where its ranks agree (to 1 part in 100,000), else one curve a rank, and the figure
    says that they disagree. Earlier curves are wider, so that curves which coincide are all seen. The
    loss has no unit; steps are numbers of optimizer steps.

    Raises ValueError when a run has no rows in `steps`, or `labels` does not have one label a run.
    """
    runs = [run, *others]
    names = _labels(runs, labels)
    curves, split = [], []
    for name, one in zip(names, runs, strict=True):
        found = _curves(one, name if len(runs) > 1 or labels else "", len(curves))
        curves += found
        split += [name] if len(found) > 1 else []
    page = Page()
    y = page.title("Loss, step by step", _subtitle(runs, split))
    if len(curves) > 1:
        y = legend(page, y, curves)
    room = WIDTH - 2 * MARGIN - LEFT - 0.1
    page.plot(MARGIN + LEFT, y + 0.1, room, HEIGHT, lambda axes: lines(axes, curves, STEP, "loss (no unit)"))
    return page.picture(y + 0.1 + HEIGHT + 0.62 + MARGIN, _alt(curves, runs, split))


def _labels(runs: Sequence[Run], labels: Sequence[str] | None) -> list[str]:
    if labels is not None:
        if isinstance(labels, str) or len(labels) != len(runs):
            raise ValueError(f"labels={labels!r} does not have one label a run; there are {counted(len(runs), 'run')}")
        return [str(label) for label in labels]
    sizes = [counted(int(run.world.get("size") or run.steps["rank"].nunique()), "rank") for run in runs]
    return sizes if len(set(sizes)) == len(sizes) else [f"run {number}" for number in range(1, len(runs) + 1)]


Points = tuple[tuple[int, ...], tuple[float, ...]]


def _curves(run: Run, label: str, before: int) -> list[Curve]:
    """One curve where the ranks agree, else one for each set of ranks that do; of many, the least and the most."""
    rows = rows_of(run, "steps").dropna(subset=["step"]).sort_values(["rank", "step"])
    points = {
        int(rank): (tuple(map(int, part["step"])), tuple(map(float, part["loss"])))
        for rank, part in rows.groupby("rank")
    }
    sets = rank_sets({rank: _Loose(*values) for rank, values in points.items()})
    if len(sets) == 1:
        named = [("", points[min(points)], "")]
    elif len(sets) <= MOST_RANKS:
        named = [(ranks_in_words(ranks), points[ranks[0]], rank_colour(ranks[0])) for ranks in sets]
    else:
        named = [(f"{end} of {len(points)} ranks", _extreme(points, end), "") for end in ("least", "most")]
    curves = []
    for place, (who, (steps, losses), colour) in enumerate(named, start=before):
        words = ", ".join(part for part in (label, who) if part)
        curves.append(curve(words, steps, losses, place, colour))
    return curves


def _extreme(points: dict[int, Points], end: str) -> Points:
    """The least or the most of all ranks' losses at each step that they share."""
    by_rank = [dict(zip(*values, strict=True)) for values in points.values()]
    shared = sorted(set.intersection(*map(set, by_rank)))
    choose = min if end == "least" else max
    return tuple(shared), tuple(choose(losses[step] for losses in by_rank) for step in shared)


@dataclass(frozen=True, eq=False)
class _Loose:
    """A curve that equals another when all its losses are nearly equal."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Loose) or self.steps != other.steps:
            return False
        return all(
            abs(a - b) <= SAME * max(abs(a), abs(b)) if isfinite(a) and isfinite(b) else isfinite(a) == isfinite(b)
            for a, b in zip(self.losses, other.losses, strict=True)
        )


def _subtitle(runs: Sequence[Run], split: Sequence[str]) -> str:
    said = counted(len(runs), "run") if len(runs) > 1 else counted(int(runs[0].steps["rank"].nunique()), "rank")
    if not split:
        return f"{said}, all ranks agree" if runs[0].steps["rank"].nunique() > 1 else said
    return f"{said}: the ranks disagree" + (f" in {listed(split)}" if len(runs) > 1 else "")


def _alt(curves: Sequence[Curve], runs: Sequence[Run], split: Sequence[str]) -> str:
    said = [f"Loss over training steps, {counted(len(runs), 'run')}"]
    said += [f"the ranks{f' of {listed(split)}' if len(runs) > 1 else ''} disagree"] if split else []
    said += [f"{one.label}: {course(one)}" if one.label else course(one) for one in curves]
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in said)
