"""`grid`: a table of numbers as a heat map with every value written in its cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite, log10

import matplotlib
import pandas as pd
from matplotlib.colors import to_hex

from tp_teach.plot.page import CHIP, LINE, Page
from tp_teach.plot.picture import Picture, neutral
from tp_teach.plot.style import INK, MARGIN, PAPER, SMALL, WIDTH, is_dark
from tp_teach.plot.words import listed, width_of, wrap_name, wrap_words

MOST = 12  # rows and columns
ROW = 0.44  # inches
SIDE = 3.0  # inches, the widest column of row names
NOT_FINITE = "not finite"


@neutral()
def grid(
    table: pd.DataFrame,
    title: str,
    about: str = "",
    log: bool = False,
    zero: str = "equal",
    same: float = 0.0,
    digits: str = "",
) -> Picture:
    """A heat map: `table`'s index names the rows, its columns the columns; the farther a value is from
    zero, the darker its cell.

    On a `log` scale an exact zero is written as `zero` (such as "equal"). Values of at most `same` are rounding: they
    keep a pale cell, and the alt text calls them `rounding`, since their digits differ between machines. A name such as
    `rank 2` is drawn in that rank's colour and hatch. Cells are written with `digits`, by default 1e-03 or 0.12.

    Raises ValueError for an empty table, one with more than 12 rows or columns, and values that are not numbers.
    """
    values = _values(table)
    rows, columns = [str(name) for name in table.index], [str(name) for name in table.columns]
    digits = digits or (".0e" if log else ".2f")
    texts = [[_text(value, log, zero, digits) for value in row] for row in values]
    page = Page()
    y = page.title(title, about or ("darker: larger, log scale" if log else "darker: larger"))
    side = min(SIDE, max(_name_width(name) for name in rows)) + 0.15
    wide = min(1.9, (WIDTH - 2 * MARGIN - side) / len(columns))
    if max(width_of(text, SMALL) for row in texts for text in row) > wide - 0.08:
        raise ValueError(f"{len(columns)} columns leave too little room for the values; give fewer digits or columns")
    y = _heads(page, MARGIN + side, y, wide, columns)
    shades = _shades(values, log, same)
    for number, name in enumerate(rows):
        high = max(ROW, len(_lines(name, side - 0.15)) * SMALL * LINE + 0.08)
        _name(page, MARGIN, y, side, high, name)
        for column in range(len(columns)):
            x = MARGIN + side + column * wide
            shade = shades[number][column]
            page.box(x, y, wide, high, facecolor=shade, edgecolor=PAPER, linewidth=2, gid=f"cell {number} {column}")
            ink = PAPER if is_dark(shade) else INK
            looks = {"ha": "center", "va": "center_baseline", "color": ink}
            page.text(x + wide / 2, y + high / 2, texts[number][column], **looks)
        y += high
    return page.picture(y + MARGIN, _alt(title, rows, columns, values, texts, same))


def _values(table: pd.DataFrame) -> list[list[float]]:
    if not isinstance(table, pd.DataFrame) or table.empty:
        raise ValueError("the table has no cells; give a DataFrame with one row and one column or more")
    if max(table.shape) > MOST:
        raise ValueError(
            f"the table has {table.shape[0]} rows and {table.shape[1]} columns; at most {MOST} can be read"
        )
    try:
        return table.astype("float64").to_numpy().tolist()
    except (TypeError, ValueError) as error:
        raise ValueError(f"the table holds something that is not a number: {error}") from None


def _text(value: float, log: bool, zero: str, digits: str) -> str:
    if not isfinite(value):
        return NOT_FINITE
    text = format(value, digits)
    return zero if log and value == 0 else text.lstrip("-") if float(text.rstrip("%")) == 0 else text


def _shades(values: list[list[float]], log: bool, same: float) -> list[list[str]]:
    """A colour for each cell: white for none, and the darker the larger. Blues keep their order in grey print."""
    shown = [_height(v, log) for row in values for v in row if isfinite(v) and (abs(v) > same or not log)]
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    ramp = matplotlib.colormaps["Blues"]

    def shade(value: float) -> str:
        if not isfinite(value):
            return INK
        if log and abs(value) <= same:
            return to_hex(ramp(0.08 if value else 0.0))
        part = (_height(value, log) - low) / (high - low) if high > low else 1.0
        return to_hex(ramp(0.25 + 0.7 * part) if log else ramp(0.05 + 0.9 * part))

    return [[shade(value) for value in row] for row in values]


def _height(value: float, log: bool) -> float:
    return log10(abs(value)) if log and value else abs(value)


def _rank(name: str) -> int | None:
    found = re.fullmatch(r"rank (\d+)", name)
    return int(found[1]) if found else None


def _name_width(name: str) -> float:
    return CHIP + 0.6 if _rank(name) is not None else width_of(name, SMALL)


def _lines(name: str, room: float, weight: str = "normal") -> list[str]:
    return wrap_name(name, room, SMALL, weight) if "." in name else wrap_words(name, room, SMALL, weight)


def _name(page: Page, x: float, y: float, side: float, high: float, name: str) -> None:
    rank = _rank(name)
    if rank is not None:
        page.text(x, y + high / 2, "rank", va="center_baseline")
        page.chip(x + 0.5, y + (high - CHIP) / 2, rank, gid=f"copy row rank {rank}")
        return
    lines = _lines(name, side - 0.15)
    page.lines(x, y + high / 2 - (len(lines) * SMALL * LINE - 0.05) / 2, lines)


def _heads(page: Page, x: float, y: float, wide: float, columns: Sequence[str]) -> float:
    """The names of the columns, on as many lines as the longest takes; returns the `y` below."""
    heads = [[] if _rank(name) is not None else _lines(name, wide - 0.1, "bold") for name in columns]
    high = max(CHIP if not lines else len(lines) * SMALL * LINE for lines in heads)
    for column, (name, lines) in enumerate(zip(columns, heads, strict=True)):
        middle = x + (column + 0.5) * wide
        rank = _rank(name)
        if rank is not None:
            page.chip(middle - CHIP / 2, y + high - CHIP, rank, gid=f"copy column rank {rank}")
        page.lines(middle, y + high - len(lines) * SMALL * LINE, lines, ha="center", weight="bold")
    return y + high + 0.08


def _alt(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: list[list[float]],
    texts: list[list[str]],
    same: float,
) -> str:
    said = [f"{title}: {len(rows)} rows, {len(columns)} columns."]
    for name, row, words in zip(rows, values, texts, strict=True):
        cells = ["rounding" if 0 < abs(v) <= same else text for v, text in zip(row, words, strict=True)]
        said.append(f"{name}: {listed([f'{column} {cell}' for column, cell in zip(columns, cells, strict=True)])}.")
    return " ".join(said)
