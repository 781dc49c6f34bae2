"""`parity`: how far the losses of runs are from a reference, step by step, and what rounding alone would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, floor, isfinite, log10

import pandas as pd
from matplotlib.axes import Axes

from tp_teach.plot.line_draw import HEIGHT, LEFT, STEP, Curve, curve, lines, where
from tp_teach.plot.page import Page
from tp_teach.plot.picture import Picture, neutral
from tp_teach.plot.rows import rows_of
from tp_teach.plot.style import INK, LABEL, MARGIN, PAPER, WIDTH
from tp_teach.plot.words import counted, wrap_words
from tp_teach.run import Run

SPACING = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distance from 1 to the next number, by dtype (IEEE 754-2019, table 3.5; bfloat16 has 8 bits of precision)."""
MOST = 8
ALLOWANCE = 10
"""Times rounding that the alt text still calls rounding: two runs that only round differ by several times."""
BAND, BAND_HATCH = "#bbbbbb", "\\\\"


@neutral()
def parity(runs: Mapping[str, Run], reference: Run, rounding: Sequence[Run] = ()) -> Picture:
    """The absolute difference between the loss of each run and that of `reference`, over steps, on a log scale.

    Dotted lines show one spacing of the reference's loss in each dtype of the runs: a loss that is stored in that
    dtype cannot be nearer without being equal. Rounding grows with training. How much is measured, not assumed:
    `rounding` are runs that differ from the reference by rounding alone (the sum in another order, weights nudged by
    one spacing); the band reaches up to their largest difference so far. Equal losses stand at zero, at the bottom.

    The loss is rank 0's, at the steps that both runs recorded. Raises ValueError for no run or more than 8, and for
    runs that share no step with the reference.
    """
    if not 1 <= len(runs) <= MOST:
        raise ValueError(f"runs has {counted(len(runs), 'run')}; a figure shows 1 to {MOST}")
    loss = _loss(reference, "the reference")
    apart = {name: _apart(_loss(run, name), loss, name) for name, run in runs.items()}
    band = _band([_apart(_loss(run, "rounding"), loss, "rounding") for run in rounding])
    spacings = {dtype: SPACING[dtype] * loss.abs() for dtype in _dtypes(runs)}
    scale = _Scale([*apart.values(), *spacings.values(), *([] if band is None else [band.tail(1)])])
    curves = [_curve(name, gaps, place, scale) for place, (name, gaps) in enumerate(apart.items())]
    page = Page()
    about = f"{counted(len(curves), 'run')} against the reference, log scale; at 0 the losses are equal"
    y = _legend(page, page.title("How far the losses are apart", about), curves, band is not None)
    left = MARGIN + LEFT + 0.2
    up = "\n".join(wrap_words("difference of the loss (no unit)", HEIGHT, LABEL))

    def draw(axes: Axes) -> None:
        lines(axes, curves, STEP, up, log=True)
        scale.set(axes)
        if band is not None:
            _draw_band(axes, band, scale)
        for dtype, spacing in spacings.items():
            _draw_spacing(axes, dtype, spacing)

    page.plot(left, y + 0.1, WIDTH - MARGIN - left - 0.1, HEIGHT, draw)
    return page.picture(y + 0.1 + HEIGHT + 0.62 + MARGIN, _alt(apart, _bounds(band, runs, loss)))


