"""`flow`: one block as a chain of modules, with placements and collectives on what passes between them."""

from __future__ import annotations

from collections.abc import Sequence

from tp_teach.plot.flow_data import Box, Edge, boxes_of, in_words, joined
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
    collective,
    unit_of,
    unit_sentence,
)
from tp_teach.plot.words import counted, wrap_name
from tp_teach.run import Run

SIDE_BY_SIDE = 3  # boxes in one row of the chain
BOX, EDGE = 1.2, 1.475  # inches: the width of a module, and of what passes to the next
LANE = 1.48  # inches: one direction, with its words
ICON = (0.9, 0.5)  # inches: the weight, cut by ranks
STEP = 0.25  # inches from one line of words to the next


@neutral()
def flow(run: Run, block: str = "layers.0") -> Picture:
    """The modules of one block, the placement of what passes between them, and the collectives that change it.

    Forward runs above from left to right, backward below from right to left. Each module's weight is drawn as it is
    cut. Placements are DTensor's words: Replicate, Shard(-1) for a part of the features, Shard(1) for a part of the
    sequence, Partial for a sum that is not added up yet. Bytes are the payload of one rank's calls in one step.

    Raises ValueError when the run has no rows in `shards`, or no such block.
    """
    shards = rows_of(run, "shards")
    boxes = boxes_of(shards, run.comm, block)
    ranks = sorted(int(rank) for rank in shards["rank"].unique())
    page = Page()
    page.rank_key(ranks)
    y = page.title(f"What flows through {block}", f"{counted(len(ranks), 'rank')}, {origin(run)}")
    entries = [(phase, {"color": PHASE_COLOURS[phase], "linewidth": 4}) for phase in ("forward", "backward")]
    y = page.legend(MARGIN, y, entries) + 0.05
    edges = {phase: joined(boxes, phase) for phase in ("forward", "backward")}
    for start in range(0, len(boxes), SIDE_BY_SIDE):
        y = _row(page, y, boxes, start, edges, len(ranks))
    sizes = [sum(edge.payloads) for found in edges.values() for edge in found if edge.op]
    foot = ["Residual additions are left out."]
    if sizes:
        foot = ["Bytes: payload of one step.", *dict.fromkeys(f"{unit_sentence(unit_of(s)[0])}." for s in sizes), *foot]
    return page.picture(page.foot(y, foot), _alt(run, boxes, block, len(ranks)))


def _row(page: Page, y: float, boxes: Sequence[Box], start: int, edges: dict[str, list[Edge]], ranks: int) -> float:
    """Up to three boxes, with what passes before the first and behind each; returns the `y` below."""
    x = MARGIN
    lanes = {"forward": y, "backward": y + LANE}
    for number in range(start, min(start + SIDE_BY_SIDE, len(boxes))):
        for phase, top in lanes.items():
            shown = number == 0 or number > start  # what passes from row to row stands at the end of the row before
            _edge(page, x, top, edges[phase][number] if shown else Edge("…"), phase)
        _box(page, x + EDGE, y, boxes[number], ranks)
        x += EDGE + BOX
    for phase, top in lanes.items():
        _edge(page, x, top, edges[phase][number + 1], phase)
    return y + 2 * LANE + 0.2


def _edge(page: Page, x: float, y: float, edge: Edge, phase: str) -> None:
    colour = PHASE_COLOURS[phase]
    line = y + 0.42
    tail, tip = (x + 0.06, line), (x + EDGE - 0.06, line)
    page.arrow(*((tail, tip) if phase == "forward" else (tip, tail)), colour)
    middle = x + EDGE / 2
    page.text(middle, y + 0.16, edge.before, ha="center", va="center_baseline")
    if edge.op:
        glyph, shade = collective(edge.op)
        plate = {"boxstyle": "circle,pad=0.12", "facecolor": PAPER, "edgecolor": shade, "linewidth": 2}
        looks = {"ha": "center", "va": "center", "weight": "bold", "color": shade, "bbox": plate}
        page.text(middle, line, glyph, LABEL, **looks)
        for row, words in enumerate((edge.op, edge.size, f"→ {edge.after}")):
            page.text(middle, line + 0.32 + row * STEP, words, ha="center", va="center_baseline")


def _box(page: Page, x: float, y: float, box: Box, ranks: int) -> None:
    height = 2 * LANE
    page.box(x, y, BOX, height, facecolor="#f4f4f4", edgecolor=INK, linewidth=1.2)
    names = wrap_name(box.name, BOX - 0.16, SMALL, "bold")
    lines = 1 if len(names) > 5 else 2
    below = page.lines(x + BOX / 2, y + 0.12, names, ha="center", weight="bold")
    left, top = x + (BOX - ICON[0]) / 2, max(below + 0.1, y + height / 2 - ICON[1] / 2)
    if box.cut is None or ranks == 1:
        page.filled(left, top, *ICON, GRID, "", gid=f"block {box.name}")
    else:
        for rank in range(ranks):
            part = (rank / ranks * ICON[0], 0) if box.cut else (0, rank / ranks * ICON[1])
            size = (ICON[0] / ranks, ICON[1]) if box.cut else (ICON[0], ICON[1] / ranks)
            page.rank_box(left + part[0], top + part[1], *size, rank, gid=f"block {box.name} rank {rank}")
    words = ["weight", box.placement][-lines:]
    page.lines(x + BOX / 2, top + ICON[1] + 0.08, words, ha="center", color=QUIET)


def _alt(run: Run, boxes: Sequence[Box], block: str, ranks: int) -> str:
    head = f"What flows through {block}, {counted(ranks, 'rank')}, {origin(run)}."
    return " ".join([head, in_words(boxes, "forward"), in_words(boxes, "backward")])
