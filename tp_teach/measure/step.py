"""`measure`: watch one training step on one rank, and write what it did to the rank's log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tp_teach.measure.collectives import NAMESPACES, Collective, complete, read, tensors_in
from tp_teach.measure.flops import FlopCount
from tp_teach.measure.memory import StorageRecord, StorageTracker, allocated_rows, memory_rows, restored, state_of
from tp_teach.measure.modules import ModuleNames
from tp_teach.measure.shards import shard_rows
from tp_teach.measure.simulated import simulated, tries_shapes
from tp_teach.tables import record


@contextmanager
def measure(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, step: int = 0, *, seconds: bool = False
) -> Iterator[None]:
    """Watch one training step inside a rank: forward, backward and, if given, `optimizer.step()`.

    What it saw comes home in the `Run`: `shards` (who holds what), `comm` (each collective with its phase, module,
    payload and ring bytes), `flops` (floating-point operations, see `FlopCount`) and `memory` (bytes by kind at each
    moment: init, forward, backward, step, peak; on CUDA the allocator's own numbers beside them). `step` is written in
    the rows. The step runs slower while it is watched. Outside a launched rank nothing is kept.

    With `seconds=True` every collective is waited for where it is called, and `comm` says how long that took, waiting
    for the slowest rank included. Nothing overlaps then, and ranks that issue collectives of several groups in
    different orders may get stuck. A send or recv is not waited for, as its peer may need what comes after it.

    Forward begins with the model's call and lasts until backward; what lies outside forward, backward and
    `optimizer.step()` is called other.
    """
    watch = _Watch(model, optimizer, step, seconds)
    with ExitStack() as stack:
        watch.enter(stack)
        yield
    watch.finish()


PAUSE = 0.01
"""Seconds given to the threads of the backend after a collective, in a measured step only."""

_watching: ContextVar[_Watch | None] = ContextVar("tp_teach_watching", default=None)


class _Watch(TorchDispatchMode):
    """Sees every operation below autograd and DTensor: local tensors, and the collectives as they are issued."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, step: int, seconds: bool) -> None:
        super().__init__()
        self.model, self.optimizer, self.step, self.seconds = model, optimizer, step, seconds
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.phase = self.outside = "other"
        self.storages = StorageTracker()
        self.modules = ModuleNames(model, self._module_begins)
        self.comm: list[dict] = []
        self.flops = FlopCount()
        self.moments: dict[str, list[StorageRecord]] = {}
        self.allocator: dict[str, list[dict]] = {}
        self.around = _watching.get()
        self.unsettled = False
        self.simulated = simulated()

    def enter(self, stack: ExitStack) -> None:
        """Put the hooks in place; the stack takes them away, after an error too."""
        for kind, tensors in state_of(self.model, self.optimizer).items():
            self.storages.add(tensors, kind)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._mark("init")
        token = _watching.set(self)
        stack.callback(_watching.reset, token)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._saved, restored))
        hooks = [
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
        if self.simulated:  # where each part of the model held most; `tp.simulate` makes one peak of them
            for place, pieces in self.storages.at_peaks().items():
                rows += memory_rows(self.step, f"peak in {place}", pieces)
        self.allocator["peak"] = allocated_rows(self.device, self.step, "peak")
        record("shards", shard_rows(self.model))
        record("comm", self.comm)
        record("flops", self.flops.rows(self.step))
        record("memory", rows + [row for rows in self.allocator.values() for row in rows])

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Without this torch would run compiled code uncompiled while it is watched."""
        return True

    def __torch_dispatch__(self, func: Any, types: tuple, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            return NotImplemented  # DTensor answers with operations on its local tensors, which come by here
        if self.simulated and tries_shapes():
            return func(*args, **kwargs)
        self._settle_collectives()
        self._settle_phase()
        if torch.is_inference_mode_enabled():
            with self:  # whole layers arrive here in that mode, and not what they are made of
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        collectives = read(func, args, kwargs)
        result, seconds = self._call(func, args, kwargs, collectives)
        # An operation on the result of a functional collective waits for it first. Simulated, no thread holds a tensor.
        talks = func.namespace in NAMESPACES or AsyncCollectiveTensor in types
        self.unsettled = talks and not self.simulated
        where = {"phase": self.phase, "module": self.modules.now()}
        if self.simulated:
            self.storages.place = " ".join(where.values())
        for collective in collectives:
            about = {"step": self.step, "index": len(self.comm), **where, "seconds": seconds}
            self.comm.append({**about, **collective.row()})
        self.flops.add(**where, func=func, args=args, kwargs=kwargs, result=result)
        if (func.namespace, func._opname) == ("fsdp", "split_with_sizes_copy"):
            self.storages.add_resized(kwargs["out"])
        # What an operation writes into was there before it: ddp copies parameters into buffers of its own. Not so in
        # compiled code, whose tensors nobody sees before.
        new = self.modules.in_compiled() or not func._schema.is_mutable
        self.storages.add(tensors_in(result), born=new and self.phase in ("forward", "backward"))
        return result

    def _call(self, func: Any, args: tuple, kwargs: dict, collectives: list[Collective]) -> tuple[Any, float | None]:
        """The operation's result; for a collective, if asked for, the seconds until it is there."""
        if not self.seconds or not any(collective.op not in ("send", "recv") for collective in collectives):
            return func(*args, **kwargs), None
        complete()
        began = time.perf_counter()
        result = func(*args, **kwargs)
        complete(result)
        return result, time.perf_counter() - began

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

    def _module_begins(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if module is self.model:
            self._end_backward()
            self.phase = "forward"
        if self.modules.in_compiled():
            # Compiled code makes tensors unseen. New is what it saves, and what one compiled block hands to another.
            self.storages.add(tensors_in((args, kwargs)), born=module is not self.model)

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
            watch.storages.add([tensor], "activations", born=watch.modules.in_compiled())
            watch = watch.around
        return tensor, tensor._version
