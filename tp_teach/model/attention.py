"""Causal self-attention: rotary positions and SDPA (llama), or the scores written out with dropout (gpt)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from tp_teach.model.config import TrainConfig
from tp_teach.model.dropout import Dropout


@dataclass
class KVCache:
    """Keys and values of the tokens that one attention has seen: (batch, kv heads here, tokens, head_dim) each."""

    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens seen."""
        return 0 if self.keys is None else self.keys.shape[2]

    def extend(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add those of the newest tokens; return all."""
        if self.keys is not None:
            keys, values = torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values


@dataclass
class Place:
    """Where the tokens of one forward stand; every layer uses the same.

    llama: `cos` and `sin` (tokens, head_dim). gpt: `hidden` (tokens, tokens seen), True where a token may not look.
    """

    cos: torch.Tensor | None = None
    sin: torch.Tensor | None = None
    hidden: torch.Tensor | None = None


class Attention(nn.Module):
    """wo(softmax(q kᵀ / √head_dim) v), each token looking at itself and those before it.

    Weights: wq (heads · head_dim, d_model), wk and wv (kv heads · head_dim, d_model), wo (d_model, heads · head_dim).
    Input and output (batch, tokens, d_model).

    How many heads there are is read off what wq and wk return: where those are cut, it is this rank's heads.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        gpt = config.block == "gpt"
        self.wq = nn.Linear(config.d_model, width, bias=gpt or config.qkv_bias)
        self.wk = nn.Linear(config.d_model, kv_width, bias=gpt or config.qkv_bias)
        self.wv = nn.Linear(config.d_model, kv_width, bias=gpt or config.qkv_bias)
        self.wo = nn.Linear(width, config.d_model, bias=gpt)
        if gpt:
            self.weight_dropout = Dropout(config.dropout)
            self.dropout = Dropout(config.dropout)

    def forward(self, x: torch.Tensor, *, place: Place, cache: KVCache | None = None) -> torch.Tensor:
        q, k, v = (self._heads(linear(x)) for linear in (self.wq, self.wk, self.wv))
        if place.cos is not None:
            q, k = rotate(q, place.cos, place.sin), rotate(k, place.cos, place.sin)
        first = cache is None or cache.length == 0
        if cache is not None:
            k, v = cache.extend(k, v)
        if place.hidden is None:
            # A token after a cache looks at everything. Grouped heads stay grouped: k and v are kept once, not
            # repeated for each query head.
            out = F.scaled_dot_product_attention(q, k, v, is_causal=first, enable_gqa=q.shape[1] != k.shape[1])
        else:
            out = self._attend(q, k, v, place.hidden)
        out = self.wo(out.transpose(1, 2).flatten(2))
        return out if place.hidden is None else self.dropout(out)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, heads · head_dim) -> (batch, heads, tokens, head_dim)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The core attention of Korthikanti et al. 2022, figure 3: what it keeps for the backward is countable."""
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        scores = (q / self.head_dim**0.5) @ k.transpose(-2, -1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        return self.weight_dropout(weights) @ v


def rotary(positions: torch.Tensor, head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, (tokens, head_dim), of the angles position / 10000^(2i / head_dim) (Su et al. 2021, section 3.2.2).

    Number i and number i + head_dim / 2 are one pair, as in the published Llama weights on Hugging Face.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device) / head_dim
    angles = positions.to(torch.float64)[:, None] * 10000.0**-exponents
    return angles.cos().repeat(1, 2).to(dtype), angles.sin().repeat(1, 2).to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair of numbers of `x` (batch, heads, tokens, head_dim) by its token's angles."""
    a, b = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat([-b, a], dim=-1) * sin.to(x.dtype)
