"""`scaling`: how many times quicker a step is on several tensor-parallel ranks than on one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tp_teach.plot.line_draw import HEIGHT, LEFT, Curve, curve, legend, lines
from tp_teach.plot.page import Page
from tp_teach.plot.picture import Picture, neutral
from tp_teach.plot.style import LABEL, MARGIN, QUIET, WIDTH
from tp_teach.plot.words import counted, wrap_words

MOST = 8
IDEAL = {"color": QUIET, "linewidth": 1.5, "linestyle": (0, (1, 1.5))}


@neutral()
def scaling(series: Mapping[str, Any], about: str = "") -> Picture:
    """Speed-up over one rank, a line for each name: a `tp.plan`, or seconds of a step by number of ranks, {1: …, 2: …}.

    So what was measured stands beside what was predicted, and one machine beside another. Of several candidates of a
    plan with equal tp the quickest counts. A dotted line shows where n ranks are n times as quick as one. Below 1 the
    cut is slower than no cut. `about` is a line below the title.

    Raises ValueError for no series or more than 8, and for one without a time on one rank.
    """
    if not 1 <= len(series) <= MOST:
        raise ValueError(f"series has {counted(len(series), 'line')}; a figure shows 1 to {MOST}")
    drawn = [_curve(name, given, place) for place, (name, given) in enumerate(series.items())]
    page = Page()
    y = legend(
        page, page.title("Speed-up over one rank", about or "time of one step on one rank, over that on n"), drawn
    )
    left = MARGIN + LEFT
    up = "\n".join(wrap_words("speed-up (times)", HEIGHT, LABEL))
    page.plot(left, y + 0.1, WIDTH - MARGIN - left - 0.1, HEIGHT, lambda axes: _draw(axes, drawn, up))
    height = page.foot(y + 0.1 + HEIGHT + 0.72, ["Dotted: n ranks are n times as quick as one."])
    return page.picture(height, _alt(drawn))


def _curve(name: str, given: Any, place: int) -> Curve:
    seconds: dict[int, float] = {}
    if isinstance(given, Mapping):
        seconds = {int(ranks): float(value) for ranks, value in given.items()}
    else:
        for candidate in given.candidates:
            seconds[candidate.tp] = min(candidate.step_seconds, seconds.get(candidate.tp, float("inf")))
    if 1 not in seconds:
        raise ValueError(f"series {name!r} has no time on 1 rank to compare with; add it")
    ranks = sorted(seconds)
    return curve(str(name), ranks, [seconds[1] / seconds[count] for count in ranks], place)


def _draw(axes: Axes, drawn: list[Curve], up: str) -> None:
    lines(axes, drawn, "tensor-parallel ranks (number)", up)
    for one in drawn:
        axes.plot(one.steps, one.values, "o", color=one.colour, markersize=8)
    most = max(count for one in drawn for count in one.steps)
    axes.plot((1, most), (1, most), **IDEAL, gid="ideal")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))


def _alt(drawn: list[Curve]) -> str:
    said = [
        f"{one.label}: "
        + ", ".join(f"{value:.2f} on {n}" for n, value in zip(one.steps, one.values, strict=True))
        + "."
        for one in drawn
    ]
    return " ".join(["Speed-up of a step over one rank, by number of tensor-parallel ranks.", *said])
