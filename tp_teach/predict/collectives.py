"""Which collectives one training step issues, in order: rows of the table `comm`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from tp_teach.model.config import ELEMENT_BYTES, TrainConfig
from tp_teach.tables import wire_bytes


@dataclass(frozen=True)
class Call:
    """One collective: `shape` is what a rank hands in, `numbers` how many make the payload (all of `shape` if None).

    `over` is the group: the tensor-parallel ranks (tp), the ranks of one place in every such group (dp), or the world.
    """

    phase: str
    module: str
    op: str
    dtype: str
    shape: tuple[int, ...]
    numbers: int | None = None
    over: str = "tp"

    @property
    def payload_bytes(self) -> int:
        """By the convention of nccl-tests: the full array."""
        size = 8 if self.dtype == "int64" else ELEMENT_BYTES[self.dtype]
        return size * (math.prod(self.shape) if self.numbers is None else self.numbers)


@dataclass(frozen=True)
class Pass:
    """The tensor-parallel calls of one forward and backward, by where they happen.

    `layers` and `layers_back` hold a list for each layer, both from the first layer to the last.
    """

    embedding: list[Call] = field(default_factory=list)
    layers: list[list[Call]] = field(default_factory=list)
    head: list[Call] = field(default_factory=list)
    head_back: list[Call] = field(default_factory=list)
    final_norm_back: list[Call] = field(default_factory=list)
    layers_back: list[list[Call]] = field(default_factory=list)
    embedding_back: list[Call] = field(default_factory=list)


def collectives(config: TrainConfig, world_size: int, rank: int, calls: list[Call]) -> list[dict]:
    """Rows of `comm` for one rank and one step: what `tp.train` does around the `calls` of its micro-batches.

    Rank 0's batch is broadcast to all ranks, tokens and labels; gradients are clipped by the norm of the whole model,
    which is one all-reduce of a float64. The optimizer issues nothing.
    """
    labels = (config.batch_size, config.seq_len)
    labels = labels if config.model == "decoder" else labels[:1]
    around = [Call("other", "", "broadcast", "int64", (config.batch_size, config.seq_len), over="world")]
    around += [Call("other", "", "broadcast", "int64", labels, over="world"), *calls]
    if config.clip is not None:
        around.append(Call("other", "", "all_reduce", "float64", (), over="world"))
    return list(_rows(config, world_size, rank, around))


def gloo_bytes(op: str, payload_bytes: int, group_size: int) -> int:
    """Bytes that one rank sends over Gloo in torch 2.13, without what the network's own protocol adds.

    A ring's, except for reduce_scatter: Gloo makes an all-reduce of it, and each rank keeps its part of the result. So
    sequence parallelism, equal to plain tensor parallelism by formula, sends 1.5 times as much over Gloo.
    """
    return wire_bytes("all_reduce" if op == "reduce_scatter" else op, payload_bytes, group_size)


def _rows(config: TrainConfig, world_size: int, rank: int, calls: list[Call]) -> Iterator[dict]:
    tensor_ranks = world_size // config.data_parallel
    groups = {
        "world": range(world_size),
        "tp": range(rank - rank % tensor_ranks, rank - rank % tensor_ranks + tensor_ranks),
        "dp": range(rank % tensor_ranks, world_size, tensor_ranks),
    }
    for index, call in enumerate(calls):
        group = groups[call.over]
        yield {
            "step": config.measured_step,
            "index": index,
            "phase": call.phase,
            "module": call.module,
            "op": call.op,
            "group": ",".join(map(str, group)),
            "group_size": len(group),
            "dtype": call.dtype,
            "shape": str(call.shape),
            "payload_bytes": call.payload_bytes,
            "wire_bytes": wire_bytes(call.op, call.payload_bytes, len(group)),
        }
