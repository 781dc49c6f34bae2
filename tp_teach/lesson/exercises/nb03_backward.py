"""Exercises of notebook 03, The backward needs its own collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tp_teach.launch import launch
from tp_teach.lesson.check import Solved
from tp_teach.measure import measure

Region = Callable[[torch.Tensor], torch.Tensor]
RANKS = 3
START = [[1.0, -2.0, 3.0, -4.0], [-5.0, 6.0, 7.0, -8.0], [9.0, -1.0, -1.0, 2.0]]
"""What each rank brings to g, before ReLU."""
DOWN = [1.0, 10.0, 100.0, 1000.0]
"""The gradient that comes back to g, the same on all ranks."""


class Call(nn.Module):
    """A function as a module, so that `measure` tells its forward from its backward."""

    def __init__(self, fn: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> torch.Tensor:
        return self.fn(*args)


def f_and_g(answer: tuple[Region, Region]) -> str | None:
    """Write f and g: identity with a summed gradient, sum with an untouched gradient."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(map(callable, answer)):
        return "the answer is a pair of functions, `(my_f, my_g)`"
    run = launch(_try_both, *answer, world_size=RANKS, timeout=5, check=False)
    for told in run:
        hint = _about_f(told) or _about_g(told["g"])
        if hint:
            return hint
    calls = run.comm[run.comm["rank"] == 0]
    spent = [len(calls[calls["step"] == step]) for step in (0, 1)]
    return Solved(f"f costs {_reduces(spent[0])}, g {_reduces(spent[1])}; the target is one each")


def _try_both(my_f: Region, my_g: Region) -> dict[str, Any]:
    factor = torch.arange(1.0, 5.0) + dist.get_rank()
    x = torch.ones(4, requires_grad=True)
    f = Call(my_f)
    with measure(f, step=0):
        y = f(x)
        ((factor * y).sum() + (5 * x).sum()).backward()
    again = torch.ones(4, requires_grad=True)  # here both branches are handed the same gradient tensor
    (factor * (my_f(again) + again)).sum().backward()
    g = Call(my_g)
    with measure(g, step=1):
        told = _after_relu(g)
    return {"y": y.tolist(), "grad": _list(x.grad), "shared": _list(again.grad), "own": factor.tolist(), "g": told}


def _about_f(told: dict[str, Any]) -> str | None:
    total = [3.0 * place + 3 for place in range(1, 5)]
    own = told["own"]
    if told["y"] != [1.0] * 4:
        return "f changes its input in the forward pass; each rank should go on with the x that it has"
    if told["grad"] == [value + 5 for value in own]:
        return "f's backward returns this rank's own gradient; the gradients of all ranks' copies add up"
    if told["grad"] == [value + 5 * RANKS for value in total]:
        return "f adds up the gradient of the residual branch too; only what comes back through f is a part"
    if told["grad"] != [value + 5 for value in total]:
        return f"f's backward gives {told['grad']} where {[value + 5 for value in total]} is right"
    if told["shared"] != [a + b for a, b in zip(own, total, strict=True)]:
        return "f's backward writes into the gradient that it was handed, which others may hold; sum a copy"
    return None


def _after_relu(g: Region) -> dict[str, Any]:
    x = torch.tensor(START[dist.get_rank()], requires_grad=True)
    hidden = torch.relu(x)
    before = hidden.tolist()
    y = g(hidden)
    value, kept = y.tolist(), hidden.tolist() == before
    try:
        y.backward(torch.tensor(DOWN))
    except RuntimeError as error:
        return {"y": value, "kept": kept, "raised": str(error)}
    return {"y": value, "kept": kept, "grad": _list(x.grad), "right": ((x > 0) * torch.tensor(DOWN)).tolist()}


def _about_g(told: dict[str, Any]) -> str | None:
    total = torch.tensor(START).relu().sum(0).tolist()
    if told["y"] != total:
        return f"g gives {told['y']} where the sum of the ranks is {total}"
    if "raised" in told:
        return f"g's backward raises: {told['raised'].splitlines()[0]}"
    if told["grad"] == [RANKS * value for value in told["right"]]:
        return f"g's backward adds up {RANKS} copies of one gradient; every rank holds it already, so pass it on"
    if not told["kept"]:
        return "g writes the sum into its input, and autograd reads that input in the backward; sum a copy"
    if told["grad"] is None:
        return "no gradient comes back through g; a plain all_reduce of a detached copy is a constant to autograd"
    return None if told["grad"] == told["right"] else f"g's backward gives {told['grad']}, right is {told['right']}"


def safe_g(answer: Region) -> str | None:
    """Repair the in-place g: a right gradient after ReLU, or an error in place of a wrong one."""
    if not callable(answer) or isinstance(answer, type):
        return "pass `.apply` of the class, the function that calls it: `Safe.apply`"
    run = launch(_try_safe, answer, world_size=RANKS, timeout=5, check=False)
    for linear, relu in run:
        if "raised" in linear:
            return f"after a linear it raises: {linear['raised'].splitlines()[0]}"
        if linear["y"] != [sum(range(1, RANKS + 1))] * 4 or linear["grad"] != DOWN:
            return f"after a linear it gives {linear['y']} and the gradient {linear['grad']}, which are not right"
        if "raised" in relu and "modified by an inplace operation" in relu["raised"]:
            continue
        hint = _about_g(relu)
        if hint:
            return hint
    if "raised" in run[0][1]:
        return Solved("no copy; where the input is needed again, autograd now raises instead of going wrong")
    return Solved("right after ReLU too, at the price of one copy of its input; without a copy, it could only raise")


def _try_safe(g: Region) -> tuple[dict[str, Any], dict[str, Any]]:
    weight = torch.full((4,), dist.get_rank() + 1.0, requires_grad=True)
    y = g(weight * 1.0)  # like a linear, the product does not need its own output again
    value = y.tolist()
    try:
        y.backward(torch.tensor(DOWN))
        linear = {"y": value, "grad": _list(weight.grad)}
    except RuntimeError as error:
        linear = {"raised": str(error)}
    return linear, _after_relu(g)


def _list(tensor: torch.Tensor | None) -> list[float] | None:
    return None if tensor is None else tensor.tolist()


def _reduces(count: int) -> str:
    return f"{count} all-reduce{'' if count == 1 else 's'}"


EXERCISES = {"f-and-g": f_and_g, "safe-g": safe_g}
