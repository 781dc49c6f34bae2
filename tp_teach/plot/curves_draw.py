"""`curves`: a few named series over training steps, such as the losses of runs that differ in one thing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from tp_teach.plot.line_draw import HEIGHT, LEFT, STEP, Curve, course, curve, legend, lines
from tp_teach.plot.page import Page
from tp_teach.plot.picture import Picture, neutral
from tp_teach.plot.style import LABEL, MARGIN, WIDTH, rank_colour
from tp_teach.plot.words import counted, wrap_words

MOST = 12


@neutral()
def curves(
    series: Mapping[str, Sequence[float] | pd.Series],
    title: str,
    value: str = "loss (no unit)",
    log: bool = False,
    about: str = "",
    digits: str = ".2f",
) -> Picture:
    """Named lines in the same axes. A pandas Series brings its own steps as its index, a list counts from 0.

    `value` names what is drawn and its unit. On a log scale an exact zero stands at the bottom, below a linear stretch.
    A name such as `rank 2` takes that rank's colour. `about` is a line below the title. The alt text gives each line's
    first and last value with `digits`: choose so few that they are the same on every machine.

    Raises ValueError when there is nothing to draw, or more than 12 lines.
    """
    drawn = [_curve(name, values, place) for place, (name, values) in enumerate(series.items())]
    if not 1 <= len(drawn) <= MOST:
        raise ValueError(f"series has {counted(len(drawn), 'line')}; a figure shows 1 to {MOST}")
    page = Page()
    y = page.title(title, about or f"{counted(len(drawn), 'line')}{', log scale' if log else ''}")
    y = legend(page, y, drawn)
    left = MARGIN + LEFT + (0.2 if log else 0)
    up = "\n".join(wrap_words(value, HEIGHT, LABEL))
    page.plot(left, y + 0.1, WIDTH - MARGIN - left - 0.1, HEIGHT, lambda axes: lines(axes, drawn, STEP, up, log))
    return page.picture(y + 0.1 + HEIGHT + 0.62 + MARGIN, _alt(title, value, drawn, digits))


def _curve(name: str, values: Sequence[float] | pd.Series, place: int) -> Curve:
    values = values if isinstance(values, pd.Series) else pd.Series(list(values), dtype="float64")
    if values.empty:
        raise ValueError(f"series {name!r} is empty; give it one value a step")
    rank = re.fullmatch(r"rank (\d+)", str(name))
    colour = rank_colour(int(rank[1])) if rank else ""
    return curve(str(name), [int(step) for step in values.index], [float(v) for v in values], place, colour)


def _alt(title: str, value: str, drawn: Sequence[Curve], digits: str) -> str:
    said = [f"{title}: {value} over training steps", *(f"{one.label}: {course(one, digits)}" for one in drawn)]
    return " ".join(f"{part}." for part in said)
