"""Parameters of a model by name: their global shapes, and where tensor parallelism cuts them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tp_teach.model.config import TrainConfig


@dataclass(frozen=True)
class Parameter:
    """One parameter: its global shape, and the dimension cut over the tensor-parallel ranks (None: held whole)."""

    shape: tuple[int, ...]
    cut: int | None = None

    def local_shape(self, ranks: int) -> tuple[int, ...]:
        """The shape of one rank's part."""
        return tuple(size // ranks if axis == self.cut else size for axis, size in enumerate(self.shape))

    def held(self, config: TrainConfig, ranks: int) -> int:
        """Numbers that one rank has memory for.

        With fsdp that is an equal part of the local shape's first dimension, filled up where it does not divide.
        """
        first, *rest = self.local_shape(ranks)
        parts = config.data_parallel if config.data_parallel_kind == "fsdp" else 1
        return -(-first // parts) * math.prod(rest)


def parameters(config: TrainConfig) -> dict[str, Parameter]:
    """All parameters by name, in the order of the model's `named_parameters()`.

    Linears that begin a block's cut part are cut by rows (their output features), those that end it by columns
    (their input features); embedding and head by rows, the vocabulary: Shoeybi et al. 2019, section 3. Norms, learned
    positions and the biases of the second linears are whole on every rank.
    """
    return _toy(config) if config.model == "toy" else _decoder(config)


def count(config: TrainConfig, tensor_ranks: int = 1) -> int:
    """Numbers in the parameters that one tensor-parallel rank holds; in the whole model by default."""
    return sum(math.prod(parameter.local_shape(tensor_ranks)) for parameter in parameters(config).values())


def mixture_count(config: TrainConfig, experts: int) -> int:
    """Numbers in a mixture-of-experts model: every block has `experts` MLPs and a router, d_model x experts.

    Jiang et al. 2024, Mixtral of Experts, section 2. Such a model is counted here, not trained.
    """
    mlp = 3 * config.d_model * config.hidden_dim
    return count(config) + config.num_layers * ((experts - 1) * mlp + config.d_model * experts)


def _toy(config: TrainConfig) -> dict[str, Parameter]:
    d = config.d_model
    found = {
        "token_emb.weight": Parameter((config.vocab_size, d)),
        "pos_emb.weight": Parameter((config.seq_len, d)),
    }
    for layer in range(config.num_layers):
        found |= _norm(f"layers.{layer}.ln", d, bias=True)
        found[f"layers.{layer}.fc1.weight"] = Parameter((config.hidden_dim, d), 0)
        found[f"layers.{layer}.fc2.weight"] = Parameter((d, config.hidden_dim), 1)
    found |= _norm("final_ln", d, bias=True)
    found["head.weight"] = Parameter((config.num_classes, d))
    found["head.bias"] = Parameter((config.num_classes,))
    return found


def _decoder(config: TrainConfig) -> dict[str, Parameter]:
    d, hidden, gpt = config.d_model, config.hidden_dim, config.block == "gpt"
    keys = config.num_kv_heads * config.head_dim
    vocabulary = 0 if config.vocab_parallel else None
    found = {"token_emb.weight": Parameter((config.vocab_size, d), vocabulary)}
    if gpt:
        found["pos_emb.weight"] = Parameter((config.seq_len, d))
    for layer in (f"layers.{number}" for number in range(config.num_layers)):
        found |= _norm(f"{layer}.attn_norm", d, bias=gpt)
        for name, size in (("wq", d), ("wk", keys), ("wv", keys)):
            found |= _first_linear(f"{layer}.attn.{name}", size, d, bias=gpt or config.qkv_bias)
        found |= _second_linear(f"{layer}.attn.wo", d, d, bias=gpt)
        found |= _norm(f"{layer}.mlp_norm", d, bias=gpt)
        for name in ("fc1",) if gpt else ("gate", "up"):
            found |= _first_linear(f"{layer}.mlp.{name}", hidden, d, bias=gpt)
        found |= _second_linear(f"{layer}.mlp.{'fc2' if gpt else 'down'}", d, hidden, bias=gpt)
    found |= _norm("final_norm", d, bias=gpt)
    if not config.tied:
        found["head.weight"] = Parameter((config.vocab_size, d), vocabulary)
    return found


def _norm(name: str, size: int, bias: bool) -> dict[str, Parameter]:
    found = {f"{name}.weight": Parameter((size,))}
    return found | {f"{name}.bias": Parameter((size,))} if bias else found


def _first_linear(name: str, features: int, inputs: int, bias: bool) -> dict[str, Parameter]:
    found = {f"{name}.weight": Parameter((features, inputs), 0)}
    return found | {f"{name}.bias": Parameter((features,), 0)} if bias else found


def _second_linear(name: str, features: int, inputs: int, bias: bool) -> dict[str, Parameter]:
    found = {f"{name}.weight": Parameter((features, inputs), 1)}
    return found | {f"{name}.bias": Parameter((features,))} if bias else found
