"""Which module is at work: by hooks in the forward, by marks on autograd's nodes in the backward."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

_MARK = "tp_teach_module"


class ModuleNames:
    """Names modules as `named_modules()` does. Unlike torch's ModuleTracker it holds no gradients.

    The collectives that a parallel style issues around a module count as the module's own: the forward all-reduce of
    a row-parallel `fc2` is named `fc2`, the backward one of a column-parallel `fc1` is named `fc1`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.names = {module: name for name, module in model.named_modules()}
        self.open: list[str] = []

    def enter(self, stack: ExitStack) -> None:
        """Hook every module, outermost around the hooks that it has; the stack takes the hooks away."""
        for module in self.names:
            stack.callback(module.register_forward_pre_hook(self._begins, prepend=True, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(self._ends, always_call=True).remove)

    def now(self) -> str:
        """The innermost module at work; empty outside the model, and for the model itself."""
        if self.open:
            return self.open[-1]
        node = torch._C._current_autograd_node()
        return node.metadata.get(_MARK, "") if node is not None else ""

    def _begins(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        # What led here since the last mark is the work of the module around this one.
        _mark((args, kwargs), self.open[-1] if self.open else "")
        self.open.append(self.names[module])

    def _ends(self, module: nn.Module, args: tuple, output: Any) -> None:
        _mark(output, self.open.pop())


def _mark(tensors: Any, name: str) -> None:
    """Name the autograd nodes behind tensors, back to those that have a name."""
    nodes = [leaf.grad_fn for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor)]
    while nodes:
        node = nodes.pop()
        if node is not None and _MARK not in node.metadata:
            node.metadata[_MARK] = name
            nodes += [before for before, _ in node.next_functions]
