"""Closed forms for the toy transformer, cut over its MLP blocks. All numbers are float32 (4 bytes)."""

from __future__ import annotations

import math

from tp_teach.model.config import TrainConfig
from tp_teach.run import Run, world_of
from tp_teach.tables import Log, wire_bytes

FLOAT, INT = 4, 8
"""Bytes of one float32 number and of one int64 token."""


def predict(config: TrainConfig, world_size: int) -> Run:
    """The `Run` of `tp.launch(tp.train, config, world_size=…)`, computed beforehand: shards, comm and memory.

    `comm` and `memory` are those of the measured step. Memory is given by kind at the moments init, forward, backward
    and step; temporary bytes and the peak depend on the device's kernels and have no closed form here.

    Raises ValueError when the configuration does not divide over the ranks, TypeError for another configuration.
    """
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config={config!r} is not a TrainConfig; make one with TrainConfig.preset('classroom')")
    config.check_ranks(world_size)
    logs = [Log(rank) for rank in range(world_size)]
    for log in logs:
        log.config = vars(config)
        log.add("shards", shards(config, world_size, log.rank))
        log.add("comm", collectives(config, world_size))
        log.add("memory", memory(config, world_size, log.rank))
    reason = f"{world_size} ranks by arithmetic, no process started"
    return Run.from_logs(world_of("predicted", ["none"] * world_size, reason), logs)


def shapes(config: TrainConfig) -> dict[str, tuple[tuple[int, ...], int | None]]:
    """Each parameter's global shape, and the dimension along which it is cut (None: every rank holds it whole).

    fc1 is cut by rows, its output features; fc2 by columns, its input features (Shoeybi et al. 2019, section 3).
    """
    d, hidden = config.d_model, config.hidden_dim
    found: dict[str, tuple[tuple[int, ...], int | None]] = {
        "token_emb.weight": ((config.vocab_size, d), None),
        "pos_emb.weight": ((config.seq_len, d), None),
    }
    for layer in range(config.num_layers):
        found[f"layers.{layer}.ln.weight"] = ((d,), None)
        found[f"layers.{layer}.ln.bias"] = ((d,), None)
        found[f"layers.{layer}.fc1.weight"] = ((hidden, d), 0)
        found[f"layers.{layer}.fc2.weight"] = ((d, hidden), 1)
    found["final_ln.weight"] = ((d,), None)
    found["final_ln.bias"] = ((d,), None)
    found["head.weight"] = ((config.num_classes, d), None)
    found["head.bias"] = ((config.num_classes,), None)
    return found


def shards(config: TrainConfig, world_size: int, rank: int) -> list[dict]:
    """Rows of `shards` for one rank: a cut dimension is divided by the ranks and starts at rank times its part."""
    rows = []
    for name, (shape, cut) in shapes(config).items():
        part = tuple(size // world_size if axis == cut else size for axis, size in enumerate(shape))
        offset = tuple(rank * size if axis == cut else 0 for axis, size in enumerate(part))
        rows.append(
            {
                "parameter": name,
                "placement": "plain" if cut is None else f"Shard({cut})",
                "global_shape": str(shape),
                "local_shape": str(part),
                "offset": str(offset),
                "dtype": "float32",
                "local_bytes": math.prod(part) * FLOAT,
                "global_bytes": math.prod(shape) * FLOAT,
            }
        )
    return rows


def collectives(config: TrainConfig, world_size: int) -> list[dict]:
    """Rows of `comm` for every rank and one step: two broadcasts of the batch, then 2 all-reduces a block.

    One all-reduce a block goes forward (g, after fc2) and one backward (f, before fc1): Shoeybi et al. 2019, section
    3, figure 3. Each has the size of the block's output, batch x seq_len x d_model.
    """
    batch, width = (config.batch_size, config.seq_len), (config.batch_size, config.seq_len, config.d_model)
    layers = range(config.num_layers)
    calls = [("other", "", "broadcast", "int64", batch, INT), ("other", "", "broadcast", "int64", batch[:1], INT)]
    if world_size == 1:
        layers = range(0)  # DTensor asks nobody when it is alone
    calls += [("forward", f"layers.{layer}.fc2", "all_reduce", "float32", width, FLOAT) for layer in layers]
    calls += [("backward", f"layers.{layer}.fc1", "all_reduce", "float32", width, FLOAT) for layer in reversed(layers)]
    return [
        {
            "step": config.measured_step,
            "index": index,
            "phase": phase,
            "module": module,
            "op": op,
            "group": ",".join(map(str, range(world_size))),
            "group_size": world_size,
            "dtype": dtype,
            "shape": str(shape),
            "payload_bytes": math.prod(shape) * size,
            "wire_bytes": wire_bytes(op, math.prod(shape) * size, world_size),
        }
        for index, (phase, module, op, dtype, shape, size) in enumerate(calls)
    ]


def memory(config: TrainConfig, world_size: int, rank: int) -> list[dict]:
    """Rows of `memory` for one rank: bytes by kind at the moments of the measured step.

    AdamW keeps two numbers a parameter (Loshchilov and Hutter 2019, algorithm 2), and torch one 4-byte step counter a
    parameter tensor.
    """
    parts = shards(config, world_size, rank)
    parameters = sum(row["local_bytes"] for row in parts)
    optimizer = 2 * parameters + FLOAT * len(parts)
    first = config.measured_step == 0
    # Gradients and optimizer state of the step before are there when the measured step begins.
    before = (0, 0) if first else (parameters, optimizer)
    at = {
        "init": (*before, 0),
        "forward": (0, before[1], activations(config, world_size)),
        "backward": (parameters, before[1], 0),
        "step": (parameters, optimizer, 0),
    }
    return [
        {"step": config.measured_step, "moment": moment, "kind": kind, "bytes": number}
        for moment, (gradients, state, saved) in at.items()
        for kind, number in zip(
            ("parameters", "gradients", "optimizer", "activations"),
            (parameters, gradients, state, saved),
            strict=True,
        )
    ]


def activations(config: TrainConfig, world_size: int) -> int:
    """Bytes that autograd keeps on one rank from forward to backward, each storage counted once.

    Counted as in Korthikanti et al. 2022, section 4.1, for this model. A block keeps its input and its norm's output
    whole on every rank (b s d each), the norm's mean and deviation (b s each), and this rank's part of fc1's and GELU's
    outputs (b s h / ranks each). After the blocks: the last output (b s d), the final norm's mean and deviation (b
    each) and output (b d), the log-probabilities (b classes), the loss's total weight (1), and the positions (s int64).
    """
    b, s, d = config.batch_size, config.seq_len, config.d_model
    block = 2 * b * s * d + 2 * b * s + 2 * b * s * config.hidden_dim // world_size
    ends = b * s * d + 2 * b + b * d + b * config.num_classes + 1
    return FLOAT * (config.num_layers * block + ends) + INT * s
