"""Which parameters a shard map draws, and which rank holds which block of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

import pandas as pd

from tp_teach.plot.words import counted, exact, fold_numbers, fold_siblings, listed, ranks_in_words


@dataclass(frozen=True)
class Block:
    """What one rank holds of a parameter: `offset` and `shape` in elements, `size` in bytes."""

    rank: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Cut:
    """Parameters that are cut alike: drawn once. `size` is the bytes of one whole parameter."""

    label: str
    count: int
    placement: str
    shape: tuple[int, ...]
    size: int
    blocks: tuple[Block, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every rank that has the parameter has all of it."""
        return all(block.shape == self.shape for block in self.blocks)

    @property
    def times(self) -> str:
        """How many parameters this stands for: `× 4 layers`, or nothing."""
        if self.count == 1:
            return ""
        return f"× {self.count} {'alike' if '{' in self.label or '*' in self.label else 'layers'}"


def cuts(rows: pd.DataFrame, parameters: str | Sequence[str] | None) -> list[Cut]:
    """The parameters to draw, those that are cut alike folded into one, in the table's order."""
    wanted = _wanted(list(dict.fromkeys(rows["parameter"])), parameters)
    alike: dict[tuple, list[str]] = {}
    for name, group in rows[rows["parameter"].isin(wanted)].groupby("parameter", sort=False):
        alike.setdefault(_signature(group), []).append(str(name))
    found = []
    for (placement, shape, size, blocks), names in alike.items():
        for label, labels, folded in _folded(names):
            count = sum(len(folded[part]) for part in labels)
            found.append((names, Cut(label, count, placement, shape, size, blocks), folded[labels[0]][0]))
    order = {name: position for position, name in enumerate(wanted)}
    return [cut for _, cut, first in sorted(found, key=lambda item: order[item[2]])]


def _folded(names: list[str]) -> list[tuple[str, list[str], dict[str, list[str]]]]:
    by_number = fold_numbers(names)
    by_count: dict[int, list[str]] = {}
    for label, group in by_number.items():
        by_count.setdefault(len(group), []).append(label)
    return [(label, parts, by_number) for labels in by_count.values() for label, parts in fold_siblings(labels).items()]


def _wanted(names: list[str], parameters: str | Sequence[str] | None) -> list[str]:
    if parameters is None:
        return names
    patterns = [parameters] if isinstance(parameters, str) else list(parameters)
    if not patterns:
        raise ValueError("parameters=[] names nothing to draw; leave it out to draw every parameter")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            raise ValueError(f"parameters={pattern!r} is not in this run; it has {shown}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _signature(group: pd.DataFrame) -> tuple:
    group = group.drop_duplicates("rank", keep="last").sort_values("rank")
    first = group.iloc[0]
    shape = numbers(first["global_shape"])
    blocks = tuple(
        Block(int(rank), numbers(offset) or (0,) * len(shape), numbers(local), int(size))
        for rank, offset, local, size in zip(
            group["rank"], group["offset"], group["local_shape"], group["local_bytes"], strict=True
        )
    )
    return str(first["placement"]), shape, int(first["global_bytes"]), blocks


def numbers(shape: object) -> tuple[int, ...]:
    """`(96, 384)` as whole numbers; an empty cell as none."""
    return () if pd.isna(shape) else tuple(int(digits) for digits in re.findall(r"\d+", str(shape)))


def drawn_dims(cut: Cut) -> tuple[int, ...]:
    """The dimensions drawn as height and width: those that are cut, then the largest. One for a vector."""
    dims = range(len(cut.shape))
    is_cut = [any(block.shape[dim] != cut.shape[dim] for block in cut.blocks) for dim in dims]
    return tuple(sorted(sorted(dims, key=lambda dim: (not is_cut[dim], -cut.shape[dim]))[:2]))


def sheets(cut: Cut) -> list[list[Block]]:
    """The blocks as whole copies of the parameter: one, unless several ranks hold the same block."""
    copies: list[list[Block]] = []
    seen: dict[tuple[int, ...], int] = {}
    for block in cut.blocks:
        if prod(block.shape) == 0:
            continue
        turn = seen.get(block.offset, 0)
        seen[block.offset] = turn + 1
        copies += [[]] if turn == len(copies) else []
        copies[turn].append(block)
    return copies


def shape_in_words(shape: tuple[int, ...]) -> str:
    """As Python writes a shape: `(96, 384)`, `(96,)`."""
    return str(tuple(shape))


def in_words(cut: Cut) -> str:
    """One sentence of alt text: what is cut how, and who holds how much, in exact bytes."""
    name = cut.label + (f" ({cut.times[2:]})" if cut.times else "")
    head = f"{name}: {shape_in_words(cut.shape)}, {exact(cut.size)}"
    if cut.is_whole:
        what = "a plain tensor" if cut.placement == "plain" and len(cut.blocks) > 1 else "whole"
        return f"{head}, {what} on {ranks_in_words([block.rank for block in cut.blocks])}."
    held: dict[tuple, list[int]] = {}
    for block in cut.blocks:
        held.setdefault((block.shape, block.size), []).append(block.rank)
    parts = []
    for (shape, size), ranks in held.items():
        who = f"each of {counted(len(ranks), 'rank')}" if len(held) == 1 and len(ranks) > 1 else ranks_in_words(ranks)
        verb = "holds" if who.startswith("each") or len(ranks) == 1 else "hold"
        parts.append(f"{who} {verb} {f'{shape_in_words(shape)}, {exact(size)}' if prod(shape) else 'nothing'}")
    copies = len(sheets(cut))
    again = f", each block on {copies} ranks" if copies > 1 else ""
    return f"{head}, {cut.placement}: {listed(parts)}{again}."
