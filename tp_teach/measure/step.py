"""`measure`: watch one training step on one rank, and write what it did to the rank's log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tp_teach.measure.collectives import NAMESPACES, read
from tp_teach.measure.memory import StorageRecord, StorageTracker, allocated_rows, memory_rows, state_of
from tp_teach.measure.modules import ModuleNames
from tp_teach.measure.shards import shard_rows
from tp_teach.tables import record, wire_bytes


@contextmanager
def measure(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, step: int = 0) -> Iterator[None]:
    """Watch one training step inside a rank: forward, backward and, if given, `optimizer.step()`.

    What it saw comes home in the `Run`: `shards` (who holds what), `comm` (each collective with its phase, module,
    payload and ring bytes) and `memory` (bytes by kind at each moment: init, forward, backward, step, peak; on CUDA
    the allocator's own numbers beside them). `step` is written in the rows. The step runs slower while it is watched.
    Outside a launched rank nothing is kept.

    Forward begins with the model's call and lasts until backward; what lies outside forward, backward and
    `optimizer.step()` is called other.
    """
    watch = _Watch(model, optimizer, step)
    with ExitStack() as stack:
        watch.enter(stack)
        yield
    watch.finish()


PAUSE = 0.01
"""Seconds given to the threads of the backend after a collective, in a measured step only."""

_watching: ContextVar[_Watch | None] = ContextVar("tp_teach_watching", default=None)


class _Watch(TorchDispatchMode):
    """Sees every operation below autograd and DTensor: local tensors, and the collectives as they are issued."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, step: int) -> None:
        super().__init__()
        self.model, self.optimizer, self.step = model, optimizer, step
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.phase = self.outside = "other"
        self.storages = StorageTracker()
        self.modules = ModuleNames(model)
        self.comm: list[dict] = []
        self.moments: dict[str, list[StorageRecord]] = {}
        self.allocator: dict[str, list[dict]] = {}
        self.around = _watching.get()
        self.unsettled = False

    def enter(self, stack: ExitStack) -> None:
        """Put the hooks in place; the stack takes them away, after an error too."""
        for kind, tensors in state_of(self.model, self.optimizer).items():
            self.storages.add(tensors, kind)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._mark("init")
        token = _watching.set(self)
        stack.callback(_watching.reset, token)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._saved, _restored))
        hooks = [self.model.register_forward_pre_hook(self._forward_begins, prepend=True)]
        hooks += [
            parameter.register_post_accumulate_grad_hook(self._grad_arrived)
            for parameter in self.model.parameters()
            if parameter.requires_grad
        ]
        if self.optimizer is not None:
            hooks.append(self.optimizer.register_step_pre_hook(self._optimizer_begins))
            hooks.append(self.optimizer.register_step_post_hook(self._optimizer_ends))
        for hook in hooks:
            stack.callback(hook.remove)
        self.modules.enter(stack)
        stack.enter_context(self)

    def finish(self) -> None:
        """Write the rows. Not reached after an error: half a step is no measurement."""
        self._end_backward()
        if "forward" not in self.moments and self.phase == "forward":
            self._mark("forward")
        for kind, tensors in state_of(self.model, self.optimizer).items():
            self.storages.add(tensors, kind)
        rows = [row for moment, pieces in self.moments.items() for row in memory_rows(self.step, moment, pieces)]
        rows += memory_rows(self.step, "peak", self.storages.at_peak())
        self.allocator["peak"] = allocated_rows(self.device, self.step, "peak")
        record("shards", shard_rows(self.model))
        record("comm", self.comm)
        record("memory", rows + [row for rows in self.allocator.values() for row in rows])

    def __torch_dispatch__(self, func: Any, types: tuple, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            return NotImplemented  # DTensor answers with operations on its local tensors, which come by here
        self._settle_collectives()
        self._settle_phase()
        collective = read(func, args, kwargs)
        result = func(*args, **kwargs)
        self.unsettled = func.namespace in NAMESPACES
        if collective is not None:
            self.comm.append(
                {
                    "step": self.step,
                    "index": len(self.comm),
                    "phase": self.phase,
                    "module": self.modules.now(),
                    "op": collective.op,
                    "group": ",".join(map(str, collective.ranks)),
                    "group_size": len(collective.ranks),
                    "dtype": collective.dtype,
                    "shape": collective.shape,
                    "payload_bytes": collective.payload_bytes,
                    "wire_bytes": wire_bytes(collective.op, collective.payload_bytes, len(collective.ranks)),
                }
            )
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.storages.add(made, born=self.phase in ("forward", "backward"))
        return result

    def _settle_collectives(self) -> None:
        """Let Gloo's thread drop the tensors of the call before: it waits for Python's lock to do so.

        Without this pause their bytes are counted, or not, by chance.
        """
        if self.unsettled:
            time.sleep(PAUSE)
            self.unsettled = False

    def _settle_phase(self) -> None:
        """Autograd tells by itself when backward runs."""
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward and self.phase != "backward":
            self._mark("forward")
            self.phase = "backward"
        elif not in_backward and self.phase == "backward":
            self._end_backward()

    def _end_backward(self) -> None:
        if self.phase == "backward":
            self._mark("backward")
            self.phase = self.outside

    def _mark(self, moment: str) -> None:
        self._settle_collectives()
        self.moments[moment] = self.storages.now()
        if self.device.type == "cuda":
            self.allocator[moment] = allocated_rows(self.device, self.step, moment)

    def _forward_begins(self, module: nn.Module, args: tuple) -> None:
        self._end_backward()
        self.phase = "forward"

    def _grad_arrived(self, parameter: torch.Tensor) -> None:
        self.storages.add([parameter.grad], "gradients")

    def _optimizer_begins(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self._end_backward()
        self.phase = self.outside = "optimizer"

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self.storages.add(state_of(self.model, optimizer)["optimizer"], "optimizer")
        self._mark("step")
        self.phase = self.outside = "other"

    def _saved(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        watch: _Watch | None = self
        while watch is not None:  # autograd tells the innermost measurement alone
            watch.storages.add([tensor], "activations")
            watch = watch.around
        return tensor, tensor._version


def _restored(saved: tuple[torch.Tensor, int]) -> torch.Tensor:
    """Hand a saved tensor back. With hooks in place autograd leaves this check to them."""
    tensor, version = saved
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{tensor.dtype} {tuple(tensor.shape)} is at version {tensor._version}, expected version {version}"
        )
    return tensor
