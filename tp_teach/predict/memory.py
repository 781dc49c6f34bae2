"""Bytes by kind at the moments of the measured step: rows of the table `memory`."""

from __future__ import annotations

from tp_teach.model.config import ELEMENT_BYTES, TrainConfig
from tp_teach.predict.parameters import parameters as all_parameters

COUNTER = 4
"""Bytes of the step counter that torch's AdamW keeps beside each parameter, float32."""


def memory(config: TrainConfig, ranks: int, parts: list[dict], activations: int) -> list[dict]:
    """Rows of `memory` for one of `ranks` tensor-parallel ranks.

    `parts` are its rows of `shards`, `activations` the bytes that it keeps for the backward. AdamW keeps two numbers a
    parameter, of the parameter's dtype (Loshchilov and Hutter 2019, algorithm 2), and one counter a parameter tensor.

    A gradient is held as its parameter is. The gradient that torch's embedding gives back is whole on every rank, even
    where the embedding is cut: those bytes are there while it is made, as temporary ones, and only the rank's part
    stays. With fsdp parameters and gradients lie in buffers of equal size on all ranks, whatever part of them is used.
    torch's ddp machinery works on a second copy of the parameters, which counts as temporary.
    """
    size = ELEMENT_BYTES[config.dtype]
    parameters = size * sum(parameter.held(config, ranks) for parameter in all_parameters(config).values())
    optimizer = 2 * sum(row["local_bytes"] for row in parts) + COUNTER * len(parts)
    first = config.measured_step == 0
    # Gradients and optimizer state of the step before are there when the measured step begins. Those of the
    # micro-batches before the last are there when its forward ends.
    before = (0, 0) if first else (parameters, optimizer)
    added = parameters if config.accumulate > 1 else 0
    at = {
        "init": (*before, 0),
        "forward": (added, before[1], activations),
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
