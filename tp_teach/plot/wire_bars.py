"""`wire`: what a collective is called with, what a ring would send, and what was counted on the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
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
    PAPER,
    QUIET,
    SMALL,
    WIDTH,
    collective,
    hatch_colour,
    in_binary,
    unit_of,
    unit_sentence,
)
from tp_teach.plot.words import counted, exact, width_of

COLUMNS = ("op", "payload_bytes", "wire_bytes", "measured_bytes")
BAR, GAP, TEXT = 0.22, 0.04, 0.34  # inches: one bar, between two bars, and the line of words above three
ROW = TEXT + 3 * (BAR + GAP) + 0.16
VALUE = 1.1  # inches at the right of the longest bar, for its value
WORDS = ("payload: size of the call", "ring formula", "counted on the wire")


@dataclass(frozen=True)
class Sent:
    """One collective: bytes for one rank. `measured` is none where the platform counts nothing."""

    op: str
    payload: int
    wire: int
    measured: int | None

    @property
    def sizes(self) -> tuple[int, int, int | None]:
        """The three bars, from top to bottom."""
        return self.payload, self.wire, self.measured

    @property
    def ratio(self) -> float | None:
        """Counted over formula."""
        return self.measured / self.wire if self.measured is not None and self.wire else None


@neutral()
def wire(table: pd.DataFrame | Sequence[Mapping], about: str = "bytes for one rank and one call") -> Picture:
    """Three bars for each row: payload, ring formula, and bytes counted on the network interface.

    `table` has one row a collective with the columns op, payload_bytes, wire_bytes and measured_bytes, all for the same
    rank or ranks, which `about` names. A measured_bytes that is missing is said, not drawn. The alt text gives the
    counted bytes as a multiple of the formula, to the nearest half, so that it is the same in every run. Bytes are in
    binary units.

    Raises ValueError when the table has no rows or lacks a column.
    """
    rows = _rows(table)
    largest = max(size for row in rows for size in row.sizes if size is not None) or 1
    unit, size = unit_of(largest)
    page = Page()
    y = page.title("Payload, formula, wire", f"{counted(len(rows), 'collective')}: what each is called with and sends")
    looks = [{"colour": QUIET, "hatch": ""}, {"colour": PAPER, "hatch": "///"}, {"colour": QUIET, "hatch": ".."}]
    y = page.legend(MARGIN, y, list(zip(WORDS, looks, strict=True))) + 0.05
    height = len(rows) * ROW
    page.plot(MARGIN, y, WIDTH - 2 * MARGIN, height, lambda axes: _bars(axes, rows, size, f"{about}, in {unit}"))
    _labels(page, y, rows, largest)
    foot = [f"{unit_sentence(unit)}.", "A ring sends 2(n-1)/n of the payload in an all_reduce, (n-1)/n in its halves."]
    return page.picture(page.foot(y + height + 0.78, foot), _alt(rows))


def _rows(table: pd.DataFrame | Sequence[Mapping]) -> list[Sent]:
    frame = pd.DataFrame(table)
    missing = [column for column in COLUMNS if column not in frame.columns]
    if frame.empty or missing:
        what = f"no column {missing[0]!r}" if missing and not frame.empty else "no rows"
        raise ValueError(f"the table has {what}; it needs one row a collective with {', '.join(COLUMNS)}")
    return [
        Sent(str(op), int(payload), int(sent), None if pd.isna(measured) else int(measured))
        for op, payload, sent, measured in zip(*(frame[column] for column in COLUMNS), strict=True)
    ]


def _bars(axes: Axes, rows: Sequence[Sent], size: int, label: str) -> None:
    largest = max(value for row in rows for value in row.sizes if value is not None) / size or 1
    room = WIDTH - 2 * MARGIN
    axes.set_xlim(0, largest * room / (room - VALUE))
    axes.set_ylim(len(rows) * ROW, 0)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.set_yticks([])
    axes.grid(axis="x", color=GRID)
    axes.set_xlabel(label)
    for number, row in enumerate(rows):
        colour = collective(row.op)[1]
        faces = ((colour, colour, ""), (PAPER, colour, "///"), (colour, hatch_colour(colour), ".."))
        for place, (value, (face, edge, hatch)) in enumerate(zip(row.sizes, faces, strict=True)):
            box = (0, number * ROW + TEXT + place * (BAR + GAP)), (value or 0) / size, BAR
            axes.add_patch(Rectangle(*box, facecolor=face, edgecolor=edge, hatch=hatch, linewidth=0))
            axes.add_patch(Rectangle(*box, fill=False, edgecolor=INK, gid=f"bar {number} {COLUMNS[place + 1]}"))


def _labels(page: Page, top: float, rows: Sequence[Sent], largest: int) -> None:
    room = WIDTH - 2 * MARGIN - VALUE
    for number, row in enumerate(rows):
        y = top + number * ROW
        glyph, colour = collective(row.op)
        page.plated(MARGIN + 0.1, y + 0.17, glyph, LABEL, weight="bold", color=colour)
        page.plated(MARGIN + 0.4, y + 0.17, row.op, LABEL, weight="bold")
        if row.ratio is not None:
            x = MARGIN + 0.6 + width_of(row.op, LABEL, "bold")
            page.plated(x, y + 0.17, f"counted {row.ratio:.2f}× the formula")
        for place, value in enumerate(row.sizes):
            end = MARGIN + (value or 0) / largest * room + 0.08
            words = "not counted here" if value is None else in_binary(value)
            page.plated(end, y + TEXT + place * (BAR + GAP) + BAR / 2, words, SMALL)


def _alt(rows: Sequence[Sent]) -> str:
    said = []
    for row in rows:
        head = f"{row.op}: payload {exact(row.payload)}, ring formula {exact(row.wire)}"
        if row.ratio is None:
            said.append(f"{head}, not counted on the wire.")
        else:
            said.append(f"{head}, counted on the wire about {round(2 * row.ratio) / 2:g} times the formula.")
    return " ".join([f"Payload, ring formula and wire of {counted(len(rows), 'collective')}.", *said])
