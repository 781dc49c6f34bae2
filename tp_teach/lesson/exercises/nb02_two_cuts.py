"""Exercises of notebook 02, One matmul, two cuts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tp_teach.launch import device, launch
from tp_teach.lesson.check import Solved
from tp_teach.measure import measure

RANKS, TOKENS, WIDTH, HIDDEN = 4, 10, 512, 1536
"""The MLP block of `eight-shapes`."""

PART = HIDDEN // RANKS
FC1 = {"weight": (PART, WIDTH), "bias": (PART,), "input": (TOKENS, WIDTH), "output": (TOKENS, PART)}
FC2 = {"weight": (WIDTH, PART), "bias": (WIDTH,), "input": (TOKENS, PART), "output": (TOKENS, WIDTH)}

WHY = {
    ("fc1", "bias"): "each number of the bias goes with one output feature, and those are cut",
    ("fc1", "input"): "every output feature needs all input features",
    ("fc1", "output"): "a rank computes its output features, for all tokens",
    ("fc2", "bias"): "the output features are not cut, and the bias goes with them",
    ("fc2", "input"): "a rank takes the features that its columns of `weight` multiply, for all tokens",
    ("fc2", "output"): "a partial sum has a number for each output feature",
}


def eight_shapes(answer: tuple[Mapping[str, tuple], Mapping[str, tuple], Mapping[str, str]]) -> str | None:
    """What one of four ranks has of a column-parallel and a row-parallel layer, and what joins their outputs."""
    if not isinstance(answer, tuple) or len(answer) != 3 or not all(isinstance(part, Mapping) for part in answer):
        return "the answer is three dictionaries, `(fc1_has, fc2_has, collectives)`"
    *shapes, collectives = answer
    for layer, right, told in zip(("fc1", "fc2"), (FC1, FC2), shapes, strict=True):
        if set(told) != set(right):
            return f"{layer}: fill in a shape each for {', '.join(right)}"
        for name, shape in right.items():
            hint = _wrong_shape(layer, name, told[name], shape)
            if hint:
                return f"{layer} {name}: {hint}"
    return _wrong_collectives(collectives)


def _wrong_shape(layer: str, name: str, told: Any, right: tuple[int, ...]) -> str | None:
    if told is None:
        return "there is no shape so far"
    told = (told,) if isinstance(told, int) else tuple(told)
    if told == right:
        return None
    if len(told) != len(right):
        return f"{told} has {len(told)} sizes, this has {len(right)}"
    if name == "weight":
        if told == right[::-1]:
            return "right numbers, but `nn.Linear` stores its weight as (out, in)"
        cut = "output" if layer == "fc1" else "input"
        return f"`nn.Linear` stores (out, in), and of this layer the {cut} features are cut"
    return WHY[layer, name]


def _wrong_collectives(told: Mapping[str, str]) -> str | None:
    if set(told) != {"fc1", "fc2"} or None in told.values():
        return "the shapes are right; name a collective each for fc1 and fc2"
    fc1, fc2 = (str(getattr(told[layer], "__name__", told[layer])).removeprefix("dist.") for layer in ("fc1", "fc2"))
    if fc1 != "all_gather":
        return "the shapes are right; each rank has some columns of fc1's output, complete: which collective collects?"
    if fc2 != "all_reduce":
        return "the shapes are right; fc2 leaves partial sums of the whole shape: which collective adds them up?"
    return None


def place_the_bias(answer: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> str | None:
    """A row-parallel linear with bias, from this rank's features and part of the weight, with one all_reduce."""
    if not callable(answer):
        return "pass the function itself, `my_row_linear`"
    for size in (4, 2):
        run = launch(_row_linear, answer, world_size=size, timeout=5)
        x, weight, bias = _layer()
        for rank, y in enumerate(run):
            hint = _wrong_output(y, F.linear(x, weight, bias), bias, size)
            if hint:
                return f"with {size} ranks, rank {rank} returned {hint}"
        calls = run.comm[run.comm["rank"] == 0]
        if len(calls) != 1 or calls["op"].iloc[0] != "all_reduce":
            score = f"it takes {len(calls)} collectives: {', '.join(calls['op'])}"
            return f"the output is right, but {score}; one all_reduce is enough"
    return Solved("one all_reduce, and the bias is in the sum once, with 4 ranks and with 2")


def _layer() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input, weight and bias of whole numbers; no bias is zero."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randint(-4, 5, shape, generator=generator).float() for shape in ((6, 8), (12, 8)))
    return x, weight, torch.arange(1.0, 13.0)


def _row_linear(answer: Callable[..., Any]) -> Any:
    x, weight, bias = (tensor.to(device()) for tensor in _layer())
    rank, size = dist.get_rank(), dist.get_world_size()
    with measure(nn.Identity()):
        return answer(x.chunk(size, 1)[rank], weight.chunk(size, 1)[rank], bias)


def _wrong_output(y: Any, right: torch.Tensor, bias: torch.Tensor, size: int) -> str | None:
    if not isinstance(y, torch.Tensor):
        return "no tensor; end the function with `return`"
    if y.shape != right.shape:
        return f"the shape {tuple(y.shape)}; y has {tuple(right.shape)}"
    if torch.allclose(y, right):
        return None
    times = ((y - right) / bias).mean().item() + 1
    if torch.allclose(y, right + (times - 1) * bias) and round(times) == times:
        often = "left out" if times == 0 else f"in it {times:.0f} times"
        return f"y with the bias {often}; add it once"
    return "a partial sum or something else that is not y; add up the ranks' products, then the bias"


EXERCISES = {"eight-shapes": eight_shapes, "place-the-bias": place_the_bias}
