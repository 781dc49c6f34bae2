"""Who holds what: each parameter's global shape, this rank's part of it, and where that part lies."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._python_dispatch import _disable_current_modes


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's own tensor. A DTensor's `shape`, `numel` and `nbytes` are those of the whole."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_rows(model: nn.Module) -> list[dict]:
    """One row of the table `shards` for each parameter. A plain tensor is held whole: placement `plain`, offset 0."""
    rows = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mine = local(parameter)
            if isinstance(parameter, DTensor):
                placement = _words(parameter.placements)
                with _disable_current_modes():  # it reads numbers of tensors, also in a simulation
                    _, offset = compute_local_shape_and_global_offset(
                        parameter.shape, parameter.device_mesh, parameter.placements
                    )
            else:
                placement, offset = "plain", (0,) * parameter.ndim
            rows.append(
                {
                    "parameter": name,
                    "placement": placement,
                    "global_shape": str(tuple(parameter.shape)),
                    "local_shape": str(tuple(mine.shape)),
                    "offset": str(tuple(offset)),
                    "dtype": str(parameter.dtype).removeprefix("torch."),
                    "local_bytes": mine.numel() * mine.element_size(),
                    "global_bytes": parameter.numel() * parameter.element_size(),
                }
            )
    return rows


def _words(placements: tuple[Placement, ...]) -> str:
    words = [_word(placement) for placement in placements]
    return words[0] if len(words) == 1 else f"({', '.join(words)})"


def _word(placement: Placement) -> str:
    if isinstance(placement, Shard):
        return f"Shard({placement.dim})"
    return "Replicate" if isinstance(placement, Replicate) else type(placement).__name__.strip("_")
