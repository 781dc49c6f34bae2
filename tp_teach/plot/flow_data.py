"""What flows through one block: the placement of activations and gradients, and the collectives between modules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from tp_teach.plot.comm_data import one_step
from tp_teach.plot.style import in_binary
from tp_teach.plot.words import counted, exact, fold_siblings

FULL, FEATURES, SEQUENCE, PARTIAL = "Replicate", "Shard(-1)", "Shard(1)", "Partial"
AFTER = {"all_reduce": FULL, "reduce_scatter": SEQUENCE, "all_gather": FULL}


@dataclass
class Edge:
    """What passes between two modules: how it is placed, and the collectives that change that, with their payloads."""

    before: str = ""
    op: str = ""
    payloads: list[int] = field(default_factory=list)

    @property
    def after(self) -> str:
        """The placement behind the collective."""
        return AFTER.get(self.op, self.before)

    @property
    def size(self) -> str:
        """The payloads: `384 KiB`, `3 × 16 KiB`, or the sum of several that differ."""
        if len(set(self.payloads)) == 1 < len(self.payloads):
            return f"{len(self.payloads)} × {in_binary(self.payloads[0])}"
        return in_binary(sum(self.payloads))


@dataclass
class Box:
    """Modules that stand side by side and are cut alike. `cut` is the cut dimension of their weights, if any.

    A linear's weight is (out, in): cut along 0 it is column-parallel, along 1 row-parallel.
    """

    name: str
    modules: list[str]
    placement: str
    cut: int | None
    arrives: dict[str, Edge] = field(default_factory=lambda: {"forward": Edge(), "backward": Edge()})
    leaves: dict[str, Edge] = field(default_factory=lambda: {"forward": Edge(), "backward": Edge()})


def boxes_of(shards: pd.DataFrame, comm: pd.DataFrame, block: str) -> list[Box]:
    """The modules of one block in the order of the data, with placements and collectives on both sides of each.

    Read from one rank's rows. Placements of activations follow from those of the weights and from the collectives.
    Raises ValueError when the run has no such block.
    """
    first = shards["rank"].min()
    boxes = _boxes(shards[shards["rank"] == first], block)
    rows = comm[comm["rank"] == first]
    rows = one_step(rows)[0].sort_values("index") if len(rows) else rows
    for phase, name, op, size in zip(*(rows[c] for c in ("phase", "module", "op", "payload_bytes")), strict=True):
        inside = not pd.isna(name) and (name == block or str(name).startswith(f"{block}."))
        if inside and phase in ("forward", "backward") and op in AFTER:
            edge = _edge(boxes, phase, str(name)[len(block) + 1 :], op)
            edge.op = op
            edge.payloads.append(int(size))
    if shards["rank"].nunique() > 1:
        _place(boxes, "forward")
        _place(boxes, "backward")
    return boxes


def _boxes(shards: pd.DataFrame, block: str) -> list[Box]:
    found: list[Box] = []
    for name, placement in zip(shards["parameter"], shards["placement"], strict=True):
        if not str(name).startswith(f"{block}.") or not str(name).endswith(".weight"):
            continue
        module = str(name)[len(block) + 1 : -len(".weight")]
        dims = re.findall(r"Shard\((\d+)\)", str(placement))
        cut = int(dims[-1]) if dims else None
        last = found[-1] if found else None
        parent = module.rpartition(".")[0]
        beside = parent or cut is not None  # the block's own parts follow each other, unless they are cut alike
        if last and beside and last.cut == cut and last.modules[0].rpartition(".")[0] == parent:
            last.modules.append(module)
        else:
            found.append(Box("", [module], str(placement), cut))
    if not found:
        blocks = dict.fromkeys(m[0] for name in shards["parameter"] if (m := re.match(r".*\.\d+(?=\.)", str(name))))
        raise ValueError(f"block={block!r} has no weights in this run; its blocks are {', '.join(blocks) or 'none'}")
    for box in found:
        box.name = " ".join(fold_siblings(box.modules))
    return found


def _edge(boxes: Sequence[Box], phase: str, module: str, op: str) -> Edge:
    """Where a collective acts: a gather before a module, a reduction behind it, as that phase passes through."""
    near = [box for box in boxes if module in box.modules]
    near = near or [b for b in boxes if not module or any(name.startswith(f"{module}.") for name in b.modules)]
    ordered = list(near or boxes) if phase == "forward" else list(near or boxes)[::-1]
    gather = op == "all_gather"
    # Forward, column-parallel weights read and row-parallel ones reduce; backward, it is the other way round.
    wanted = (0 if gather else 1) if phase == "forward" else (1 if gather else 0)
    fitting = [box for box in ordered if box.cut == wanted] or ordered
    sides = [(box.arrives if gather else box.leaves)[phase] for box in fitting]
    # A module that is not named more closely issues one call after the other, as the data pass through it.
    return next((edge for edge in sides if not edge.op), sides[-1])


def _place(boxes: Sequence[Box], phase: str) -> None:
    ordered = list(boxes) if phase == "forward" else list(boxes)[::-1]
    wanted = 0 if phase == "forward" else 1
    state = SEQUENCE if any(box.arrives[phase].op == "all_gather" for box in ordered) else FULL
    for box in ordered:
        box.arrives[phase].before = state
        state = box.arrives[phase].after
        if box.cut is not None:
            state = FEATURES if box.cut == wanted else PARTIAL
        box.leaves[phase].before = state
        state = box.leaves[phase].after


def joined(boxes: Sequence[Box], phase: str) -> list[Edge]:
    """The edges from left to right, one more than there are boxes: between two boxes, the one with the collective."""
    side, other = ("leaves", "arrives") if phase == "forward" else ("arrives", "leaves")
    edges = [getattr(boxes[0], other)[phase]]
    for left, right in zip(boxes, [*boxes[1:], None], strict=True):
        one = getattr(left, side)[phase]
        two = getattr(right, other)[phase] if right else one
        edges.append(two if two.op else one)
    return edges


def in_words(boxes: Sequence[Box], phase: str) -> str:
    """Alt text of one phase: what passes each module, with exact bytes."""
    ordered, edges = list(boxes), joined(boxes, phase)
    if phase == "backward":
        ordered, edges = ordered[::-1], edges[::-1]
    said = [_passes(edges[0])]
    for box, edge in zip(ordered, edges[1:], strict=True):
        said.append(f"{box.name} ({box.placement})")
        said.append(_passes(edge))
    return f"{phase.capitalize()}: {', '.join(part for part in said if part)}."


def _passes(edge: Edge) -> str:
    if not edge.op:
        return edge.before
    return f"{edge.before} by {counted(len(edge.payloads), edge.op)} of {exact(sum(edge.payloads))} to {edge.after}"