class _Scale:
    """A log axis that ends at the bottom with a place for 0."""

    def __init__(self, series: Sequence[pd.Series]) -> None:
        sizes = [float(value) for one in series for value in one if isfinite(value) and value > 0] or [1e-3, 1.0]
        self.low, self.high = floor(log10(min(sizes))), max(ceil(log10(max(sizes))), floor(log10(min(sizes))) + 1)

    @property
    def zero(self) -> float:
        """Where 0 is drawn."""
        return 10.0 ** (self.low - 1)

    def set(self, axes: Axes) -> None:
        """Give the axes this scale, with at most nine ticks."""
        step = -(-(self.high - self.low) // 7)
        powers = range(self.low, self.high + 1, step)
        axes.set_yscale("log")
        axes.set_yticks([self.zero, *(10.0**power for power in powers)], ["0", *(f"$10^{{{n}}}$" for n in powers)])
        axes.minorticks_off()
        axes.set_ylim(self.zero / 2, 10.0**self.high * 2)


def _curve(name: str, gaps: pd.Series, place: int, scale: _Scale) -> Curve:
    drawn = [scale.zero if gap == 0 else float(gap) for gap in gaps]
    # Differences jump from step to step; a line as wide as a loss curve's would fill the axes.
    return replace(curve(name, [int(step) for step in gaps.index], drawn, place), width=max(4.5 - 0.7 * place, 2.0))


def _legend(page: Page, y: float, curves: Sequence[Curve], band: bool) -> float:
    entries = [(one.label, {"color": one.colour, "linestyle": one.dash, "linewidth": one.width}) for one in curves]
    entries += [("rounding alone", {"colour": BAND, "hatch": BAND_HATCH})] if band else []
    return page.legend(MARGIN, y, entries, swatch=0.7)


def _draw_band(axes: Axes, band: pd.Series, scale: _Scale) -> None:
    looks = {"facecolor": BAND, "edgecolor": "#8c8c8c", "hatch": BAND_HATCH, "linewidth": 0, "alpha": 0.5}
    axes.fill_between(band.index, scale.zero / 2, band.to_numpy(), gid="rounding", zorder=0.5, **looks)


def _draw_spacing(axes: Axes, dtype: str, spacing: pd.Series) -> None:
    axes.plot(spacing.index, spacing.to_numpy(), color=INK, linestyle=":", linewidth=2, gid=f"spacing {dtype}")
    looks = {"textcoords": "offset points", "ha": "right", "va": "bottom", "zorder": 5}
    plate = {"boxstyle": "square,pad=0.05", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.85}
    at = (spacing.index[-1], spacing.iloc[-1])
    axes.annotate(f"one spacing in {dtype}", at, (0, 5), bbox=plate, **looks)


def _loss(run: Run, name: str) -> pd.Series:
    """Rank 0's loss by step."""
    rows = rows_of(run, "steps").dropna(subset=["step"])
    rows = rows[rows["rank"] == rows["rank"].min()]
    return pd.Series(rows["loss"].to_numpy(), index=rows["step"].astype(int), name=name).sort_index()


def _apart(loss: pd.Series, reference: pd.Series, name: str) -> pd.Series:
    shared = loss.index.intersection(reference.index)
    if shared.empty:
        raise ValueError(f"run {name!r} and the reference share no step; record the loss at the same steps")
    return (loss[shared] - reference[shared]).abs()


def _band(gaps: Sequence[pd.Series]) -> pd.Series | None:
    """The largest difference so far, of all runs that differ by rounding alone."""
    return pd.concat(gaps, axis=1).max(axis=1).sort_index().cummax() if gaps else None


def _dtypes(runs: Mapping[str, Run]) -> list[str]:
    named = dict.fromkeys(str(run.config.get("dtype")) for run in runs.values())
    return [dtype for dtype in SPACING if dtype in named]


def _bounds(band: pd.Series | None, runs: Mapping[str, Run], loss: pd.Series) -> dict[str, pd.Series]:
    """How far each run may be from the reference by rounding: the band, and no less than a spacing of its dtype."""
    if band is None:
        return {}
    spacings = {name: SPACING.get(str(run.config.get("dtype")), 0.0) * loss.abs() for name, run in runs.items()}
    return {name: ALLOWANCE * pd.concat([band, one], axis=1).max(axis=1) for name, one in spacings.items()}


def _alt(apart: Mapping[str, pd.Series], bounds: Mapping[str, pd.Series]) -> str:
    """Words alone: the digits of a rounding difference depend on the machine."""
    said = [f"Difference between the loss of {counted(len(apart), 'run')} and the reference over training steps"]
    for name, gaps in apart.items():
        said.append(f"{name}: {_course(gaps, bounds.get(name))}")
    return " ".join(f"{part}." for part in said)


def _course(gaps: pd.Series, bound: pd.Series | None) -> str:
    steps = where([int(step) for step in gaps.index])
    if not all(map(isfinite, gaps)):
        return f"not a finite number from step {gaps.index[[not isfinite(gap) for gap in gaps]][0]} on"
    if not gaps.any():
        return f"equal {steps}"
    if bound is None:
        return f"not equal {steps}"
    shared = gaps.index.intersection(bound.index)
    return f"{'about as far as' if (gaps[shared] <= bound[shared]).all() else 'farther than'} rounding goes {steps}"
