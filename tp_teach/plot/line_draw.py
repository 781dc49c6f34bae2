"""Lines over training steps, drawn so that curves which coincide are all seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tp_teach.plot.page import Page
from tp_teach.plot.style import GRID, MARGIN, QUIET, RUN_COLOURS, RUN_DASHES
from tp_teach.plot.words import counted

STEP = "training step (number)"
LEFT, HEIGHT = 0.95, 3.6  # inches: room for the axis at the left, height of the axes


@dataclass(frozen=True)
class Curve:
    """One line: its words, its points, and how it looks."""

    label: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    colour: str
    dash: object
    width: float


def curve(
    label: str, steps: Sequence[int], values: Sequence[float], place: int, colour: str = "", least: float = 2.5
) -> Curve:
    """The `place`-th curve of a figure: earlier curves are wider, each has another dash."""
    looks = (colour or RUN_COLOURS[place % len(RUN_COLOURS)], RUN_DASHES[place % len(RUN_DASHES)])
    return Curve(label, tuple(steps), tuple(values), *looks, max(6.5 - 1.5 * place, least))


def legend(page: Page, y: float, curves: Sequence[Curve]) -> float:
    """One entry a curve; returns the `y` below."""
    entries = [
        (curve.label, {"color": curve.colour, "linestyle": curve.dash, "linewidth": curve.width}) for curve in curves
    ]
    return page.legend(MARGIN, y, entries, swatch=0.7)


def lines(axes: Axes, curves: Sequence[Curve], across: str, up: str, log: bool = False) -> None:
    """Draw the curves; `across` and `up` are the words of the axes. On a log scale, an exact zero has a place too."""
    for curve in curves:
        looks = {"color": curve.colour, "linestyle": curve.dash, "linewidth": curve.width, "gid": curve.label}
        axes.plot(curve.steps, curve.values, marker="o" if len(curve.steps) == 1 else None, markersize=10, **looks)
    axes.grid(color=GRID)
    axes.margins(x=0.02, y=0.06)
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
    finite = [value for curve in curves for value in curve.values if isfinite(value)]
    if log and finite and min(finite) > 0:
        axes.set_yscale("log")
    elif log and any(finite):  # a log scale has no zero: below the least value there is, it becomes linear
        axes.set_yscale("symlog", linthresh=min(abs(value) for value in finite if value))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    if not finite:
        axes.text(0.5, 0.5, "no value is a finite number", ha="center", transform=axes.transAxes, color=QUIET)


def course(curve: Curve, digits: str = ".2f") -> str:
    """How a curve runs, in words; values are written with `digits`."""
    first, last = (format(value, digits) for value in (curve.values[0], curve.values[-1]))
    bad = next((step for step, value in zip(curve.steps, curve.values, strict=True) if not isfinite(value)), None)
    if bad is not None:
        return f"not a finite number from step {bad} on"
    if len(curve.values) == 1:
        return f"{first} in the only step"
    way = "falls " if curve.values[-1] < curve.values[0] else "rises "
    return f"{'' if first == last else way}from {first} to {last} {where(curve.steps)}"


def where(steps: Sequence[int]) -> str:
    """The steps of a curve, in words: `over 40 steps`, or `at 20 recorded steps, 0 to 190` where some were left out."""
    if len(steps) == 1:
        return f"in step {steps[0]}"
    if steps[-1] - steps[0] + 1 == len(steps):
        return f"over {counted(len(steps), 'step')}"
    return f"at {len(steps)} recorded steps, {steps[0]} to {steps[-1]}"
