"""Dropout whose masks can be told to agree or to differ between ranks."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes


class Dropout(nn.Module):
    """Zero each number with probability `p` in training, and scale the others by 1 / (1 - p).

    Each call takes one number from torch's default CPU generator and seeds a generator of its own with that number and
    `stream`. Processes whose default generators are in the same state, because they were seeded alike, draw the same
    mask in the same stream and unrelated masks in different streams. Megatron-LM keeps two states of the generator for
    this (Shoeybi et al. 2019, section 3); here activation checkpointing, which restores the default generator, draws
    the same mask again too.

    For the backward one byte an element is kept: the mask.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.stream = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return drop(x, self.p, self.stream) if self.training and self.p else x

    def extra_repr(self) -> str:
        return f"p={self.p}, stream={self.stream}"


# torch.compile does not know generators; it compiles what is around this.
@torch.compiler.disable
def drop(x: torch.Tensor, p: float, stream: int) -> torch.Tensor:
    """Dropout of `x`, as `Dropout` explains it."""
    # A real number, also where fake tensors stand in for real ones.
    with _disable_current_modes():
        seed = torch.randint(2**62, (), device="cpu").item()
    generator = torch.Generator(x.device).manual_seed(seed + stream)
    mask = torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(p, generator=generator)
    return x.masked_fill(mask, 0) / (1 - p)
