"""`ring`: who sends which chunk to whom in a ring all_reduce, reduce_scatter or all_gather."""

from __future__ import annotations

from math import cos, pi, sin

from tp_teach.plot.page import CHIP, Page
from tp_teach.plot.picture import Picture, neutral
from tp_teach.plot.ring_data import Step, in_words, outcome, step_in_words, steps_of
from tp_teach.plot.style import (
    INK,
    LABEL,
    MARGIN,
    QUIET,
    SMALL,
    WIDTH,
    collective,
    hatch_colour,
    rank_colour,
    rank_hatch,
)
from tp_teach.plot.words import counted

GAP = 0.25  # inches between panels side by side
NUMBERS = 0.24  # inches left of a panel's rows, for the ranks, and above its columns, for the chunks
BETWEEN = 0.12  # inches between two rows, for the marks of what was received
RADIUS, MIDDLE = 1.25, 4.7  # inches: the ring of one step, and the room it takes
DOES = (("reduce_scatter", "add what arrives"), ("all_gather", "keep what arrives"))

Place = tuple[float, float, float, float]
"""Left, top, width and height, in inches."""


@neutral()
def ring(n: int = 4, op: str = "all_reduce", step: int | None = None) -> Picture:
    """The ring of `n` ranks: one small panel a step, or the one `step` drawn large, before and after.

    Rows are ranks and columns the chunks of the array. A chunk fills up with the colours of the ranks whose numbers
    have been added to it. The figure is arithmetic; nothing is run. `op` is all_reduce, reduce_scatter or all_gather.

    Raises ValueError for another `op`, for fewer than 2 or more than 8 ranks, and for a step that there is not.
    """
    steps = steps_of(n, op)
    last = len(steps) - 1
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or not 1 <= step <= last):
        raise ValueError(f"step={step!r} is not in a ring {op} of {n} ranks; its steps are 1 to {last}")
    page = Page()
    about = f"{op}, {counted(n, 'rank')}, {counted(last, 'step')}: each rank sends one chunk a step"
    page.rank_key(range(n))
    title = "The ring, step by step" if step is None else f"The ring, step {step} of {last}"
    y = _legend(page, page.title(title, about), steps if step is None else [steps[step]])
    y = _panels(page, y, steps, op) if step is None else _one(page, y, steps[step - 1], steps[step], op)
    rows = f"Rows are ranks, columns the {n} chunks of the array. Colours: whose numbers are in a chunk."
    frame = "" if op == "all_gather" else "A thick frame: those of all ranks."
    ends = [f"One rank sends {last}/{n} of the array altogether.", outcome(op)] if step is None else []
    height = page.foot(y, [part for part in (rows, frame, *ends) if part])
    return page.picture(height, in_words(op, steps) if step is None else step_in_words(op, steps, step))


def _legend(page: Page, y: float, steps: list[Step]) -> float:
    x = MARGIN
    for phase, does in DOES:
        if any(step.phase == phase for step in steps):
            glyph, colour = collective(phase)
            page.text(x, y + 0.12, glyph, LABEL, va="center_baseline", weight="bold", color=colour)
            page.text(x + 0.3, y + 0.12, f"{phase}: {does}", va="center_baseline")
            x += 3.7
    _mark(page, x + 0.1, y + 0.12)
    page.text(x + 0.3, y + 0.12, "arrived in this step", va="center_baseline")
    return y + 0.42


def _mark(page: Page, x: float, y: float) -> None:
    page.line([x], [y], marker="v", markersize=7, color=INK)


def _panels(page: Page, y: float, steps: list[Step], op: str) -> float:
    n = len(steps[0].held)
    columns = {2: 3, 4: 4}.get(n, 5)
    width = min(2.2, (WIDTH - 2 * MARGIN - (columns - 1) * GAP) / columns)
    high = 0.2 if n < 5 else 0.11
    for start in range(0, len(steps), columns):
        for column, step in enumerate(steps[start : start + columns]):
            x = MARGIN + column * (width + GAP)
            glyph, colour = collective(step.phase)
            if step.number:
                page.text(x + NUMBERS, y, glyph, LABEL, weight="bold", color=colour)
            left = x + NUMBERS + (0.3 if step.number else 0)
            page.text(left, y, f"step {step.number}" if step.number else "start", LABEL, weight="bold")
            bottom = _chunks(page, x, y + 0.32, width, high, step, op)
        y = bottom + 0.2
    return y


