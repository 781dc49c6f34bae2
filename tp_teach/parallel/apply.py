"""Apply a plan to a model, or say in one sentence why it does not fit."""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from tp_teach.model.dropout import Dropout
from tp_teach.parallel.styles import Replicated, VocabParallel, WholeDropout


def apply_plan(model: nn.Module, plan: dict[str, ParallelStyle], mesh: DeviceMesh) -> None:
    """Cut `model` over the one-dimensional mesh as the plan says, in place.

    A key of the plan is a module's name, with `*` for any one part of it. What the plan does not name is replicated:
    afterwards every parameter is a DTensor, made from rank 0's values, so that no two ranks can differ, and gradient
    clipping and fused optimizers work. Frozen parameters stay frozen and tied ones tied. In the backward, each gradient
    is brought to its parameter's layout once: the partial sums that a norm's weight gets under sequence parallelism
    meet in one all-reduce a parameter, and of the whole gradient that a cut embedding gets each rank keeps its part.

    Raises ValueError where a key matches no module, where a module would be cut twice, where a size does not divide
    over the mesh, and where tied weights would be cut differently.
    """
    _check(model, plan, mesh)
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    ties = _ties(model)
    parallelize_module(model, mesh, plan)
    for name, module in model.named_modules():
        if not _styles(plan, name) and (isinstance(module, Dropout) or _own(module)):
            parallelize_module(module, mesh, WholeDropout() if isinstance(module, Dropout) else Replicated())
    for tied in ties:
        _tie(tied)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(_LaidOutAs(parameter.placements))


def sync_uncut(module: nn.Module, mesh: DeviceMesh) -> None:
    """Send rank 0's plain parameters to the other ranks of the one-dimensional mesh, in place. DTensors stay.

    A cut takes what it cuts from rank 0; built under different seeds, the rest would differ and nothing would say so.
    """
    for parameter in module.parameters():
        if not isinstance(parameter, DTensor):
            values = parameter.detach().contiguous()  # Gloo sends the wrong numbers of any other tensor
            dist.broadcast(values, group=mesh.get_group(), group_src=0)
            parameter.data.copy_(values)


class _LaidOutAs:
    """A hook that brings a gradient to its parameter's layout."""

    def __init__(self, placements: tuple) -> None:
        self.placements = placements

    def __call__(self, grad: DTensor) -> DTensor:
        return grad if grad.placements == self.placements else grad.redistribute(placements=self.placements)


def _check(model: nn.Module, plan: dict[str, ParallelStyle], mesh: DeviceMesh) -> None:
    if mesh.ndim != 1:
        raise ValueError(f"the mesh has {mesh.ndim} dimensions {mesh.mesh_dim_names}; pass one of them, as mesh['tp']")
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise ValueError(f"{name} is cut already: {parameter.placements}; cut a model once")
    for key in plan:
        if not any(_matches(key, name) for name in modules):
            raise ValueError(f"the plan's key {key!r} matches no module; the modules are {_names(modules)}")
    for name, module in modules.items():
        styles = _styles(plan, name)
        if len(styles) > 1:
            raise ValueError(f"{name} would be cut twice, by the plan's keys {' and '.join(map(repr, styles))}")
        for key in styles:
            _check_size(name, module, plan[key], mesh.size())


def _check_size(name: str, module: nn.Module, style: ParallelStyle, ranks: int) -> None:
    """torch cuts an uneven size unevenly, and the ranks' outputs then do not fit each other."""
    sizes = {
        (ColwiseParallel, nn.Linear): "out_features",
        (RowwiseParallel, nn.Linear): "in_features",
        (ColwiseParallel, nn.Embedding): "embedding_dim",
        (RowwiseParallel, nn.Embedding): "num_embeddings",
        (VocabParallel, nn.Embedding): "num_embeddings",
    }
    for (kind, layer), size in sizes.items():
        if isinstance(style, kind) and isinstance(module, layer) and getattr(module, size) % ranks:
            raise ValueError(f"{name}: {size}={getattr(module, size)} does not divide over {ranks} ranks")


def _styles(plan: dict[str, ParallelStyle], name: str) -> list[str]:
    """The keys that match a module's name."""
    return [key for key in plan if _matches(key, name)]


def _matches(key: str, name: str) -> bool:
    parts, wanted = name.split("."), key.split(".")
    return len(parts) == len(wanted) and all(map(fnmatch, parts, wanted))


def _names(modules: dict[str, nn.Module]) -> str:
    """Module names, numbers as `*`."""
    names = {".".join("*" if part.isdigit() else part for part in name.split(".")) for name in modules if name}
    return ", ".join(sorted(names))


def _own(module: nn.Module) -> list[nn.Parameter]:
    """Parameters of this very module that are not DTensors."""
    return [p for p in module.parameters(recurse=False) if not isinstance(p, DTensor)]


Owner = tuple[str, nn.Module, str]


def _ties(model: nn.Module) -> list[list[Owner]]:
    """Who holds each parameter that more than one module holds: module name, module, name within it."""
    owners: dict[torch.Tensor, list[Owner]] = defaultdict(list)
    for name, module in model.named_modules():
        for own_name, parameter in module.named_parameters(recurse=False):
            owners[parameter].append((name, module, own_name))
    return [those for those in owners.values() if len(those) > 1]


def _tie(owners: list[Owner]) -> None:
    first_name, first, own_name = owners[0]
    shared = getattr(first, own_name)
    for name, module, own_name in owners[1:]:
        other = getattr(module, own_name)
        if other.placements != shared.placements:
            raise ValueError(
                f"{first_name} and {name} share a weight, but would be cut differently: {shared.placements} and "
                f"{other.placements}; cut both alike"
            )
        setattr(module, own_name, shared)
