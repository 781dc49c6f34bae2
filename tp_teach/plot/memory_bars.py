"""`memory`: how many bytes each rank held, by kind, at each moment of the measured step."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from tp_teach.plot.memory_data import (
    ASIDE,
    STACKED,
    Moment,
    drawn_ranks,
    in_words,
    moments_of,
    ranks_of,
    say_alike,
    side_by_side,
    verdict,
)
from tp_teach.plot.page import Page
from tp_teach.plot.picture import Picture, neutral
from tp_teach.plot.rows import origin, rows_of
from tp_teach.plot.style import (
    GRID,
    INK,
    KIND_STYLES,
    LABEL,
    MARGIN,
    SMALL,
    WIDTH,
    hatch_colour,
    in_binary,
    pale,
    unit_of,
    unit_sentence,
)
from tp_teach.plot.words import counted, width_of
from tp_teach.run import Run

LEFT, HEIGHT = 0.95, 3.4  # inches: room for the axis at the left, height of the axes
SUM = "The number above the bars is the sum of the kinds."
SUM_OF_LEFT = "The number above the bars is the sum of the left bar."
FILL = 0.8  # the part of a moment's width that its bars take
FAR = 2.5  # an allocator's mark more than so many times above the bars is named, not drawn
MARK = 4  # points, the line that marks what an allocator counts
MARKS = MappingProxyType(
    {"allocated": ("allocated", "-"), "reserved": ("reserved by the CUDA allocator", (0, (0.8, 0.5)))}
)


@neutral()
def memory(run: Run, predicted: Run | None = None) -> Picture:
    """Stacked bars: the bytes of each kind, for each rank, at each moment of the measured step.

    With `predicted`, or any other run of as many ranks, each bar is a pair: `run` left, the other right and paler, and
    the figure says whether they are equal and where they differ most. A moment that the other does not state, such as
    the peak of a prediction, has one bar.

    What an allocator counts (`allocated`, `reserved`) contains the stacked kinds and more, so it is a
    line across the bar. Of many ranks that hold the same, four are drawn; of many that differ, the one
    that needs least and the one that needs most. Bytes are in binary units.

    Raises ValueError when a run has no rows in `memory`, or none of a measured step, and for runs of other ranks.
    """
    moments = moments_of(rows_of(run, "memory"))
    if predicted is not None:
        moments = side_by_side(moments, moments_of(rows_of(predicted, "memory")))
    ranks, note = drawn_ranks(moments)
    everyone = ranks_of(moments)
    top = _top(moments, ranks)
    unit, size = unit_of(top)
    page = Page()
    which = origin(run) if predicted is None else f"{origin(run)} left, {origin(predicted)} right (paler)"
    y = page.title("Where the memory goes", f"{counted(len(everyone), 'rank')}, {which}: one training step")
    y = _legend(page, y, moments, ranks, top) + 0.25
    width = WIDTH - 2 * MARGIN - LEFT
    page.plot(MARGIN + LEFT, y, width, HEIGHT, lambda axes: _bars(axes, moments, ranks, top, unit, size))
    bottom = _names(page, y, moments, ranks, top)
    far = _far(moments, ranks, top)
    said = [SUM] if predicted is None else [verdict(moments), SUM_OF_LEFT]
    height = page.foot(bottom + 0.1, [s for s in (*said, note, far, unit_sentence(unit) + ".") if s])
    return page.picture(height, _alt(run, predicted, moments, everyone))


def _top(moments: Sequence[Moment], ranks: Sequence[int]) -> int:
    """The height of the axes in bytes: the highest bar, and the outlines that are not far above it."""
    stacks = max(moment.height(rank) for moment in moments for rank in ranks if rank in moment.bytes)
    marks = [moment.bytes.get(rank, {}).get(kind, 0) for moment in moments for rank in ranks for kind in ASIDE]
    return max([stacks, *(mark for mark in marks if mark <= FAR * stacks), 1])


def _legend(page: Page, y: float, moments: Sequence[Moment], ranks: Sequence[int], top: int) -> float:
    held = {kind for moment in moments for sizes in moment.bytes.values() for kind, size in sizes.items() if size}
    entries = [
        (kind, {"colour": colour, "hatch": hatch}) for kind, (colour, hatch) in KIND_STYLES.items() if kind in held
    ]
    for kind in ASIDE:
        if any(0 < moment.bytes.get(rank, {}).get(kind, 0) <= top for moment in moments for rank in ranks):
            entries.append((MARKS[kind][0], {"color": INK, "linewidth": MARK, "linestyle": MARKS[kind][1]}))
    return page.legend(MARGIN, y, entries)


def _places(moments: Sequence[Moment], ranks: Sequence[int]) -> tuple[float, list[list[float]]]:
    """The width of a bar and each bar's left edge, in inches from the axes' left end, by moment and rank."""
    slot = (WIDTH - 2 * MARGIN - LEFT) / len(moments)
    pitch = min(FILL * slot / len(ranks), 0.6)
    first = (slot - pitch * len(ranks)) / 2
    within = [first + pitch * (number + 0.09) for number in range(len(ranks))]
    return pitch * 0.82, [[number * slot + left for left in within] for number in range(len(moments))]


def _bars(axes: Axes, moments: Sequence[Moment], ranks: Sequence[int], top: int, unit: str, size: int) -> None:
    axes.set_xlim(0, WIDTH - 2 * MARGIN - LEFT)
    axes.set_ylim(0, top / size * 1.06)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xticks([])
    axes.grid(axis="y", color=GRID)
    axes.set_ylabel(f"bytes on one rank, {unit}")
    width, places = _places(moments, ranks)
    for moment, lefts in zip(moments, places, strict=True):
        for rank, left in zip(ranks, lefts, strict=True):
            bar = width / 2 if moment.beside else width
            _stack(axes, moment.bytes.get(rank, {}), left, bar, top, size, f"{moment.name} rank {rank}")
            beside = moment.beside.get(rank, {})
            _stack(axes, beside, left + bar, bar, top, size, f"beside {moment.name} rank {rank}", paler=True)


def _stack(
    axes: Axes, held: dict[str, int], left: float, width: float, top: int, size: int, name: str, paler: bool = False
) -> None:
    base = 0.0
    for kind in STACKED:
        value = held.get(kind, 0) / size
        colour, hatch = KIND_STYLES[kind]
        if value:
            face, lines = (pale(colour), colour) if paler else (colour, hatch_colour(colour))
            looks = {"facecolor": face, "edgecolor": lines, "hatch": hatch, "linewidth": 0}
            axes.add_patch(Rectangle((left, base), width, value, **looks))
            edge = {"fill": False, "edgecolor": INK, "linewidth": 0.8, "gid": f"{name} {kind}"}
            axes.add_patch(Rectangle((left, base), width, value, **edge))
        base += value
    for kind in ASIDE:
        mark = held.get(kind, 0)
        if 0 < mark <= top:
            looks = {"color": INK, "linewidth": MARK, "linestyle": MARKS[kind][1], "solid_capstyle": "butt"}
            ends = (left, left + width)
            axes.add_line(Line2D(ends, (mark / size,) * 2, gid=f"{name} {kind}", **looks))


def _names(page: Page, y: float, moments: Sequence[Moment], ranks: Sequence[int], top: int) -> float:
    """Totals above the bars; below them the ranks and the moments. Returns the `y` below."""
    width, places = _places(moments, ranks)
    x = MARGIN + LEFT
    slot = (WIDTH - 2 * MARGIN - LEFT) / len(moments)
    below = y + HEIGHT + 0.08
    boxed = width >= 0.27
    page.text(x - 0.1, below + 0.15, "rank", ha="right", va="center_baseline")
    for m, (moment, lefts) in enumerate(zip(moments, places, strict=True)):
        for rank, left in zip(ranks, lefts, strict=True):
            if boxed:
                page.rank_box(x + left, below, width, 0.3, rank)
                page.badge(x + left + width / 2, below + 0.15, str(rank))
            elif width_of(str(rank), SMALL) < width:
                page.text(x + left + width / 2, below + 0.15, str(rank), ha="center", va="center_baseline")
        centre = x + (m + 0.5) * slot
        page.text(centre, below + 0.36, moment.name, LABEL, ha="center", weight="bold")
        stacks = [moment.stack(rank) for rank in ranks if rank in moment.bytes]
        said = _between(min(stacks), max(stacks))
        page.plated(centre, y + HEIGHT - _above(moment, ranks, top) - 0.2, said, ha="center")
    return below + 0.36 + LABEL * 1.28 / 72


def _between(low: int, high: int) -> str:
    """`1.1–3.77 MiB`: both in the unit of the higher."""
    last = in_binary(high)
    _, size = unit_of(high)
    first = f"{low / size:.3g}"
    return last if in_binary(low) == last else f"{first}–{last}"


def _above(moment: Moment, ranks: Sequence[int], top: int) -> float:
    """Inches from the axis to above the bars, and above every mark that would run through a number there."""
    inches = HEIGHT / top / 1.06
    height = max(moment.height(rank) for rank in ranks if rank in moment.bytes) * inches
    marks = sorted(moment.bytes.get(rank, {}).get(kind, 0) for rank in ranks for kind in ASIDE)
    for mark in marks:
        if mark <= top and height - 0.1 < mark * inches < height + 0.36:
            height = mark * inches
    return height


def _far(moments: Sequence[Moment], ranks: Sequence[int], top: int) -> str:
    found = []
    for kind in ASIDE:
        marks = [moment.bytes.get(rank, {}).get(kind, 0) for moment in moments for rank in ranks]
        if max(marks) > top:
            found.append(f"Off the scale: {kind} by the allocator, up to {in_binary(max(marks))}.")
    return " ".join(found)


def _alt(run: Run, predicted: Run | None, moments: Sequence[Moment], ranks: Sequence[int]) -> str:
    head = f"Memory by kind over one training step, {counted(len(ranks), 'rank')}, {origin(run)}."
    if predicted is not None:
        head = f"{head[:-1]} beside {origin(predicted)}. {verdict(moments)}"
    alike = " Every rank alike." if len(ranks) > 1 and say_alike(moments) else ""
    return " ".join([head + alike, *(sentence for sentence in map(in_words, moments) if sentence)])
