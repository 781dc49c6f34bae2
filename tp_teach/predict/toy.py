"""Closed forms for the toy transformer, cut over its MLP blocks."""

from __future__ import annotations

from tp_teach.model.config import ELEMENT_BYTES, TrainConfig
from tp_teach.predict.collectives import Call, Pass

TOKEN = 8
"""Bytes of one int64 token."""


def calls(config: TrainConfig, ranks: int) -> Pass:
    """Two all-reduces a block, each of the block's output: batch x seq_len x d_model.

    One goes forward (g, after fc2) and one backward (f, before fc1): Shoeybi et al. 2019, section 3, figure 3.
    """
    layers = [f"layers.{number}" for number in range(config.num_layers)]
    if ranks == 1:  # DTensor asks nobody when it is alone
        return Pass(layers=[[] for _ in layers], layers_back=[[] for _ in layers])
    shape = (config.micro_batch, config.seq_len, config.d_model)
    return Pass(
        layers=[[Call("forward", f"{layer}.fc2", "all_reduce", config.dtype, shape)] for layer in layers],
        layers_back=[[Call("backward", f"{layer}.fc1", "all_reduce", config.dtype, shape)] for layer in layers],
    )


def activations(config: TrainConfig, ranks: int) -> int:
    """Bytes that autograd keeps on one rank from forward to backward, each storage counted once.

    Counted as in Korthikanti et al. 2022, section 4.1, for this model. A block keeps its input and its norm's output
    whole on every rank (b s d each), the norm's mean and deviation (b s each), and this rank's part of fc1's and GELU's
    outputs (b s h / ranks each). After the blocks: the last output (b s d), the final norm's mean and deviation (b
    each) and output (b d), and the positions (s int64). The loss is taken in at least float32: the log-probabilities
    (b classes) and their total weight (1). With checkpointing a block keeps its input alone.
    """
    b, s, d = config.micro_batch, config.seq_len, config.d_model
    size = ELEMENT_BYTES[config.dtype]
    block = b * s * d
    if not config.checkpointing:
        block += b * s * d + 2 * b * s + 2 * b * s * config.hidden_dim // ranks
    ends = b * s * d + 2 * b + b * d
    return size * (config.num_layers * block + ends) + max(4, size) * (b * config.num_classes + 1) + TOKEN * s
