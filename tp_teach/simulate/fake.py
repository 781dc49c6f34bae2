"""A world without hardware: a process group that sends nothing, and tensors that have shapes and no numbers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode, unset_fake_temporarily
from torch.distributed import _mesh_layout, device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_map

# Here torch reads numbers of tensors of its own: which ranks a mesh has.
_MESH = (device_mesh.__file__, _mesh_layout.__file__)


@contextmanager
def world(world_size: int, rank: int) -> Iterator[FakeTensors]:
    """Be rank `rank` of a world of fake tensors, in which nothing is sent."""
    dist.destroy_process_group()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    os.environ.update(LOCAL_WORLD_SIZE=str(world_size))
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    with FakeTensors() as tensors:
        yield tensors


class FakeTensors(FakeTensorMode):
    """torch's mode of fake tensors on the CPU, in which device meshes keep their numbers.

    On the meta device attention would take another path and keep more for the backward, and a fake tensor on `cuda`
    aborts a process that has no CUDA.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.fake_tensor_converter = _Converter()

    def __torch_dispatch__(self, func: Any, types: tuple, args: tuple = (), kwargs: dict | None = None) -> Any:
        if _in_mesh(sys._getframe(1)):
            with unset_fake_temporarily():
                return func(*args, **(kwargs or {}))
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # torch's fake one makes a new tensor
        return self.dispatch(func, types, args, kwargs or {})

    def of(self, value: Any) -> Any:
        """The tensors of nested containers as fake ones; those of modules are replaced in place."""
        return tree_map(self._of_leaf, value)

    def _of_leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, nn.Module):
            for module in leaf.modules():
                for held in (module._parameters, module._buffers):
                    held.update({name: self.of(tensor) for name, tensor in held.items()})
        return self.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf


class _Converter(FakeTensorConverter):
    """Without notes of the tensors that were made: `module.to(…)` refuses a tensor that somebody else knows."""

    def set_tensor_memo(self, t: torch.Tensor, v: torch.Tensor) -> None:
        pass


def _in_mesh(frame: FrameType | None) -> bool:
    """Whether a device mesh called, at most through a mode of functions or a helper."""
    for _ in range(4):
        if frame is None or frame.f_code.co_filename in _MESH:
            return frame is not None
        frame = frame.f_back
    return False
