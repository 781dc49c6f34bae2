"""`shards`: which rank holds which block of which parameter, drawn to scale."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from tp_teach.plot.page import LINE, Page
from tp_teach.plot.picture import Picture, neutral
from tp_teach.plot.rows import origin, rows_of
from tp_teach.plot.shard_data import Cut, cuts, in_words, shape_in_words, sheets
from tp_teach.plot.shard_draw import CARD_DECK, deck, matrix, matrix_size
from tp_teach.plot.style import LABEL, MARGIN, QUIET, SMALL, TITLE, WIDTH, in_binary
from tp_teach.plot.words import counted, exact, ranks_in_words, wrap, wrap_name
from tp_teach.run import Run

GAP = 0.3  # inches between columns
MOST_CARDS = 8


@neutral()
def shards(run: Run, parameters: str | Sequence[str] | None = None) -> Picture:
    """A shard map: each parameter to scale, each rank's block at its offset.

    Parameters that are cut are drawn large; those that every rank holds whole are drawn as a stack of
    copies. Layers that are cut alike are drawn once. Each parameter has a scale of its own; a side that
    would be too thin is stretched, and the figure says by how much. Bytes are in binary units.

    `parameters` are names or patterns such as `layers.0.*`; by default every parameter is drawn.

    Raises ValueError when the run has no rows in `shards`, or no parameter of such a name.
    """
    rows = rows_of(run, "shards")
    drawn = cuts(rows, parameters)
    ranks = sorted(int(rank) for rank in rows["rank"].unique())
    page = Page()
    y = _head(page, run, ranks)
    cut = [item for item in drawn if not item.is_whole]
    whole = [item for item in drawn if item.is_whole]
    if cut:
        y = _panels(page, y, cut)
    if whole:
        y = _cards(page, y, whole, ranks)
    scale = ("Each drawing has its own scale.", "Numbers beside it count elements.", "KiB = 1,024 bytes.")
    height = page.foot(y, [_totals(drawn, ranks), *scale])
    return page.picture(height, _alt(run, drawn, ranks))


def _head(page: Page, run: Run, ranks: list[int]) -> float:
    y = page.text(MARGIN, MARGIN, "Who holds what", TITLE, weight="bold")
    page.rank_key(ranks)
    return page.text(MARGIN, y + 0.02, f"{counted(len(ranks), 'rank')}, {origin(run)}", color=QUIET) + 0.15


def _panels(page: Page, y: float, drawn: list[Cut]) -> float:
    columns = len(drawn) if len(drawn) <= 2 else 2 if len(drawn) == 4 else 3
    target = 2.2 if len(drawn) <= 2 else 1.7
    width = (WIDTH - 2 * MARGIN - (columns - 1) * GAP) / columns
    for start in range(0, len(drawn), columns):
        row = [_Panel(cut, width, target) for cut in drawn[start : start + columns]]
        top = y + max([panel.text_height for panel in row if not panel.beside], default=0) + 0.1
        y = max(panel.draw(page, MARGIN + column * (width + GAP), y, top) for column, panel in enumerate(row)) + 0.2
    return y


class _Panel:
    """One cut parameter: its matrix below its text, or beside it where the matrix is tall and narrow."""

    def __init__(self, cut: Cut, width: float, target: float) -> None:
        self.cut = cut
        self.size = matrix_size(cut, width, target)
        self.beside = self.size.height > 1.2 and width - self.size.room > 2.7
        self.names, self.lines = _panel_text(cut, width - self.size.room if self.beside else width, self.size.note)
        self.text_height = (len(self.names) * LABEL + len(self.lines) * SMALL) * LINE

    def draw(self, page: Page, x: float, y: float, below: float) -> float:
        """Draw at (x, y), the matrix at `below` if it stands under the text; returns the `y` under both."""
        left = x + self.size.room if self.beside else x
        after = page.lines(left, page.lines(left, y, self.names, LABEL, weight="bold"), self.lines, SMALL)
        return max(after, matrix(page, x, y if self.beside else below, self.cut, self.size))


def _panel_text(cut: Cut, width: float, note: str) -> tuple[list[str], list[str]]:
    shapes = list(dict.fromkeys(block.shape for block in cut.blocks if prod(block.shape)))
    shown = [shape_in_words(shape) for shape in shapes]
    local = " or ".join(shown) if len(shown) < 3 else f"{shown[-1]} to {shown[0]}"
    copies = len(sheets(cut))
    empty = [block.rank for block in cut.blocks if prod(block.shape) == 0]
    facts = [
        cut.placement,
        f"{_bytes([block.size for block in cut.blocks])} per rank",
        cut.times,
        f"each block on {copies} ranks" if copies > 1 else "",
        f"{ranks_in_words(empty)}: nothing" if empty else "",
        note,
    ]
    lines = wrap([shape_in_words(cut.shape), f"→ {local}"], width, SMALL, joint=" ")
    return wrap_name(cut.label, width, LABEL, "bold"), lines + wrap([f for f in facts if f], width, SMALL, joint=" · ")


def _bytes(sizes: list[int]) -> str:
    least, most = min(sizes), max(sizes)
    return in_binary(most) if least == most else f"{in_binary(least)} to {in_binary(most)}"


def _cards(page: Page, y: float, drawn: list[Cut], ranks: list[int]) -> float:
    everywhere = f"Copies: each of {len(ranks)} ranks holds them whole"
    if any(_is_plain(cut) for cut in drawn):
        everywhere = f"Not cut by torch: each of {len(ranks)} ranks has a plain tensor of its own"
    y = page.text(MARGIN, y, everywhere if len(ranks) > 1 else "Whole on the only rank", LABEL, weight="bold") + 0.1
    shown, rest = drawn, []
    if len(drawn) > MOST_CARDS:
        largest = sorted(drawn, key=lambda cut: -cut.size * cut.count)[: MOST_CARDS - 1]
        shown, rest = [cut for cut in drawn if cut in largest], [cut for cut in drawn if cut not in largest]
    width = (WIDTH - 2 * MARGIN - GAP) / 2
    for start in range(0, len(shown), 2):
        bottoms = [
            _card(page, MARGIN + column * (width + GAP), y, cut, width, ranks)
            for column, cut in enumerate(shown[start : start + 2])
        ]
        y = max(bottoms) + 0.12
    if rest:
        count, size = sum(cut.count for cut in rest), sum(cut.count * cut.size for cut in rest)
        y = page.text(MARGIN, y, f"… and {counted(count, 'smaller parameter')}, together {in_binary(size)} on a rank")
    return y + 0.08


def _card(page: Page, x: float, y: float, cut: Cut, width: float, ranks: list[int]) -> float:
    bottom = deck(page, x, y, cut)
    left, room = x + CARD_DECK[0] + 0.15, width - CARD_DECK[0] - 0.15
    holders = [block.rank for block in cut.blocks]
    plain = set(re.findall(r"\w+", cut.placement)) <= {"plain", "Replicate"} or len(ranks) == 1
    facts = [
        shape_in_words(cut.shape),
        in_binary(cut.size) + (" each" if cut.count > 1 else ""),
        cut.times,
        "" if plain else cut.placement,
        "" if holders == ranks else f"only {ranks_in_words(holders)}",
    ]
    below = page.lines(left, y, wrap_name(cut.label, room, SMALL, "bold"), SMALL, weight="bold")
    return max(bottom, page.lines(left, below, wrap([f for f in facts if f], room, SMALL, joint=" · ")))


def _is_plain(cut: Cut) -> bool:
    """Whether torch knows the tensor of each rank alone: copies if all ranks made it alike, parts if not."""
    return cut.placement == "plain"


def _if_copies(drawn: list[Cut], ranks: list[int]) -> str:
    return " if plain tensors are copies" if len(ranks) > 1 and any(map(_is_plain, drawn)) else ""


def _held(drawn: list[Cut], ranks: list[int]) -> tuple[list[int], int]:
    held = [sum(c.count * b.size for c in drawn for b in c.blocks if b.rank == rank) for rank in ranks]
    return held, sum(cut.count * cut.size for cut in drawn)


def _totals(drawn: list[Cut], ranks: list[int]) -> str:
    held, total = _held(drawn, ranks)
    return f"Drawn here: {_bytes(held)} on a rank, {in_binary(total)} in the whole model{_if_copies(drawn, ranks)}."


def _alt(run: Run, drawn: list[Cut], ranks: list[int]) -> str:
    held, total = _held(drawn, ranks)
    least, most = min(held), max(held)
    share = exact(most) if least == most else f"from {exact(least)} to {exact(most)}"
    once = _if_copies(drawn, ranks)
    head = f"Shard map, {counted(len(ranks), 'rank')}, {origin(run)}."
    return " ".join(
        [head, *map(in_words, drawn), f"Together: {share} on a rank, {exact(total)} in the whole model{once}."]
    )
