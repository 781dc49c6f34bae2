"""Parallel styles beside torch's own: a module that every rank holds whole, and dropout of what is cut."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from tp_teach.model.dropout import Dropout


class Replicated(ParallelStyle):
    """Every rank holds the module whole. Its parameters are rank 0's, as replicated DTensors.

    `input_layout` says what the local input is a part of: `Replicate()`, all of it, or `Shard(1)`, this rank's part of
    the sequence. The output is a local tensor laid out as `output_layout`; where that differs from what the module
    makes, a redistribution is inserted.
    """

    def __init__(self, input_layout: Placement | None = None, output_layout: Placement | None = None) -> None:
        super().__init__()
        self.input_layout = input_layout or Replicate()
        self.output_layout = output_layout or self.input_layout

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, self._partition, self._prepare_input, self._prepare_output)

    def _partition(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        """Nothing is cut; `distribute_module` replicates what is left."""

    def _prepare_input(self, module: nn.Module, inputs: tuple, mesh: DeviceMesh) -> tuple:
        return tuple(DTensor.from_local(given, mesh, [self.input_layout], run_check=False) for given in inputs)

    def _prepare_output(self, module: nn.Module, output: Any, mesh: DeviceMesh) -> torch.Tensor:
        return output.redistribute(placements=[self.output_layout]).to_local()


class VocabParallel(Replicated):
    """An embedding cut by rows: each rank holds its part of the vocabulary and returns zeros for other tokens.

    These are added up when the output is brought to `output_layout`. torch's RowwiseParallel does the same, but hands
    on an output that is still on its way, through which torch 2.13 cannot compile a block.
    """

    def _partition(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        weight = distribute_tensor(module.weight, mesh, [Shard(0)])
        module.weight = nn.Parameter(weight, requires_grad=module.weight.requires_grad)


class CutDropout(ParallelStyle):
    """Dropout of an activation that is cut over the ranks: each rank draws a mask of its own."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.stream = dist.get_rank()
        return module


class WholeDropout(ParallelStyle):
    """Dropout of an activation that every rank of the mesh holds whole: they draw the same mask.

    Another mesh, such as the next data-parallel group's, draws another.
    """

    def _apply(self, module: Dropout, device_mesh: DeviceMesh) -> nn.Module:
        module.stream = dist.get_global_rank(device_mesh.get_group(), 0)
        return module
