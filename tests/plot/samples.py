"""Invented runs of the toy model, with the tables a real run brings home."""

from __future__ import annotations

from math import prod

import pandas as pd

from tp_teach.run import Run
from tp_teach.tables import wire_bytes

WIDTH, HIDDEN, VOCAB, LENGTH, CLASSES, BATCH, LAYERS = 96, 384, 256, 32, 10, 32, 4
FLOAT = 4  # bytes


def shard_row(rank: int, size: int, name: str, shape: tuple[int, ...], dim: int | None) -> dict:
    """One row of `shards`: cut along `dim` as torch.chunk does (ceil division), or whole."""
    local, offset = list(shape), [0] * len(shape)
    if dim is not None:
        step = -(-shape[dim] // size)
        offset[dim] = min(rank * step, shape[dim])
        local[dim] = min(step, shape[dim] - offset[dim])
    return {
        "rank": rank,
        "parameter": name,
        "placement": "plain" if dim is None else f"Shard({dim})",
        "global_shape": str(tuple(shape)),
        "local_shape": str(tuple(local)),
        "offset": str(tuple(offset)),
        "dtype": "float32",
        "local_bytes": prod(local) * FLOAT,
        "global_bytes": prod(shape) * FLOAT,
    }


def toy_parameters() -> list[tuple[str, tuple[int, ...], int | None]]:
    """Name, shape and cut dimension of each parameter of the toy model."""
    parameters: list = [("token_emb.weight", (VOCAB, WIDTH), None), ("pos_emb.weight", (LENGTH, WIDTH), None)]
    for layer in range(LAYERS):
        parameters += [
            (f"layers.{layer}.ln.weight", (WIDTH,), None),
            (f"layers.{layer}.ln.bias", (WIDTH,), None),
            (f"layers.{layer}.fc1.weight", (HIDDEN, WIDTH), 0),
            (f"layers.{layer}.fc2.weight", (WIDTH, HIDDEN), 1),
        ]
    parameters += [("final_ln.weight", (WIDTH,), None), ("final_ln.bias", (WIDTH,), None)]
    return [*parameters, ("head.weight", (CLASSES, WIDTH), None), ("head.bias", (CLASSES,), None)]


def shard_rows(size: int, parameters: list | None = None) -> list[dict]:
    """`shards` of a model on `size` ranks, by default of the toy model."""
    parameters = toy_parameters() if parameters is None else parameters
    return [shard_row(rank, size, *parameter) for rank in range(size) for parameter in parameters]


def comm_rows(size: int, step: int = 1) -> list[dict]:
    """`comm` of one training step: two broadcasts of the batch, one all_reduce a layer each way."""
    calls = [("other", "", "broadcast", BATCH * LENGTH * 8), ("other", "", "broadcast", BATCH * 8)]
    activation = BATCH * LENGTH * WIDTH * FLOAT
    calls += [("forward", f"layers.{layer}", "all_reduce", activation) for layer in range(LAYERS)]
    calls += [("backward", f"layers.{layer}.fc1", "all_reduce", activation) for layer in reversed(range(LAYERS))]
    return [comm_row(rank, step, index, size, *call) for rank in range(size) for index, call in enumerate(calls)]


def comm_row(rank: int, step: int, index: int, size: int, phase: str, module: str, op: str, payload: int) -> dict:
    """One row of `comm`."""
    return {
        "rank": rank,
        "step": step,
        "index": index,
        "phase": phase,
        "module": module,
        "op": op,
        "group": ",".join(map(str, range(size))),
        "group_size": size,
        "dtype": "float32",
        "shape": "(32, 32, 96)",
        "payload_bytes": payload,
        "wire_bytes": wire_bytes(op, payload, size),
        "seconds": 0.001 * (rank + 1),
    }


def memory_rows(size: int, step: int = 1, cuda: bool = False) -> list[dict]:
    """`memory` of the measured step, and of a few other steps `allocated` alone."""
    rows = []
    for rank in range(size):
        held = sum(shard_row(rank, size, *parameter)["local_bytes"] for parameter in toy_parameters())
        saved = BATCH * LENGTH * (3 * WIDTH + 2 * -(-HIDDEN // size)) * FLOAT * LAYERS
        moments = {
            "init": (held, 0, 0, 0, 0),
            "forward": (held, 0, 2 * held, saved, 120_000),
            "backward": (held, held, 2 * held, 0, 90_000),
            "step": (held, held, 2 * held, 0, 0),
            "peak": (held, held // 2, 2 * held, saved, 700_000),
        }
        for moment, sizes in moments.items():
            kinds = dict(zip(("parameters", "gradients", "optimizer", "activations", "temporary"), sizes, strict=True))
            kinds["allocated"] = sum(sizes) + 4096 * rank
            if cuda:
                kinds["reserved"] = -(-sum(sizes) // 2**21) * 2**21 + 2**21
            rows += [_memory(rank, step, moment, kind, size_) for kind, size_ in kinds.items()]
        rows += [_memory(rank, other, "step", "allocated", 4 * held) for other in range(0, 60, 20)]
    return rows


def _memory(rank: int, step: int, moment: str, kind: str, size: int) -> dict:
    return {"rank": rank, "step": step, "moment": moment, "kind": kind, "bytes": size}


def step_rows(size: int, steps: int = 40, floor: float = 0.4, apart: float = 0.0) -> list[dict]:
    """`steps`: a loss that falls from 2.30 towards `floor`; each rank `apart` from the one before."""
    return [
        {
            "rank": rank,
            "step": step,
            "loss": floor + (2.3 - floor) * 0.92**step * (1 + 0.04 * ((step * 7) % 5 - 2) / 2) + apart * rank,
            "grad_norm": 1.0,
            "seconds": 0.01,
            "tokens": BATCH * LENGTH,
        }
        for rank in range(size)
        for step in range(steps)
    ]


def make_run(size: int, mode: str = "gloo", **tables: list[dict]) -> Run:
    """A run whose tables hold these rows."""
    world = {"mode": mode, "size": size}
    return Run(world, {name: pd.DataFrame(rows) for name, rows in tables.items()})


def toy(size: int = 4, cuda: bool = False) -> Run:
    """A measured run of the toy model on `size` ranks."""
    return make_run(
        size,
        "nccl" if cuda else "gloo",
        shards=shard_rows(size),
        comm=comm_rows(size),
        memory=memory_rows(size, cuda=cuda),
        steps=step_rows(size),
    )


def uneven(size: int = 4) -> Run:
    """Parameters whose cut does not come out even, a sharded vector among them."""
    parameters = [("head.weight", (10, 96), 0), ("fc1.bias", (10,), 0), ("proj.weight", (96, 50), 1)]
    return make_run(size, shards=shard_rows(size, parameters))


def mesh(rows: int = 2, columns: int = 2) -> Run:
    """A two-dimensional mesh: cut along the second axis, copied along the first."""
    table = []
    for rank in range(rows * columns):
        for name, shape, dim in (
            ("fc1.weight", (384, 96), 0),
            ("fc2.weight", (96, 384), 1),
            ("ln.weight", (96,), None),
        ):
            row = shard_row(rank % columns, columns, name, shape, dim)
            placement = "(Replicate(), Replicate())" if dim is None else f"(Replicate(), Shard({dim}))"
            table.append({**row, "rank": rank, "placement": placement})
    return make_run(rows * columns, shards=table)


def decoder(size: int = 4) -> Run:
    """A decoder with long names, as Hugging Face writes them: both ends cut along the vocabulary."""
    parameters: list = [("model.embed_tokens.weight", (256, 96), 0)]
    for layer in range(4):
        head = f"model.layers.{layer}"
        parameters += [(f"{head}.input_layernorm.weight", (96,), None)]
        parameters += [(f"{head}.self_attn.q_proj.weight", (96, 96), 0)]
        parameters += [(f"{head}.self_attn.{name}_proj.weight", (48, 96), 0) for name in "kv"]
        parameters += [(f"{head}.self_attn.o_proj.weight", (96, 96), 1)]
        parameters += [(f"{head}.post_attention_layernorm.weight", (96,), None)]
        parameters += [(f"{head}.mlp.{name}_proj.weight", (256, 96), 0) for name in ("gate", "up")]
        parameters += [(f"{head}.mlp.down_proj.weight", (96, 256), 1)]
    parameters += [("model.norm.weight", (96,), None), ("lm_head.weight", (256, 96), 0)]
    return make_run(size, shards=shard_rows(size, parameters))


def lopsided(size: int = 4) -> Run:
    """A run in which every rank holds more than the one before, and the last sends one call more."""
    rows = memory_rows(size)
    rows = [{**row, "bytes": row["bytes"] + (row["kind"] == "gradients") * 400_000 * row["rank"]} for row in rows]
    extra = comm_row(size - 1, 1, 10, size, "optimizer", "", "all_reduce", 4)
    return make_run(size, memory=rows, comm=[*comm_rows(size), extra])
