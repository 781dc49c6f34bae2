"""`Decoder`: a small language model of the Llama or the GPT family. Knows nothing of ranks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tp_teach.model.attention import Attention, KVCache, Place, rotary
from tp_teach.model.config import TrainConfig
from tp_teach.model.dropout import Dropout


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) (Shazeer 2020, section 2).

    Weights: gate and up (hidden_dim, d_model), down (d_model, hidden_dim). Input and output (..., d_model).
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.hidden_dim, bias=False)
        self.up = nn.Linear(config.d_model, config.hidden_dim, bias=False)
        self.down = nn.Linear(config.hidden_dim, config.d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MLP(nn.Module):
    """dropout(fc2(GELU(fc1(x)))), as in GPT.

    Weights, with biases: fc1 (hidden_dim, d_model), fc2 (d_model, hidden_dim). Input and output (..., d_model).
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.d_model, config.hidden_dim)
        self.fc2 = nn.Linear(config.hidden_dim, config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.fc2(F.gelu(self.fc1(x))))


class DecoderBlock(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)): one pre-norm layer. Input and output (batch, tokens, d_model)."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.attn_norm = norm(config)
        self.attn = Attention(config)
        self.mlp_norm = norm(config)
        self.mlp = SwiGLU(config) if config.block == "llama" else MLP(config)

    def forward(self, x: torch.Tensor, place: Place, cache: KVCache | None = None) -> torch.Tensor:
        x = x + self.attn(self.attn_norm(x), place=place, cache=cache)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Token embedding, `num_layers` blocks, a norm, and a head that scores the next token.

    Input: token numbers (batch, tokens), int64. Output: logits (batch, tokens, vocab_size).

    `config.block` says which family. llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases
    (Touvron et al. 2023). gpt: LayerNorm, learned positions, GELU, biases everywhere but the head, dropout (Radford et
    al. 2019). Linear layers start as torch's do, embeddings with a standard deviation of 0.02, as in GPT-2.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.config = config
        self.token_emb = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.token_emb.weight, std=0.02)
        if config.block == "gpt":
            self.pos_emb = nn.Embedding(config.seq_len, config.d_model)
            nn.init.normal_(self.pos_emb.weight, std=0.02)
            self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(DecoderBlock(config) for _ in range(config.num_layers))
        self.final_norm = norm(config)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.token_emb.weight

    def forward(self, tokens: torch.Tensor, caches: list[KVCache] | None = None) -> torch.Tensor:
        """With `caches`, one for each layer, the tokens follow those that the caches hold, which then hold them too.

        Raises ValueError for several tokens after a filled cache, and for more tokens than a gpt has positions.
        """
        seen, new = caches[0].length if caches else 0, tokens.shape[1]
        if seen and new > 1:
            raise ValueError(f"{new} tokens follow a cache of {seen}; after the first call pass one token a call")
        positions = torch.arange(seen, seen + new, device=tokens.device)
        x = self.token_emb(tokens)
        if self.config.block == "gpt":
            if seen + new > self.config.seq_len:
                raise ValueError(
                    f"{seen + new} tokens do not fit; this gpt has seq_len={self.config.seq_len} positions"
                )
            x = self.dropout(x + self.pos_emb(positions))
            place = Place(hidden=torch.arange(seen + new, device=tokens.device) > positions[:, None])
        else:
            # Made anew each time: as a buffer it would follow the parameters into bfloat16.
            place = Place(*rotary(positions, self.config.head_dim, x.dtype))
        for number, layer in enumerate(self.layers):
            x = layer(x, place, caches[number] if caches else None)
        return self.head(self.final_norm(x))


def norm(config: TrainConfig) -> nn.Module:
    """The family's norm over d_model."""
    return nn.RMSNorm(config.d_model, eps=1e-5) if config.block == "llama" else nn.LayerNorm(config.d_model)
