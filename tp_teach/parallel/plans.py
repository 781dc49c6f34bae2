"""The cut as data: which linear is split along which dimension."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module


def mlp_plan() -> dict[str, ParallelStyle]:
    """The MLP block of Megatron-LM (Shoeybi et al. 2019, section 3, figure 3a).

        fc1 (hidden, d):  rows are output features      fc2 (d, hidden):  columns are input features

            ┌───────┐ rank 0                                ┌───┬───┬───┐
            ├───────┤ rank 1                                │ 0 │ 1 │ 2 │
            ├───────┤ rank 2                                └───┴───┴───┘
            └───────┘

    Each rank keeps its hidden features from fc1 through GELU into fc2; only fc2's partial sums meet, in one all-reduce.
    """
    return {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()}


def cut_mlp_blocks(layers: nn.ModuleList, mesh: DeviceMesh) -> None:
    """Cut each MLP block over the one-dimensional mesh, in place.

    Rank 0's weights are sent to the others, so a cut block equals its dense twin even under different seeds.
    Raises ValueError when a block's hidden size does not divide by the mesh.
    """
    for number, layer in enumerate(layers):
        hidden = layer.fc1.out_features
        if hidden % mesh.size():
            raise ValueError(f"layers.{number}: hidden size {hidden} does not divide over {mesh.size()} ranks")
        parallelize_module(layer, mesh, mlp_plan())
