"""Greedy generation, with a cache of keys and values or without."""

from __future__ import annotations

import torch

from tp_teach.model.attention import KVCache
from tp_teach.model.transformer import Decoder


@torch.no_grad()
def generate(model: Decoder, tokens: torch.Tensor, new_tokens: int, *, cached: bool = True) -> torch.Tensor:
    """Continue `tokens` (batch, tokens), int64, by `new_tokens` a row: each time the one with the largest logit.

    Returns all of them, (batch, tokens + new_tokens). `cached=False` computes every token again for each new one, which
    gives the same tokens. A model that is cut is called on every rank with the same tokens; its cache holds the rank's
    own heads. A model cut with sequence_parallel cannot generate: one token does not divide over ranks.

    Raises ValueError for an empty prompt and for fewer than 0 new tokens.
    """
    if tokens.ndim != 2 or not tokens.shape[1]:
        raise ValueError(f"tokens of shape {tuple(tokens.shape)} do not work; pass (batch, tokens), at least one token")
    if new_tokens < 0:
        raise ValueError(f"new_tokens={new_tokens} does not work; use 0 or more")
    caches = [KVCache() for _ in model.layers] if cached else None
    training = model.training
    model.eval()
    fed = tokens
    for _ in range(new_tokens):
        logits = model(fed, caches)[:, -1]
        if hasattr(logits, "full_tensor"):  # cut along the vocabulary
            logits = logits.full_tensor()
        newest = logits.argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, newest], dim=1)
        fed = newest if cached else tokens
    model.train(training)
    return tokens
