"""The norm of the whole model's gradient, and clipping by it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from tp_teach.measure.shards import local


def grad_norm(model: nn.Module) -> torch.Tensor:
    """The norm of the whole model's gradient: a float64 scalar, the same on every rank.

    Each rank squares and sums what it holds, and divides by the number of ranks that hold the same; one all-reduce over
    all ranks adds this up. So cut gradients are summed over the ranks, and those that several ranks hold count once.

    Raises ValueError for a gradient that is a partial sum: its norm is not known before the sum is made.
    """
    total = torch.zeros((), dtype=torch.float64)
    for parameter in model.parameters():
        if parameter.grad is not None:
            norm = torch.linalg.vector_norm(local(parameter.grad), dtype=torch.float64)
            total = total.to(norm.device) + norm**2 / _holders(parameter.grad)
    if dist.is_initialized():
        dist.all_reduce(total)
    return total.sqrt()


def clip(model: nn.Module, largest: float) -> torch.Tensor:
    """Scale all gradients by one factor so that their norm is at most `largest`. Returns the norm before that."""
    norm = grad_norm(model)
    # Without foreach: the toy has plain tensors beside DTensors.
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), largest, norm, foreach=False)
    return norm


def _holders(grad: torch.Tensor) -> int:
    """How many ranks hold the same part of a gradient. A plain tensor is held by all."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if not isinstance(grad, DTensor):
        return ranks
    mesh = grad.device_mesh
    if any(isinstance(placement, Partial) for placement in grad.placements):
        raise ValueError(f"a gradient of {tuple(grad.shape)} is a partial sum, {grad.placements}: reduce it first")
    copies = [mesh.size(dim) for dim, placement in enumerate(grad.placements) if isinstance(placement, Replicate)]
    for size in copies:
        ranks *= size
    return ranks // mesh.size()
