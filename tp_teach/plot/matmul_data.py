"""One matrix product cut over ranks: the matrices, who holds which part, and what must move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tp_teach.plot.shard_data import Block, Cut, shape_in_words
from tp_teach.plot.words import counted

CUTS = ("column", "row", "pair")
MOST_RANKS = 8


@dataclass(frozen=True)
class Matrix:
    """A matrix of a product: `dims` names its rows and columns, `cut` says which of them is cut, if any."""

    name: str
    dims: tuple[str, str]
    shape: tuple[int, int]
    cut: int | None
    partial: bool = False

    def local(self, ranks: int) -> tuple[int, int]:
        """What one rank holds of it."""
        rows, columns = (size // ranks if axis == self.cut else size for axis, size in enumerate(self.shape))
        return rows, columns

    def held(self, ranks: int) -> str:
        """Who holds it, in a few words."""
        if ranks == 1:
            return "whole"
        if self.partial:
            return "a partial sum a rank"
        return "whole on each rank" if self.cut is None else f"→ {shape_in_words(self.local(ranks))} a rank"

    def blocks(self, ranks: int) -> Cut:
        """The cut matrix as `shard_draw.matrix` takes it."""
        local = self.local(ranks)
        places = [
            tuple(rank * size if axis == self.cut else 0 for axis, size in enumerate(local)) for rank in range(ranks)
        ]
        blocks = tuple(Block(rank, place, local, 0) for rank, place in enumerate(places))
        return Cut(self.name, 1, "", self.shape, 0, blocks)


Product = tuple[Matrix, Matrix, Matrix]


def products(cut: str, shape: Sequence[int], ranks: int) -> list[Product]:
    """The products left @ right = result: one for a column or a row cut, two for the pair.

    Raises ValueError for another cut, a shape that is not three sizes, and a size that the ranks do not divide.
    """
    if cut not in CUTS:
        raise ValueError(f"cut={cut!r} is not known; use 'column', 'row' or 'pair'")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
        raise ValueError(f"world_size={ranks!r} does not work; use a whole number of ranks from 1 to {MOST_RANKS}")
    sizes = [size for size in shape if isinstance(size, int) and not isinstance(size, bool) and size > 0]
    if len(sizes) != 3 or len(shape) != 3:
        third = "hidden features" if cut == "pair" else "output features"
        raise ValueError(f"shape={shape!r} does not work; use three sizes: tokens, input features, {third}")
    tokens, inner, outer = sizes
    divided = inner if cut == "row" else outer
    if divided % ranks:
        below = divided // ranks * ranks
        near = f"{below} or {below + ranks}" if below else f"{ranks}"
        name = {"column": "output", "row": "input", "pair": "hidden"}[cut]
        raise ValueError(f"{divided} {name} features do not divide over {ranks} ranks; use {near}")
    if cut == "pair":
        up = _column("x", "A", "h", ("tokens", "d", "hidden"), (tokens, inner, outer))
        down = _row("GELU(h)", "B", "y", ("tokens", "hidden", "d"), (tokens, outer, inner))
        return [up, down]
    make = _column if cut == "column" else _row
    return [make("x", "W", "y", ("tokens", "in", "out"), (tokens, inner, outer))]


def _column(left: str, right: str, result: str, dims: tuple[str, str, str], sizes: tuple[int, int, int]) -> Product:
    (a, b, c), (m, k, n) = dims, sizes
    return Matrix(left, (a, b), (m, k), None), Matrix(right, (b, c), (k, n), 1), Matrix(result, (a, c), (m, n), 1)


def _row(left: str, right: str, result: str, dims: tuple[str, str, str], sizes: tuple[int, int, int]) -> Product:
    (a, b, c), (m, k, n) = dims, sizes
    partial = Matrix(result, (a, c), (m, n), None, partial=True)
    return Matrix(left, (a, b), (m, k), 1), Matrix(right, (b, c), (k, n), 0), partial


def in_words(cut: str, found: Sequence[Product], ranks: int) -> str:
    """Alt text: every product with its shapes, and what must move."""
    name = {"column": "Column-parallel", "row": "Row-parallel", "pair": "Column-parallel, then row-parallel"}[cut]
    said = [f"{name} matrix product over {counted(ranks, 'rank')}."]
    for left, right, result in found:
        said.append(
            f"{left.name} @ {right.name} = {result.name}: {', '.join(_one(m, ranks) for m in (left, right, result))}."
        )
    if ranks > 1:
        said.append(needs(cut))
    return " ".join(said)


def _one(matrix: Matrix, ranks: int) -> str:
    if matrix.partial and ranks > 1:
        held = f"each rank a partial sum of shape {shape_in_words(matrix.shape)}"
    elif matrix.cut is None or ranks == 1:
        held = "whole on every rank" if ranks > 1 else "whole"
    else:
        held = f"each rank {shape_in_words(matrix.local(ranks))}, {'columns' if matrix.cut else 'rows'} cut"
    return f"{matrix.name} {shape_in_words(matrix.shape)}, {held}"


def needs(cut: str) -> str:
    """Which collective joins the ranks' outputs."""
    if cut == "column":
        return "Only if y is needed whole, an all_gather puts the columns side by side."
    return "An all_reduce adds the partial sums, and every rank has y."
