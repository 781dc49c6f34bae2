"""Layers cut by hand: each keeps its rank's part of a dense layer and calls the collectives of `regions`.

A cut layer is made from the dense one and copies its part, without a collective. So ranks whose dense layers are
equal (same seed, or broadcast before) start as the dense layer's twin. Frozen parameters stay frozen.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tp_teach.parallel.regions import (
    copy_to_region,
    gather_from_region,
    gather_sequence,
    nearest,
    own_part,
    reduce_from_region,
    reduce_scatter_sequence,
    reduce_scatter_sequence_with_bias,
    scatter_to_region,
)


class ColumnParallelLinear(nn.Module):
    """A linear whose output features are cut (Shoeybi et al. 2019, section 3; cut of A by columns in Y = XA).

        weight (out, in)       bias (out)
        ┌───────┐ rank 0       ┌─┐
        ├───────┤ rank 1       ├─┤
        ├───────┤ rank 2       ├─┤
        └───────┘              └─┘

    Input (…, in), the same on all ranks; output (…, out / ranks), or (…, out) with `gather_output`. With
    `sequence_dim` the input is this rank's part of the sequence and is gathered along that dimension first
    (Korthikanti et al. 2022, section 4.2.2). With `input_is_prepared` the caller has done what comes before the
    matmul, once for several linears that share their input: `copy_to_region` or `gather_sequence`.

    Raises ValueError when the output features do not divide by the group.
    """

    def __init__(
        self,
        dense: nn.Linear,
        group: dist.ProcessGroup,
        *,
        gather_output: bool = False,
        sequence_dim: int | None = None,
        input_is_prepared: bool = False,
    ) -> None:
        super().__init__()
        check_size(type(self).__name__, "out_features", dense.out_features, group)
        self.group = group
        self.gather_output, self.sequence_dim, self.input_is_prepared = gather_output, sequence_dim, input_is_prepared
        self.in_features, self.out_features = dense.in_features, dense.out_features // group.size()
        self.weight = _part(dense.weight, group, 0)
        self.bias = _part(dense.bias, group, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.input_is_prepared:
            x = enter_region(x, self.group, self.sequence_dim)
        out = F.linear(x, self.weight, self.bias)
        return gather_from_region(out, self.group) if self.gather_output else out

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features} of each of {self.group.size()} ranks"


class RowParallelLinear(nn.Module):
    """A linear whose input features are cut (Shoeybi et al. 2019, section 3; cut of B by rows in Z = YB).

        weight (out, in)       bias (out)
        ┌───┬───┬───┐          ┌─┐
        │ 0 │ 1 │ 2 │ rank     │ │ whole on every rank
        └───┴───┴───┘          └─┘

    Input (…, in / ranks), or (…, in) with `input_is_parallel=False`; output (…, out), the same on all ranks. With
    `sequence_dim` each rank keeps its part of the output's sequence: a reduce-scatter instead of an all-reduce
    (Korthikanti et al. 2022, section 4.2.2). The bias is added once, to the sum.

    Raises ValueError when the input features do not divide by the group.
    """

    def __init__(
        self,
        dense: nn.Linear,
        group: dist.ProcessGroup,
        *,
        input_is_parallel: bool = True,
        sequence_dim: int | None = None,
    ) -> None:
        super().__init__()
        check_size(type(self).__name__, "in_features", dense.in_features, group)
        self.group, self.input_is_parallel, self.sequence_dim = group, input_is_parallel, sequence_dim
        self.in_features, self.out_features = dense.in_features // group.size(), dense.out_features
        self.weight = _part(dense.weight, group, 1)
        self.bias = copied(dense.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.input_is_parallel:
            x = scatter_to_region(x, self.group)
        partial = F.linear(x, self.weight)
        if self.bias is None:
            return leave_region(partial, self.group, self.sequence_dim)
        bias = self.bias.to(partial.dtype)  # which autocast may have lowered
        if self.sequence_dim is None:
            return reduce_from_region(partial, self.group) + bias
        return reduce_scatter_sequence_with_bias(partial, bias, self.group, self.sequence_dim)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features} of each of {self.group.size()} ranks, out_features={self.out_features}"


class VocabParallelEmbedding(nn.Module):
    """An embedding whose vocabulary is cut (Shoeybi et al. 2019, section 3; the embedding matrix by its vocabulary).

        weight (vocab, d)
        ┌───────┐ rank 0: tokens 0 … vocab/ranks - 1
        ├───────┤ rank 1: the next ones
        ├───────┤ rank 2
        └───────┘

    Input: token numbers (batch, seq), the same on all ranks. A rank gives zeros for tokens that others own, and the
    sum is the embedding: output (batch, seq, d), the same on all ranks, or this rank's part of the sequence with
    `sequence_dim`. The row of `padding_idx` gets no gradient. A token outside the vocabulary raises IndexError on
    every rank (on a GPU, torch's device-side assert).

    Raises ValueError when the vocabulary does not divide by the group, and for `max_norm`, `scale_grad_by_freq` and
    `sparse`, which are not done here.
    """

    def __init__(self, dense: nn.Embedding, group: dist.ProcessGroup, *, sequence_dim: int | None = None) -> None:
        super().__init__()
        for option in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(dense, option):
                raise ValueError(
                    f"{option}={getattr(dense, option)} is not done by VocabParallelEmbedding; leave it out"
                )
        check_size(type(self).__name__, "num_embeddings", dense.num_embeddings, group)
        self.group, self.sequence_dim = group, sequence_dim
        self.vocab_size, self.num_embeddings = dense.num_embeddings, dense.num_embeddings // group.size()
        self.embedding_dim, self.padding_idx = dense.embedding_dim, dense.padding_idx
        self.start = group.rank() * self.num_embeddings
        self.weight = _part(dense.weight, group, 0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        elsewhere = owned_elsewhere(tokens, self.start, self.num_embeddings, self.vocab_size)
        padding = None if self.padding_idx is None else self.padding_idx - self.start
        if padding is not None and not 0 <= padding < self.num_embeddings:
            padding = None
        rows = F.embedding((tokens - self.start).masked_fill(elsewhere, 0), self.weight, padding)
        rows = rows.masked_fill(elsewhere.unsqueeze(-1), 0)
        return leave_region(rows, self.group, self.sequence_dim)

    def extra_repr(self) -> str:
        mine = f"{self.start} to {self.start + self.num_embeddings - 1} of {self.vocab_size}"
        return f"tokens {mine}, embedding_dim={self.embedding_dim}, padding_idx={self.padding_idx}"


def enter_region(x: torch.Tensor, group: dist.ProcessGroup, sequence_dim: int | None = None) -> torch.Tensor:
    """What comes before column-parallel layers: f, or the gathering of a sequence that is cut along `sequence_dim`."""
    return copy_to_region(x, group) if sequence_dim is None else gather_sequence(x, group, sequence_dim)


def leave_region(x: torch.Tensor, group: dist.ProcessGroup, sequence_dim: int | None = None) -> torch.Tensor:
    """What comes after a row-parallel layer: g, or ḡ where the sequence is cut along `sequence_dim`."""
    return reduce_from_region(x, group) if sequence_dim is None else reduce_scatter_sequence(x, group, sequence_dim)


def owned_elsewhere(tokens: torch.Tensor, start: int, count: int, vocab_size: int) -> torch.Tensor:
    """Where tokens belong to another rank than the one that owns `count` tokens from `start` on.

    Numbers outside the vocabulary belong to nobody: they stay, and the look-up raises, as a dense one does.
    """
    mine = (tokens >= start) & (tokens < start + count)
    return (tokens >= 0) & (tokens < vocab_size) & ~mine


def check_size(layer: str, name: str, size: int, group: dist.ProcessGroup) -> None:
    """Raise ValueError, naming layer and size, unless `size` divides by the group."""
    if size % group.size():
        raise ValueError(
            f"{layer}: {name}={size} does not divide over {group.size()} ranks; "
            f"use {name}={nearest(size, group.size())}"
        )


def _part(dense: nn.Parameter | None, group: dist.ProcessGroup, dim: int) -> nn.Parameter | None:
    return None if dense is None else nn.Parameter(own_part(dense, group, dim), dense.requires_grad)


def copied(dense: nn.Parameter | None) -> nn.Parameter | None:
    """A parameter of its own with the same numbers, for what every rank holds whole."""
    return None if dense is None else nn.Parameter(dense.detach().clone(), dense.requires_grad)
