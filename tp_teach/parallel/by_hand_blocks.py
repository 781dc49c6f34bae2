"""Whole blocks cut by hand: what `plans` says as data, said with the layers of `by_hand`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tp_teach.model.dropout import Dropout
from tp_teach.model.toy import MLPBlock
from tp_teach.model.transformer import DecoderBlock
from tp_teach.parallel.by_hand import ColumnParallelLinear, RowParallelLinear, check_size, copied, enter_region
from tp_teach.parallel.regions import copy_to_region


def cut_mlp_block_by_hand(block: MLPBlock, group: dist.ProcessGroup) -> None:
    """Cut an MLP block of the toy over the group, in place: fc1 by its output features, fc2 by its input features.

    One all-reduce forward and one backward (Shoeybi et al. 2019, section 3, figure 3a). Every rank must hold the same
    block. Raises ValueError when the hidden size does not divide by the group.
    """
    block.fc1, block.fc2 = ColumnParallelLinear(block.fc1, group), RowParallelLinear(block.fc2, group)


def cut_decoder_block_by_hand(
    block: DecoderBlock, group: dist.ProcessGroup, *, sequence_parallel: bool = False
) -> None:
    """Cut attention and MLP of a decoder's block over the group, in place: whole heads, and parts of hidden_dim.

        x ─ norm ─ f ─ wq, wk, wv ─ heads ─ wo ─ g ─ + ─ norm ─ f ─ gate, up (fc1) ─ down (fc2) ─ g ─ +

    Two all-reduces forward, in g, and two backward, in f (Shoeybi et al. 2019, section 3, figure 4). With
    `sequence_parallel` input and output are this rank's part of the sequence, (batch, seq / ranks, d_model), f is an
    all-gather and g a reduce-scatter, the other way round backward (Korthikanti et al. 2022, section 4.2.2, figure 5).
    The norms then work on a part alone, so the gradients of their weights are summed over the ranks: one small
    all-reduce a parameter.

    Every rank must hold the same block. Raises ValueError when heads or sizes do not divide by the group.
    """
    attn, mlp = block.attn, block.mlp
    inside = (("fc1",), "fc2") if hasattr(mlp, "fc1") else (("gate", "up"), "down")
    for name in ("wq", "wk"):
        check_size(f"attn.{name}", "heads", getattr(attn, name).out_features // attn.head_dim, group)
    check_size("mlp", "hidden_dim", getattr(mlp, inside[1]).in_features, group)
    dim = 1 if sequence_parallel else None
    for half, into, out_of in ((attn, ("wq", "wk", "wv"), "wo"), (mlp, *inside)):
        for name in into:
            setattr(half, name, ColumnParallelLinear(getattr(half, name), group, input_is_prepared=True))
        setattr(half, out_of, RowParallelLinear(getattr(half, out_of), group, sequence_dim=dim))
        half.register_forward_pre_hook(_Enter(group, dim))
    if sequence_parallel:
        block.attn_norm = SequenceParallelNorm(block.attn_norm, group)
        block.mlp_norm = SequenceParallelNorm(block.mlp_norm, group)
    for name, module in block.named_modules():
        if isinstance(module, Dropout):
            # Own masks for what is cut over the ranks, the same for what each rank holds whole.
            cut = sequence_parallel or name == "attn.weight_dropout"
            module.stream = dist.get_rank() if cut else dist.get_global_rank(group, 0)


class SequenceParallelNorm(nn.Module):
    """An RMSNorm or LayerNorm, its weights whole on every rank, for input that is this rank's part of the sequence.

    A rank sees the gradient that its own part gives, so the ranks' gradients are added up: f, applied to the weights
    (Korthikanti et al. 2022, section 4.2.2).
    """

    def __init__(self, dense: nn.RMSNorm | nn.LayerNorm, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group, self.shape, self.eps = group, dense.normalized_shape, dense.eps
        self.weight = copied(dense.weight)
        self.bias = copied(dense.bias) if isinstance(dense, nn.LayerNorm) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = copy_to_region(self.weight, self.group)
        if self.bias is None:
            return F.rms_norm(x, self.shape, weight, self.eps)
        return F.layer_norm(x, self.shape, weight, copy_to_region(self.bias, self.group), self.eps)


class _Enter:
    """A hook before attention or MLP: what its first linears share is prepared once."""

    def __init__(self, group: dist.ProcessGroup, sequence_dim: int | None) -> None:
        self.group, self.sequence_dim = group, sequence_dim

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *others = args
        return enter_region(x, self.group, self.sequence_dim), *others
