"""`comm`: which collectives one step issued, and how many bytes they carried."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from tp_teach.plot.comm_data import Calls, calls_of, in_words, one_step, totals
from tp_teach.plot.page import Page
from tp_teach.plot.picture import Picture, neutral
from tp_teach.plot.rows import origin, rows_of
from tp_teach.plot.style import (
    GRID,
    INK,
    LABEL,
    MARGIN,
    PAPER,
    PHASE_COLOURS,
    QUIET,
    SMALL,
    WIDTH,
    collective,
    in_binary,
    unit_of,
    unit_sentence,
)
from tp_teach.plot.words import counted, exact, ranks_in_words, width_of
from tp_teach.run import Run

BAR, ROW = 0.24, 0.98  # inches: one bar, one collective with its line of text and its two bars
TEXT = 0.36  # inches of a row above its bars
PHASE = 1.6  # inches at the left, for the phase
VALUE = 1.1  # inches at the right of the longest bar, for its value
WIRE_HATCH = "///"


@neutral()
def comm(run: Run) -> Picture:
    """The collectives of the measured step: phase, collective, number, modules and bytes.

    Two bars each, per rank: the payload, which is the size that the collective is called with (the full
    array for all_gather and reduce_scatter), and the wire bytes, which are what one rank sends under a
    ring. Ranks that issue other calls are drawn apart. Bytes are in binary units.

    Raises ValueError when the run has no rows in `comm`.
    """
    rows, step = one_step(rows_of(run, "comm"))
    calls = calls_of(rows)
    sums = totals(rows)
    everyone = sorted(sums)
    page = Page()
    what = "what each rank issues" if len(everyone) > 1 else "what the only rank issues"
    when = "" if step is None else f" in step {step}"
    y = page.title("Which bytes move", f"{counted(len(everyone), 'rank')}, {origin(run)}: {what}{when}")
    y = _legend(page, y)
    top, height = y, len(calls) * ROW
    largest = max(max(item.payload, item.wire) for item in calls) or 1
    unit, size = unit_of(largest)
    axis = f"bytes for one rank and one step, in {unit}"
    page.plot(MARGIN + PHASE, top, WIDTH - 2 * MARGIN - PHASE, height, lambda axes: _bars(axes, calls, size, axis))
    _rows(page, top, calls, everyone, largest)
    height = page.foot(top + height + 0.78, [_total(sums), unit_sentence(unit) + "."])
    return page.picture(height, _alt(run, calls, sums))


def _legend(page: Page, y: float) -> float:
    solid, wire = {"colour": QUIET, "hatch": ""}, {"colour": PAPER, "hatch": WIRE_HATCH}
    entries = [("payload: size of the call", solid), ("wire: what one rank sends in a ring", wire)]
    return page.legend(MARGIN, y, entries) + 0.05


def _bars(axes: Axes, calls: Sequence[Calls], size: int, label: str) -> None:
    largest = max(max(item.payload, item.wire) for item in calls) / size or 1
    room = WIDTH - 2 * MARGIN - PHASE
    axes.set_xlim(0, largest * room / (room - VALUE))
    axes.set_ylim(len(calls) * ROW, 0)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.set_yticks([])
    axes.grid(axis="x", color=GRID)
    axes.set_xlabel(label)
    for row, item in enumerate(calls):
        colour = collective(item.op)[1]
        y = row * ROW + TEXT
        axes.add_patch(Rectangle((0, y), item.payload / size, BAR, facecolor=colour, edgecolor=INK, gid="payload"))
        y += BAR + 0.03
        wire = {"facecolor": PAPER, "edgecolor": colour, "hatch": WIRE_HATCH, "linewidth": 0}
        axes.add_patch(Rectangle((0, y), item.wire / size, BAR, **wire))
        axes.add_patch(Rectangle((0, y), item.wire / size, BAR, fill=False, edgecolor=INK, gid="wire"))


def _rows(page: Page, top: float, calls: Sequence[Calls], everyone: list[int], largest: int) -> None:
    room = WIDTH - 2 * MARGIN - PHASE
    left = MARGIN + PHASE
    for row, item in enumerate(calls):
        y = top + row * ROW
        if row == 0 or calls[row - 1].phase != item.phase:
            _phase(page, y, item.phase, sum(other.phase == item.phase for other in calls))
        glyph, colour = collective(item.op)
        page.plated(left + 0.1, y + 0.18, glyph, LABEL, weight="bold", color=colour)
        page.plated(left + 0.4, y + 0.18, item.op, LABEL, weight="bold")
        x = left + 0.4 + width_of(item.op, LABEL, "bold") + 0.2
        page.plated(x, y + 0.18, _facts(item, everyone, WIDTH - MARGIN - x))
        for value, offset in ((item.payload, 0), (item.wire, BAR + 0.03)):
            end = left + value / largest * (room - VALUE)
            middle = y + TEXT + offset + BAR / 2
            page.plated(end + 0.08, middle, in_binary(value))


def _phase(page: Page, y: float, phase: str, rows: int) -> None:
    colour = PHASE_COLOURS.get(phase, PHASE_COLOURS["other"])
    page.box(MARGIN, y + 0.06, 0.1, rows * ROW - 0.14, facecolor=colour, edgecolor="none")
    page.text(MARGIN + 0.2, y + 0.18, phase, LABEL, va="center_baseline", weight="bold")


def _facts(item: Calls, everyone: list[int], room: float) -> str:
    """Number and size, ranks, group and as many modules as fit into `room` inches."""
    facts = [item.sizes]
    if item.least is not None:
        facts.append(f"ranks differ, least {in_binary(item.least)}")
    elif list(item.ranks) != everyone:
        facts.append(f"{ranks_in_words(item.ranks)} only")
    facts += [item.group] if item.group else []
    where = item.where
    for shown in range(len(where), -1, -1):
        rest = len(where) - shown
        more = [f"{rest} more" if shown else counted(rest, "module")] if rest else []
        text = " · ".join([*facts, *(["in " + ", ".join(where[:shown] + more)] if where else [])])
        if width_of(text, SMALL) <= room:
            return text
    return facts[0]


def _total(sums: dict[int, tuple[int, int, int]]) -> str:
    _, payload, wire = zip(*sums.values(), strict=True)

    def between(sizes: Sequence[int]) -> str:
        low, high = in_binary(min(sizes)), in_binary(max(sizes))
        return low if low == high else f"{low} to {high}"

    return f"Together on one rank: payload {between(payload)}, wire {between(wire)}."


def _alt(run: Run, calls: Sequence[Calls], sums: dict[int, tuple[int, int, int]]) -> str:
    ranks = sorted(sums)
    head = f"Collectives of one training step, {counted(len(ranks), 'rank')}, {origin(run)}."
    if len(set(sums.values())) == 1:
        number, payload, wire = sums[ranks[0]]
        who = "Every rank" if len(ranks) > 1 else "The only rank"
        total = f"{who}: {counted(number, 'call')}, payload {exact(payload)}, wire {exact(wire)}."
    else:
        total = "Ranks differ: " + "; ".join(
            f"rank {rank} {counted(number, 'call')}, payload {exact(payload)}, wire {exact(wire)}"
            for rank, (number, payload, wire) in list(sums.items())[:8]
        )
        total += f"; and {len(ranks) - 8} more ranks." if len(ranks) > 8 else "."
    return " ".join([head, *(in_words(item, ranks) for item in calls), total])
