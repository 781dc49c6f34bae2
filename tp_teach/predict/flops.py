"""Floating-point operations of one rank and one step: matrix products only, 2 for each multiply-add.

A linear of f features over n tokens of size k takes 2 n k f operations forward and twice that backward, for the
gradients of its input and of its weight (Narayanan et al. 2021, appendix). Norms, activations, softmax, biases and the
optimizer count 0.

Attention over s tokens with h heads of size d, b samples: scores and their product with the values, 4 b h s^2 d
forward; 8 backward where it is written out (gpt). The fused kernel of the llama block computes the scores again:
10 backward. A causal mask saves none of them, in the count or in the written-out form.

Activation checkpointing adds a block's forward to its backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from tp_teach.model.config import TrainConfig

Linears = dict[str, tuple[int, int, int]]
"""Tokens, input and output features of each linear on one rank."""


def flops(config: TrainConfig, world_size: int) -> list[dict]:
    """Rows of `flops` for every rank and one step of training."""
    ranks = world_size // config.data_parallel
    products = _toy_linears(config, ranks) if config.model == "toy" else _decoder_linears(config, ranks)
    rows = [*_linear_rows(config, products)]
    if config.model == "decoder":
        rows += _attention_rows(config, ranks)
    step = config.measured_step
    return [
        {"step": step, "phase": phase, "module": module, "op": op, "flops": config.accumulate * number}
        for phase, module, op, number in rows
    ]


def _linear_rows(config: TrainConfig, linears: Linears) -> Iterator[tuple[str, str, str, int]]:
    for name, (tokens, inputs, features) in linears.items():
        forward = 2 * tokens * inputs * features
        yield "forward", name, "matmul", forward
        yield "backward", name, "matmul", (3 if _again(config, name) else 2) * forward


def _again(config: TrainConfig, linear: str) -> bool:
    """Whether the backward computes a linear's output again.

    The last of a checkpointed block only if its output is dropped out: the mask has to be known then.
    """
    last = linear.endswith((".fc2", ".down"))
    return config.checkpointing and linear != "head" and (not last or config.dropout > 0)


def _attention_rows(config: TrainConfig, ranks: int) -> Iterator[tuple[str, str, str, int]]:
    once = 2 * config.micro_batch * (config.num_heads // ranks) * config.seq_len**2 * config.head_dim
    again = 2 * once if config.checkpointing else 0
    for layer in range(config.num_layers):
        module = f"layers.{layer}.attn"
        if config.block == "gpt":
            yield "forward", module, "matmul", 2 * once
            yield "backward", module, "matmul", 4 * once + again
            continue
        yield "forward", module, "attention", 2 * once
        yield "backward", module, "attention_backward", 5 * once
        if again:
            yield "backward", module, "attention", again


def _toy_linears(config: TrainConfig, ranks: int) -> Linears:
    """The head reads the first token of each sample."""
    tokens, d, hidden = config.micro_batch * config.seq_len, config.d_model, config.hidden_dim // ranks
    found: Linears = {}
    for layer in range(config.num_layers):
        found[f"layers.{layer}.fc1"] = (tokens, d, hidden)
        found[f"layers.{layer}.fc2"] = (tokens, hidden, d)
    return found | {"head": (config.micro_batch, d, config.num_classes)}


def _decoder_linears(config: TrainConfig, ranks: int) -> Linears:
    """A head that is not cut works on all tokens, every rank for itself."""
    tokens, d, hidden = config.micro_batch * config.seq_len, config.d_model, config.hidden_dim // ranks
    mine, keys = d // ranks, config.num_kv_heads * config.head_dim // ranks
    found: Linears = {}
    for layer in (f"layers.{number}" for number in range(config.num_layers)):
        found |= {
            f"{layer}.attn.{name}": (tokens, d, size) for name, size in (("wq", mine), ("wk", keys), ("wv", keys))
        }
        found[f"{layer}.attn.wo"] = (tokens, mine, d)
        found |= {f"{layer}.mlp.{name}": (tokens, d, hidden) for name in _first_mlp(config)}
        found[f"{layer}.mlp.{'fc2' if config.block == 'gpt' else 'down'}"] = (tokens, hidden, d)
    vocabulary = config.vocab_size // ranks if config.vocab_parallel else config.vocab_size
    return found | {"head": (tokens, d, vocabulary)}


def _first_mlp(config: TrainConfig) -> tuple[str, ...]:
    return ("fc1",) if config.block == "gpt" else ("gate", "up")
