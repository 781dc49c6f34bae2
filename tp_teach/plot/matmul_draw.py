"""`matmul`: a matrix product cut over ranks, to scale, with what must move to join the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tp_teach.plot.matmul_data import Matrix, Product, in_words, needs, products
from tp_teach.plot.page import Page
from tp_teach.plot.picture import Picture, neutral
from tp_teach.plot.shard_data import shape_in_words
from tp_teach.plot.shard_draw import OUTSIDE, SIDE, Size, matrix
from tp_teach.plot.style import LABEL, MARGIN, QUIET, SMALL, WIDTH, collective
from tp_teach.plot.words import width_of

ROOM = WIDTH - 2 * MARGIN
SIGN = 0.4  # inches for an @ or an =
HIGHEST = 1.7  # inches, the tallest matrix
SHORTEST = 0.5  # inches, the shortest side drawn
WHOLE = "#ececec"  # what every rank has alike belongs to no rank's colour


@neutral()
def matmul(cut: str = "column", shape: Sequence[int] = (32, 96, 384), world_size: int = 4) -> Picture:
    """A product x @ W = y of which each rank holds a part, drawn to scale, and the collective that joins the outputs.

    `cut` is "column", "row", or "pair": column then row, as in an MLP block. `shape` is tokens, input features and
    output features; for the pair tokens, width and hidden features. W is drawn as (in, out); `nn.Linear.weight` is its
    transpose (Shoeybi et al. 2019, section 3). Shapes count elements.

    Raises ValueError for another `cut`, three sizes that are not whole numbers, and a size that does not divide.
    """
    found = products(cut, shape, world_size)
    lengths = _lengths(found, world_size)
    title = {"column": "Column parallel", "row": "Row parallel", "pair": "Column, then row"}[cut]
    page = Page()
    page.rank_key(range(world_size))
    y = page.title(title, _about(cut, found))
    for product in found:
        y = _product(page, y, product, lengths, world_size)
    if world_size > 1:
        y = _join(page, y + 0.05, found[-1][2], lengths, world_size)
    height = page.foot(y + 0.1, [_transposed(found, world_size), _scale(found, lengths)])
    return page.picture(height, in_words(cut, found, world_size))


def _about(cut: str, found: Sequence[Product]) -> str:
    left, right, result = (m.name for m in found[0])
    if cut == "pair":
        return "h = x @ A,  y = GELU(h) @ B: nothing moves between the two"
    what = "whole columns of y" if cut == "column" else "a part of every sum in y"
    return f"{result} = {left} @ {right}: each rank computes {what}"


def _lengths(found: Sequence[Product], ranks: int) -> Mapping[str, float]:
    """Inches for each dimension by name: one scale for all, as large as the page allows, no side too short."""
    sizes = {dim: size for product in found for m in product for dim, size in zip(m.dims, m.shape, strict=True)}
    scale = HIGHEST / max(m.shape[0] for product in found for m in product)
    while True:
        lengths = {dim: max(SHORTEST, scale * size) for dim, size in sizes.items()}
        if all(sum(_slot(m, lengths, ranks) for m in product) + 2 * SIGN <= ROOM for product in found):
            return lengths
        scale *= 0.97


def _slot(m: Matrix, lengths: Mapping[str, float], ranks: int) -> float:
    """The width that a matrix takes with its words."""
    return max(SIDE + lengths[m.dims[1]] + OUTSIDE, *(width_of(words, SMALL) for words in _words(m, ranks))) + 0.1


def _words(m: Matrix, ranks: int) -> tuple[str, str]:
    return shape_in_words(m.shape), m.held(ranks)


def _product(page: Page, y: float, product: Product, lengths: Mapping[str, float], ranks: int) -> float:
    x, bottoms = MARGIN, []
    top = y + 1.02
    middle = top + max(lengths[m.dims[0]] for m in product) / 2
    for sign, m in zip(("", "@", "="), product, strict=True):
        if sign:
            page.text(x + SIGN / 2, middle, sign, LABEL, ha="center", va="center", weight="bold")
            x += SIGN
        below = page.text(x, y, m.name, LABEL, weight="bold")
        page.lines(x, below, _words(m, ranks))
        height = lengths[m.dims[0]]
        bottoms.append(_matrix(page, x, middle - height / 2, m, lengths, ranks))
        x += _slot(m, lengths, ranks)
    return max(bottoms) + 0.2


def _matrix(page: Page, x: float, y: float, m: Matrix, lengths: Mapping[str, float], ranks: int) -> float:
    height, width = (lengths[dim] for dim in m.dims)
    if m.cut is not None and ranks > 1:
        lift = OUTSIDE if m.cut == 1 and width / ranks < 0.27 else 0  # matrix() leaves room for numbers above
        return matrix(page, x, y - lift, m.blocks(ranks), Size(width, height, 0))
    if m.partial and ranks > 1:
        step = min(0.09, 0.3 / ranks)
        for rank in reversed(range(ranks)):
            gid = f"block deck {m.name} rank {rank}"
            page.rank_box(x + SIDE + rank * step, y + rank * step, width, height, rank, gid=gid)
        y += (ranks - 1) * step
    else:
        page.filled(x + SIDE, y, width, height, WHOLE, "", gid=f"block {m.name} whole")
    page.text(x + 0.11, y + height / 2, str(m.shape[0]), rotation=90, ha="center", va="center", color=QUIET)
    return page.text(x + SIDE + width / 2, y + height + 0.06, str(m.shape[1]), ha="center", color=QUIET)


def _join(page: Page, y: float, m: Matrix, lengths: Mapping[str, float], ranks: int) -> float:
    """The parts of every rank, the collective, and the whole output."""
    op = "all_reduce" if m.partial else "all_gather"
    glyph, colour = collective(op)
    page.text(MARGIN, y, glyph, LABEL, weight="bold", color=colour)
    sentence = needs("row" if m.partial else "column")
    y = page.text(MARGIN + 0.3, y, sentence) + 0.1
    height, width = (lengths[dim] for dim in m.dims)
    part = width if m.partial else width / ranks
    between = 0.3 if m.partial else 0.14
    room = ROOM - (ranks - 1) * between - 0.75
    shrink = min(1.0, room / (ranks * part + width), 1.1 / height)
    part, width, height = part * shrink, width * shrink, height * shrink
    x = MARGIN
    for rank in range(ranks):
        page.rank_box(x, y, part, height, rank, gid=f"block part {m.name} rank {rank}")
        if min(part, height) > 0.27:
            page.badge(x + part / 2, y + height / 2, str(rank))
        else:
            page.text(x + part / 2, y + height + 0.05, str(rank), ha="center", weight="bold")
        x += part
        if rank + 1 < ranks:
            page.text(x + between / 2, y + height / 2, "+" if m.partial else "", LABEL, ha="center", va="center")
            x += between
    page.arrow((x + 0.12, y + height / 2), (x + 0.6, y + height / 2), colour)
    page.filled(x + 0.75, y, width, height, WHOLE, "", gid=f"block {m.name} joined")
    if width_of(m.name, LABEL, "bold") < width:
        page.badge(x + 0.75 + width / 2, y + height / 2, m.name)
    return y + height + (0.1 if min(part, height) > 0.27 else 0.36)


def _transposed(found: Sequence[Product], ranks: int) -> str:
    if ranks == 1:
        return "nn.Linear stores its weight transposed, (out, in)."
    cuts = [f"Shard({1 - weight.cut})" for _, weight, _ in found if weight.cut is not None]
    names = " and ".join(f"{cut} of {product[1].name}" for cut, product in zip(cuts, found, strict=True))
    return f"nn.Linear stores its weight transposed, (out, in): there the cut is {names}."


def _scale(found: Sequence[Product], lengths: Mapping[str, float]) -> str:
    sizes = {dim: size for product in found for m in product for dim, size in zip(m.dims, m.shape, strict=True)}
    scale = min(lengths[dim] / size for dim, size in sizes.items())
    longer = [
        f"{dim} {lengths[dim] / size / scale:.2g}×" for dim, size in sizes.items() if lengths[dim] > 1.02 * scale * size
    ]
    return f"To scale, but drawn longer: {', '.join(longer)}." if longer else "To scale."