def _chunks(page: Page, x: float, y: float, width: float, high: float, step: Step, op: str) -> float:
    """One panel: the chunks of every rank after a step; returns the `y` below."""
    n = len(step.held)
    wide = (width - NUMBERS) / n
    top = y + NUMBERS + BETWEEN
    for chunk in range(n):
        middle = x + NUMBERS + (chunk + 0.5) * wide
        page.text(middle, y + NUMBERS / 2, str(chunk), ha="center", va="center_baseline", color=QUIET)
    arrived = {(move.receiver, move.chunk) for move in step.moves}
    places = {}
    for rank in range(n):
        row = top + rank * (high + BETWEEN)
        page.text(x + 0.06, row + high / 2, str(rank), ha="center", va="center_baseline", weight="bold")
        for chunk in range(n):
            left = x + NUMBERS + chunk * wide
            places[rank, chunk] = (left + 0.02, row, wide - 0.04, high)
            if (rank, chunk) in arrived:
                _mark(page, left + wide / 2, row - BETWEEN / 2)
    _fill(page, step, places, 1 if op == "all_gather" else n)
    return top + n * (high + BETWEEN)


def _fill(page: Page, step: Step, places: dict[tuple[int, int], Place], strips: int) -> None:
    """In each chunk a strip for each rank whose numbers are in it, and a thick frame where they are all there."""
    n = len(step.held)
    for rank in range(n):
        found = [place for (holder, chunk), place in places.items() if rank in step.held[holder][chunk]]
        if found:
            wide = found[0][2] / strips
            colour = rank_colour(rank)
            hatch = rank_hatch(rank) if wide > 0.06 else ""
            looks = {"facecolor": colour, "edgecolor": hatch_colour(colour), "hatch": hatch, "linewidth": 0}
            page.boxes([(x + rank % strips * wide, y, wide, high) for x, y, _, high in found], **looks)
    for whole, width in ((False, 0.8), (True, 1.8)):
        found = [at for (rank, chunk), at in places.items() if (len(step.held[rank][chunk]) == strips > 1) == whole]
        if found:
            page.boxes(found, facecolor="none", edgecolor=INK, linewidth=width)


def _one(page: Page, y: float, before: Step, after: Step, op: str) -> float:
    n = len(after.held)
    width = (WIDTH - 2 * MARGIN - MIDDLE) / 2
    right = WIDTH - MARGIN - width
    high = 0.42 if n < 5 else 0.22
    page.text(MARGIN + NUMBERS, y, "before", LABEL, weight="bold")
    page.text(right + NUMBERS, y, "after", LABEL, weight="bold")
    _chunks(page, MARGIN, y + 0.34, width, high, Step(before.number, "", (), before.held), op)
    bottom = _chunks(page, right, y + 0.34, width, high, after, op)
    centre = y + RADIUS + 0.55
    _ring(page, WIDTH / 2, centre, after)
    return max(bottom, centre + RADIUS + 0.5) + 0.2


def _ring(page: Page, x: float, y: float, step: Step) -> None:
    """The ranks on a circle, clockwise from the top, with an arrow to the next that names the chunk it carries."""
    n = len(step.held)
    colour = collective(step.phase)[1]
    turn = 2 * pi / n
    gap = 0.34 / RADIUS  # the angle that half a rank's square takes
    for move in step.moves:
        at = move.sender * turn - pi / 2
        arc = [at + gap + (turn - 2 * gap) * part / 20 for part in range(21)]
        xs, ys = [x + RADIUS * cos(a) for a in arc], [y + RADIUS * sin(a) for a in arc]
        page.line(xs, ys, color=colour, linewidth=3)
        page.arrow((xs[-2], ys[-2]), (xs[-1], ys[-1]), colour)
        middle = at + turn / 2
        side = cos(middle)
        ha = "center" if abs(side) < 0.2 else "left" if side > 0 else "right"
        out = RADIUS + (0.22 if ha == "center" else 0.12)
        page.text(x + out * cos(middle), y + out * sin(middle), f"chunk {move.chunk}", SMALL, ha=ha, va="center")
    for rank in range(n):
        at = rank * turn - pi / 2
        page.chip(x + RADIUS * cos(at) - CHIP / 2, y + RADIUS * sin(at) - CHIP / 2, rank, gid=f"block ring rank {rank}")
