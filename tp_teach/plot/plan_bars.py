"""`plan`: the step time of each way to cut, by compute and communication, and whether it fits in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from tp_teach.plot.page import Page
from tp_teach.plot.picture import Picture, neutral
from tp_teach.plot.style import (
    GRID,
    INK,
    LABEL,
    MARGIN,
    PHASE_COLOURS,
    SMALL,
    WIDTH,
    hatch_colour,
    in_binary,
    unit_sentence,
)
from tp_teach.plot.words import counted, width_of

BAR, TEXT = 0.28, 0.36  # inches: one bar, and the line of words above it
ROW = BAR + TEXT + 0.14
VALUE = 1.2  # inches at the right of the longest bar, for its value
MOST = 12
PARTS = (("compute", PHASE_COLOURS["forward"], ""), ("communication", PHASE_COLOURS["optimizer"], "//"))
UNITS = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "µs", 1e6))


@dataclass(frozen=True)
class Bar:
    """One candidate: its words, its two parts in seconds, and its memory in bytes."""

    words: str
    parts: tuple[float, float]
    memory: int
    fits: bool

    @property
    def seconds(self) -> float:
        """The step."""
        return sum(self.parts)


@neutral()
def plan(plan: Any) -> Picture:
    """One bar for each candidate of a `tp.plan`: seconds of compute, then of communication, for one step.

    Above a bar stand the cut, the memory that a rank needs, and whether it fits; at its end the step and the share that
    communication takes. All of it is predicted. Memory is in binary units.

    Raises ValueError for more than 12 candidates.
    """
    tokens = {(candidate.batch_size, candidate.seq_len) for candidate in plan.candidates}
    bars = [_bar(candidate, len(tokens) > 1) for candidate in plan.candidates]
    if len(bars) > MOST:
        raise ValueError(f"the plan has {len(bars)} candidates; a figure shows 1 to {MOST}: ask for fewer")
    longest = max(bar.seconds for bar in bars)
    unit, scale = next((unit, scale) for least, unit, scale in UNITS if longest >= least)
    page = Page()
    about = f"{plan.model} on {plan.machine.name}, {counted(len(bars), 'way')} to cut: predicted"
    if len(tokens) == 1:
        about += " for {} × {} tokens".format(*tokens.pop())
    y = page.title("What a step would take", about)
    y = page.legend(MARGIN, y, [(name, {"colour": colour, "hatch": hatch}) for name, colour, hatch in PARTS]) + 0.05
    height = len(bars) * ROW
    label = f"time of one step, in {unit}"
    page.plot(MARGIN, y, WIDTH - 2 * MARGIN, height, lambda axes: _bars(axes, bars, scale, label))
    _labels(page, y, bars, longest, unit, scale)
    size = int(plan.machine.memory)
    foot = [
        "At a bar's end: the step, and the share of communication.",
        f"A rank has {in_binary(size)}.",
        f"{plan.recipe.total} bytes a parameter.",
        unit_sentence("GiB") + ".",
    ]
    return page.picture(page.foot(y + height + 0.78, foot), _alt(plan, bars, unit, scale))


def _bar(candidate: Any, with_tokens: bool) -> Bar:
    words = f"TP={candidate.tp}"
    words += " with SP" if candidate.sequence_parallel else ""
    words += f", DP={candidate.data_parallel}" if candidate.data_parallel > 1 else ""
    words += f", {candidate.batch_size} × {candidate.seq_len} tokens" if with_tokens else ""
    parts = (candidate.compute_seconds, candidate.communication_seconds)
    return Bar(words, parts, candidate.memory_bytes, candidate.fits)


def _bars(axes: Axes, bars: Sequence[Bar], scale: float, label: str) -> None:
    longest = max(bar.seconds for bar in bars) * scale
    room = WIDTH - 2 * MARGIN
    axes.set_xlim(0, longest * room / (room - VALUE))
    axes.set_ylim(len(bars) * ROW, 0)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.set_yticks([])
    axes.grid(axis="x", color=GRID)
    axes.set_xlabel(label)
    for number, bar in enumerate(bars):
        left = 0.0
        for (name, colour, hatch), value in zip(PARTS, bar.parts, strict=True):
            box = (left, number * ROW + TEXT), value * scale, BAR
            looks = {"facecolor": colour, "edgecolor": hatch_colour(colour), "hatch": hatch, "linewidth": 0}
            axes.add_patch(Rectangle(*box, **looks))
            axes.add_patch(Rectangle(*box, fill=False, edgecolor=INK, gid=f"bar {number} {name}"))
            left += value * scale


def _labels(page: Page, top: float, bars: Sequence[Bar], longest: float, unit: str, scale: float) -> None:
    room = WIDTH - 2 * MARGIN - VALUE
    for number, bar in enumerate(bars):
        y = top + number * ROW
        page.plated(MARGIN + 0.1, y + 0.2, bar.words, LABEL, weight="bold")
        x = MARGIN + 0.3 + width_of(bar.words, LABEL, "bold")
        page.plated(x, y + 0.2, f"{in_binary(bar.memory)} a rank: {'fits' if bar.fits else 'does not fit'}", SMALL)
        end = MARGIN + bar.seconds / longest * room + 0.08
        page.plated(end, y + TEXT + BAR / 2, f"{bar.seconds * scale:.3g} {unit}, {_share(bar)}", SMALL)


def _share(bar: Bar) -> str:
    return f"{bar.parts[1] / bar.seconds:.0%}"


def _alt(plan: Any, bars: Sequence[Bar], unit: str, scale: float) -> str:
    said = [
        f"{bar.words}: {bar.seconds * scale:.3g} {unit}, of which {_share(bar)} communication; "
        f"{in_binary(bar.memory)} a rank, {'fits' if bar.fits else 'does not fit'}."
        for bar in bars
    ]
    return " ".join([f"Predicted time of one step of {plan.model} on {plan.machine.name}.", *said])
