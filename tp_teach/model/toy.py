"""The toy transformer: a classifier of MLP blocks, without attention, so that the cut stands out."""

from __future__ import annotations

import torch
from torch import nn

from tp_teach.model.config import TrainConfig


class MLPBlock(nn.Module):
    """x + fc2(GELU(fc1(LayerNorm(x)))): the feed-forward half of a transformer layer, pre-norm, without biases.

    Weights: fc1 (hidden_dim, d_model), fc2 (d_model, hidden_dim). Input and output (..., d_model).
    """

    def __init__(self, d_model: int, hidden_dim: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(d_model)
        self.fc1 = nn.Linear(d_model, hidden_dim, bias=False)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(self.act(self.fc1(self.ln(x))))


class ToyTransformer(nn.Module):
    """Token and position embeddings, `num_layers` MLP blocks, a norm, and a head on the first token.

    Input: token numbers (batch, seq_len), int64. Output: logits (batch, num_classes).
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.token_emb = nn.Embedding(config.vocab_size, config.d_model)
        self.pos_emb = nn.Embedding(config.seq_len, config.d_model)
        self.layers = nn.ModuleList(MLPBlock(config.d_model, config.hidden_dim) for _ in range(config.num_layers))
        self.final_ln = nn.LayerNorm(config.d_model)
        self.head = nn.Linear(config.d_model, config.num_classes)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        x = self.token_emb(input_ids) + self.pos_emb(positions)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final_ln(x[:, 0]))
