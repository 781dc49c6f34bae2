"""Into and out of the tensor-parallel region by hand: each step is one operation forward and its conjugate backward.

    call                      forward          backward         source
    copy_to_region            nothing          all-reduce       f, Shoeybi et al. 2019, section 3, figure 3
    reduce_from_region        all-reduce       nothing          g, the same
    scatter_to_region         keep own part    all-gather
    gather_from_region        all-gather       keep own part
    gather_sequence           all-gather       reduce-scatter   g, Korthikanti et al. 2022, section 4.2.2, figure 5
    reduce_scatter_sequence   reduce-scatter   all-gather       ḡ, the same

Every call takes the process group. No tensor is changed in place, strides do not matter, and a group of one rank
changes nothing. Each backward is itself one of these calls, so second derivatives are right as well.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable


def copy_to_region(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """f: every rank uses its copy of `x` for a part of the work, so the gradients of the copies add up.

    `x` has any shape and is the same on all ranks. The backward is one all-reduce of its shape.
    """
    return x if group.size() == 1 else _Copy.apply(x, group)


def reduce_from_region(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """g: the sum of all ranks' `x`, the same on all ranks. Forward is one all-reduce; the backward has no collective.

    What follows must be the same on all ranks. If each rank does a part of it, `copy_to_region` comes next.
    """
    return x if group.size() == 1 else _Reduce.apply(x, group)


def scatter_to_region(x: torch.Tensor, group: dist.ProcessGroup, dim: int = -1) -> torch.Tensor:
    """This rank's part of `x` (the same on all ranks) along `dim`. The backward is one all-gather.

    Raises ValueError when the size along `dim` does not divide by the group.
    """
    check_divides(x, dim, group)
    return x if group.size() == 1 else _Scatter.apply(x, group, dim)


def gather_from_region(x: torch.Tensor, group: dist.ProcessGroup, dim: int = -1) -> torch.Tensor:
    """All ranks' parts `x`, joined along `dim`. The backward keeps this rank's part, without a collective.

    What follows must be the same on all ranks. If each rank does a part of it, use `gather_sequence`, which sums.
    """
    return x if group.size() == 1 else _Gather.apply(x, group, dim)


def gather_sequence(x: torch.Tensor, group: dist.ProcessGroup, dim: int = 1) -> torch.Tensor:
    """g of sequence parallelism: the whole sequence from each rank's part, for ranks that each do a part of the work.

    (batch, seq / ranks, …) to (batch, seq, …); `dim` is where the sequence runs. The backward is one reduce-scatter.
    """
    return x if group.size() == 1 else _GatherSequence.apply(x, group, dim)


def reduce_scatter_sequence(x: torch.Tensor, group: dist.ProcessGroup, dim: int = 1) -> torch.Tensor:
    """ḡ of sequence parallelism: the sum of all ranks' `x`, of which each rank keeps its part of the sequence.

    (batch, seq, …) to (batch, seq / ranks, …); `dim` is where the sequence runs. The backward is one all-gather.
    Raises ValueError when the sequence does not divide by the group.
    """
    check_divides(x, dim, group)
    return x if group.size() == 1 else _ReduceScatterSequence.apply(x, group, dim)


def reduce_scatter_sequence_with_bias(
    x: torch.Tensor, bias: torch.Tensor, group: dist.ProcessGroup, dim: int = 1
) -> torch.Tensor:
    """`reduce_scatter_sequence(x, group, dim) + bias`, for a `bias` (last dimension of x) that all ranks hold.

    The all-gather of the backward brings the gradient of the whole sequence, so the bias gets its whole gradient too,
    without a collective of its own. Has no second derivative.
    """
    check_divides(x, dim, group)
    return x + bias if group.size() == 1 else _ReduceScatterWithBias.apply(x, bias, group, dim)


def check_divides(x: torch.Tensor, dim: int, group: dist.ProcessGroup) -> None:
    """Raise ValueError unless the size of `x` along `dim` divides by the group."""
    size, ranks = x.shape[dim], group.size()
    if size % ranks:
        raise ValueError(
            f"dimension {dim} of a tensor of shape {tuple(x.shape)} does not divide over {ranks} ranks; "
            f"use a size of {nearest(size, ranks)}"
        )


def nearest(size: int, ranks: int) -> str:
    """The sizes next to `size` that divide by `ranks`, as text."""
    below = size // ranks * ranks
    return f"{below} or {below + ranks}" if below else str(ranks)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return reduce_from_region(grad, ctx.group), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return all_reduced(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return copy_to_region(grad, ctx.group), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return own_part(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return gather_from_region(grad, ctx.group, ctx.dim), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return _all_gathered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return scatter_to_region(grad, ctx.group, ctx.dim), None, None


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return _all_gathered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return reduce_scatter_sequence(grad, ctx.group, ctx.dim), None, None


class _ReduceScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return _reduce_scattered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return gather_sequence(grad, ctx.group, ctx.dim), None, None


class _ReduceScatterWithBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return _reduce_scattered(x, group, dim) + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        whole = _all_gathered(grad, ctx.group, ctx.dim)
        return whole, whole.flatten(0, -2).sum(0), None, None


def all_reduced(
    x: torch.Tensor, group: dist.ProcessGroup, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> torch.Tensor:
    """A new tensor with the reduction of all ranks' `x`. Has no backward."""
    # The collective works in place, and autograd may hold x. Gloo reads memory in order, whatever the strides.
    result = x.detach().clone(memory_format=torch.contiguous_format)
    if group.size() > 1:
        dist.all_reduce(result, op, group)
    return result


def own_part(x: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    """A copy of this rank's part of `x` along `dim`: no storage of the whole is kept alive. Has no backward."""
    return x.detach().chunk(group.size(), dim)[group.rank()].clone(memory_format=torch.contiguous_format)


def _all_gathered(x: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    x = x.contiguous()  # NCCL asks for it; Gloo gathers strided tensors right
    parts = x.new_empty((group.size() * x.shape[0], *x.shape[1:]))
    dist.all_gather_into_tensor(parts, x, group=group)
    return parts if dim in (0, -x.dim()) else torch.cat(parts.chunk(group.size()), dim)


def _reduce_scattered(x: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    parts = torch.cat(x.chunk(group.size(), dim))  # the collective scatters along the first dimension
    part = parts.new_empty((parts.shape[0] // group.size(), *parts.shape[1:]))
    dist.reduce_scatter_tensor(part, parts, group=group)
    return part
