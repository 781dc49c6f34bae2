"""The exercises of notebook 02: the solution passes, and typical wrong answers get the hint that helps."""

import pytest
import torch.distributed as dist
from torch.nn import functional as F

from tp_teach.lesson.check import verdict

FC1 = {"weight": (384, 512), "bias": (384,), "input": (10, 512), "output": (10, 384)}
FC2 = {"weight": (512, 384), "bias": (512,), "input": (10, 384), "output": (10, 512)}
BOTH = {"fc1": "all_gather", "fc2": "all_reduce"}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((FC1, FC2, BOTH), "ok"),
        (({**FC1, "bias": 384}, FC2, {"fc1": dist.all_gather, "fc2": "dist.all_reduce"}), "ok"),
        (FC1, "three dictionaries"),
        ((dict.fromkeys(FC1), FC2, BOTH), "fc1 weight: there is no shape so far"),
        (({"weight": (384, 512)}, FC2, BOTH), "fc1: fill in a shape each"),
        (({**FC1, "weight": (512, 384)}, FC2, BOTH), "fc1 weight: right numbers, but `nn.Linear` stores"),
        (({**FC1, "weight": (1536, 128)}, FC2, BOTH), "the output features are cut"),
        (({**FC1, "bias": (1536,)}, FC2, BOTH), "fc1 bias: each number of the bias"),
        (({**FC1, "input": (10, 128)}, FC2, BOTH), "needs all input features"),
        ((FC1, {**FC2, "bias": (128,)}, BOTH), "fc2 bias: the output features are not cut"),
        ((FC1, {**FC2, "output": (10, 128)}, BOTH), "fc2 output: a partial sum"),
        ((FC1, {**FC2, "input": (3, 1536)}, BOTH), "for all tokens"),
        ((FC1, {**FC2, "output": (512,)}, BOTH), "has 1 sizes, this has 2"),
        ((FC1, FC2, dict.fromkeys(BOTH)), "name a collective each"),
        ((FC1, FC2, {**BOTH, "fc1": "all_reduce"}), "which collective collects"),
        ((FC1, FC2, {**BOTH, "fc2": "all_gather"}), "which collective adds them up"),
    ],
)
def test_eight_shapes(answer, says):
    said = verdict("eight-shapes", answer)
    assert says in said and (said == "ok") == (says == "ok")


def right(x_part, weight_part, bias):
    y = F.linear(x_part, weight_part)
    dist.all_reduce(y)
    return y + bias


def on_rank_0(x_part, weight_part, bias):
    y = F.linear(x_part, weight_part, bias if dist.get_rank() == 0 else None)
    dist.all_reduce(y)
    return y


def on_every_rank(x_part, weight_part, bias):
    y = F.linear(x_part, weight_part, bias)
    dist.all_reduce(y)
    return y


def forgotten(x_part, weight_part, bias):
    y = F.linear(x_part, weight_part)
    dist.all_reduce(y)
    return y


def not_reduced(x_part, weight_part, bias):
    return F.linear(x_part, weight_part) + bias


def reduced_too(x_part, weight_part, bias):
    y = F.linear(x_part, weight_part)
    dist.all_reduce(y)
    bias = bias / dist.get_world_size()
    dist.all_reduce(bias)
    return y + bias


def for_four(x_part, weight_part, bias):
    y = F.linear(x_part, weight_part, bias / 4)
    dist.all_reduce(y)
    return y


def no_return(x_part, weight_part, bias):
    right(x_part, weight_part, bias)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (right, "ok: one all_reduce"),
        (on_rank_0, "ok: one all_reduce"),
        (None, "no answer"),
        (7, "the function itself"),
        (on_every_rank, "with 4 ranks, rank 0 returned y with the bias in it 4 times"),
        (forgotten, "the bias left out"),
        (not_reduced, "a partial sum"),
        (reduced_too, "2 collectives: all_reduce, all_reduce; one all_reduce is enough"),
        (for_four, "with 2 ranks, rank 0 returned"),
        (no_return, "no tensor"),
    ],
)
def test_place_the_bias(answer, says):
    said = verdict("place-the-bias", answer)
    assert says in said and said.startswith("ok") == (answer in (right, on_rank_0))
