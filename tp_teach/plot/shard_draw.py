"""How one parameter is drawn: as a matrix cut into its ranks' blocks, or as a stack of copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from tp_teach.plot.page import Page
from tp_teach.plot.shard_data import Block, Cut, drawn_dims, sheets
from tp_teach.plot.style import QUIET, SMALL
from tp_teach.plot.words import counted, ranks_in_words, width_of

BADGE = 0.27  # inches: the least height and width of a block that has its rank's number inside
THINNEST = 0.42
LONGEST = 2.6
SIDE = 0.32  # inches left of a matrix, for its number of rows
OUTSIDE = 0.34  # inches right of or above a matrix, for numbers that do not fit into their blocks
CARD_DECK = (1.35, 0.56)
LEAN = 0.4  # how far a stacked copy is lower than the one before, for each inch to the right
MOST_SHEETS = 2
MOST_COPIES = 8


@dataclass(frozen=True)
class Size:
    """Inches: one copy of a drawn matrix, and the room from left to right that all its copies need.

    `note` says which side is out of scale.
    """

    width: float
    height: float
    room: float
    note: str = ""


def _grid(cut: Cut) -> tuple[int, int, int, int]:
    """Rows and columns in elements, and into how many blocks each is cut. A vector is one row."""
    dims = drawn_dims(cut)
    counts = [len({block.offset[dim] for block in cut.blocks if block.shape[dim]}) for dim in dims]
    extents = [cut.shape[dim] for dim in dims]
    if len(dims) < 2:
        return 1, extents[0] if extents else 1, 1, counts[0] if counts else 1
    return extents[0], extents[1], counts[0], counts[1]


def matrix_size(cut: Cut, room: float, target: float) -> Size:
    """The size of one copy of the matrix: its longer side near `target` inches, `room` for all copies."""
    rows, columns, row_blocks, column_blocks = _grid(cut)
    shown = min(len(sheets(cut)), MOST_SHEETS)
    widest = min(LONGEST, (room - SIDE - OUTSIDE) / shown - 0.15)
    need_w, need_h = (min(LONGEST, max(THINNEST, blocks * (BADGE + 0.03))) for blocks in (column_blocks, row_blocks))
    scale = max(target, need_h if rows >= columns else need_w) / max(rows, columns)
    scale = min(scale, widest / columns)
    width, height = max(columns * scale, min(need_w, widest)), max(rows * scale, need_h)
    needed = SIDE + shown * (width + 0.15) + OUTSIDE
    taller, wider = height / (rows * scale), width / (columns * scale)
    if len(drawn_dims(cut)) < 2 or max(taller, wider) < 1.02:
        return Size(width, height, needed)
    return Size(width, height, needed, f"drawn {max(taller, wider):.2g}× {'taller' if taller > wider else 'wider'}")


def matrix(page: Page, x: float, y: float, cut: Cut, size: Size) -> float:
    """Draw the copies of a cut matrix side by side from (x, y) on; returns the `y` below."""
    rows, columns, _, _ = _grid(cut)
    copies = sheets(cut)
    flat = len(drawn_dims(cut)) < 2
    left = x if flat else x + SIDE
    top = y + (OUTSIDE if any(_crowded(cut, copy, size)[1] for copy in copies) else 0)
    if not flat:
        page.text(x + 0.11, top + size.height / 2, str(rows), rotation=90, ha="center", va="center", color=QUIET)
    for copy in copies[:MOST_SHEETS]:
        _blocks(page, left, top, cut, copy, size)
        below = str(columns) + (" elements" if flat else "")
        page.text(left + size.width / 2, top + size.height + 0.06, below, ha="center", color=QUIET)
        left += size.width + 0.15
    bottom = top + size.height + 0.06 + SMALL * 1.28 / 72
    if len(copies) > MOST_SHEETS:
        others = ranks_in_words([block.rank for copy in copies[MOST_SHEETS:] for block in copy])
        bottom = page.text(x, bottom, f"and {counted(len(copies) - MOST_SHEETS, 'copy')} on {others}", color=QUIET)
    return bottom


def _place(cut: Cut, block: Block, size: Size) -> tuple[float, float, float, float]:
    """Left, top, width and height of a block in inches, from the matrix's top left corner."""
    dims = drawn_dims(cut)
    rows, columns, _, _ = _grid(cut)
    across = dims[-1:] or ()
    x, w = (block.offset[across[0]], block.shape[across[0]]) if across else (0, 1)
    y, h = (block.offset[dims[0]], block.shape[dims[0]]) if len(dims) == 2 else (0, 1)
    return x / columns * size.width, y / rows * size.height, w / columns * size.width, h / rows * size.height


def _crowded(cut: Cut, blocks: Sequence[Block], size: Size) -> tuple[list[Block], list[Block]]:
    """Blocks too low, and blocks too narrow, for a number inside."""
    low, narrow = [], []
    for block in blocks:
        _, _, width, height = _place(cut, block, size)
        if height < BADGE:
            low.append(block)
        elif width < max(BADGE, width_of(str(block.rank), SMALL, "bold") + 0.1):
            narrow.append(block)
    return low, narrow


def _blocks(page: Page, left: float, top: float, cut: Cut, blocks: Sequence[Block], size: Size) -> None:
    low, narrow = _crowded(cut, blocks, size)
    middles = {}
    for block in blocks:
        x, y, width, height = _place(cut, block, size)
        page.rank_box(left + x, top + y, width, height, block.rank, gid=f"block {cut.label} rank {block.rank}")
        middles[block] = (left + x + width / 2, top + y + height / 2)
        if block not in low and block not in narrow:
            page.badge(*middles[block], str(block.rank))
    for block in _every(low, [middles[block][1] for block in low], 0.25):
        page.text(left + size.width + 0.07, middles[block][1], str(block.rank), va="center_baseline", weight="bold")
    widest = max((width_of(str(block.rank), SMALL, "bold") for block in narrow), default=0)
    for block in _every(narrow, [middles[block][0] for block in narrow], widest + 0.08):
        page.text(middles[block][0], top - 0.06, str(block.rank), ha="center", va="bottom", weight="bold")


def _every(blocks: Sequence[Block], middles: Sequence[float], need: float) -> Sequence[Block]:
    """Every n-th block, so that numbers `need` inches wide do not touch; equal middles count once."""
    places = sorted(set(round(middle, 6) for middle in middles))
    pitch = min((after - before for before, after in pairwise(places)), default=need)
    kept = set(places[:: ceil(need / pitch)])
    first = {round(middle, 6): block for middle, block in reversed(list(zip(middles, blocks, strict=True)))}
    return [first[place] for place in places if place in kept]


def deck(page: Page, x: float, y: float, cut: Cut) -> float:
    """Draw the copies of a parameter that ranks hold whole as a stack, rank 0 in front; returns the `y` below."""
    copies = cut.blocks[:MOST_COPIES]
    rows, columns, _, _ = _grid(cut)
    step = min(0.16, 0.56 / max(1, len(copies) - 1))
    room_w, room_h = CARD_DECK[0] - step * (len(copies) - 1), CARD_DECK[1] - step * LEAN * (len(copies) - 1)
    scale = min(room_w / columns, room_h / rows)
    width, height = max(columns * scale, 0.16), max(rows * scale, 0.16)
    for depth in reversed(range(len(copies))):
        gid = f"copy {cut.label} rank {copies[depth].rank}"
        page.rank_box(x + depth * step, y + 0.06 + depth * step * LEAN, width, height, copies[depth].rank, gid=gid)
    return y + 0.06 + height + (len(copies) - 1) * step * LEAN
