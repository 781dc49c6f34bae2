"""Which module is at work: by hooks in the forward, by marks on autograd's nodes in the backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

_MARK = "tp_teach_module"


class ModuleNames:
    """Names modules as `named_modules()` does. Unlike torch's ModuleTracker it holds no gradients.

    The collectives that a parallel style issues around a module count as the module's own: the forward all-reduce of
    a row-parallel `fc2` is named `fc2`, the backward one of a column-parallel `fc1` is named `fc1`. Within a compiled
    module nobody can tell its parts: what they do is named after the compiled module.

    `calls` is told each module that begins, with its arguments.
    """

    def __init__(self, model: nn.Module, calls: Callable[[nn.Module, tuple, dict], None]) -> None:
        self.names = {module: name for name, module in model.named_modules()}
        self.model, self.calls = model, calls
        self.open: list[nn.Module] = []

    def enter(self, stack: ExitStack) -> None:
        """Hook every module, outermost around the hooks that it has; the stack takes the hooks away."""
        for module in _visible(self.model):
            if module._compiled_call_impl is not None:
                # Hooks of a compiled module would be compiled with it.
                stack.callback(setattr, module, "_compiled_call_impl", module._compiled_call_impl)
                module._compiled_call_impl = partial(self._compiled, module, module._compiled_call_impl)
                continue
            stack.callback(module.register_forward_pre_hook(self._begins, prepend=True, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(self._ends, always_call=True).remove)

    def in_compiled(self) -> bool:
        """Whether a compiled module is at work, whose operations make tensors unseen."""
        return bool(self.open) and _is_compiled(self.open[-1])

    def now(self) -> str:
        """The innermost module at work; empty outside the model, and for the model itself."""
        if self.open:
            return self.names[self.open[-1]]
        node = torch._C._current_autograd_node()
        return node.metadata.get(_MARK, "") if node is not None else ""

    def _begins(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        # What led here since the last mark is the work of the module around this one.
        _mark((args, kwargs), self.names[self.open[-1]] if self.open else "")
        self.open.append(module)
        self.calls(module, args, kwargs)

    def _ends(self, module: nn.Module, args: tuple, output: Any) -> None:
        _mark(output, self.names[self.open.pop()])

    def _compiled(self, module: nn.Module, call: Callable, *args: Any, **kwargs: Any) -> Any:
        self._begins(module, args, kwargs)
        output = None
        try:
            output = call(*args, **kwargs)
        finally:
            self._ends(module, args, output)
        return output


def _visible(module: nn.Module) -> Iterator[nn.Module]:
    """A module and what is in it, less what is in a compiled module. One that is used twice comes once."""
    seen, to_do = set(), [module]
    while to_do:
        module = to_do.pop()
        if module in seen:
            continue
        seen.add(module)
        yield module
        if not _is_compiled(module):
            to_do += module.children()


def _is_compiled(module: nn.Module) -> bool:
    """By `module.compile()`, or as what `torch.compile(module)` returns."""
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules


def _mark(tensors: Any, name: str) -> None:
    """Name the autograd nodes behind tensors, back to those that have a name."""
    nodes = [leaf.grad_fn for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor)]
    while nodes:
        node = nodes.pop()
        if node is not None and _MARK not in node.metadata:
            node.metadata[_MARK] = name
            nodes += [before for before, _ in node.next_functions]
