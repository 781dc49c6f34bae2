"""The exercises of notebook 05: the solution passes, and typical wrong answers get the hint that helps."""

from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

import tp_teach as tp
from tp_teach.lesson.check import verdict
from tp_teach.lesson.exercises.nb05_dtensor import judge_calls, run_plans

PLANS = {
    "A": {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()},
    "B": {"fc2": RowwiseParallel(input_layouts=Replicate())},
    "C": {
        "fc1": ColwiseParallel(output_layouts=Replicate()),
        "fc2": RowwiseParallel(input_layouts=Replicate()),
    },
    "D": {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()},
    "E": {"fc1": ColwiseParallel(input_layouts=Shard(1)), "fc2": RowwiseParallel(output_layouts=Shard(1))},
}
RIGHT = {"A": (1, 1), "B": (1, 1), "C": (2, 2), "D": (1, 2), "E": (2, 2)}


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (RIGHT, "ok"),
        (RIGHT | {"E": 4}, "for plan E write two whole numbers"),
        (RIGHT | {"F": (0, 0)}, "say one pair for each of the plans A, B, C, D, E"),
        (dict.fromkeys(PLANS), "no answer so far"),
    ],
)
def test_five_plans(told, says):
    said = verdict("five-plans", (PLANS, told))
    assert says in said and (said == "ok") == (says == "ok")


@pytest.fixture(scope="module")
def plans_run() -> tp.Run:
    return tp.launch(run_plans, PLANS, world_size=2, check=False)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"B": (1, 0)}, "plan B issues more than 0 backward"),
        ({"C": (1, 2)}, "plan C issues more than 1 forward: go through the placements"),
        ({"D": (1, 3)}, "plan D issues fewer than 3 backward"),
    ],
)
def test_a_wrong_count_of_five_plans(plans_run, wrong, says):
    assert says in judge_calls(RIGHT | wrong, list(PLANS), plans_run)


PREPARED = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate(), use_local_output=False)
PLAIN = {"mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
GATHERED = {
    "mlp.gate": ColwiseParallel(output_layouts=Replicate()),
    "mlp.up": ColwiseParallel(output_layouts=Replicate()),
    "mlp.down": RowwiseParallel(input_layouts=Replicate()),
}


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"mlp": PREPARED, **PLAIN}, "ok: 2 collectives, 512 bytes sent by a rank: none can be saved"),
        (PLAIN, "2 will do: gate and up each reduce"),
        (GATHERED, "between gate, up and down nothing has to be gathered"),
        ({name: style for name, style in PLAIN.items() if name != "mlp.up"}, "not yet"),
        ({"mlp.down": RowwiseParallel(input_layouts=Replicate())}, "mlp.gate.weight is whole on every rank"),
        ({"gate": ColwiseParallel()}, "'gate' is no module of this model"),
        ({"mlp": PREPARED, **PLAIN, "mlp.down": RowwiseParallel(use_local_output=False)}, "whole, plain tensor"),
        ("Colwise", "a plan is a dictionary"),
    ],
)
def test_cheapest_plan(plan, says):
    said = verdict("cheapest-plan", plan)
    assert says in said and said.startswith("ok") == says.startswith("ok")


def make():
    return nn.Sequential(OrderedDict(fc1=nn.Linear(8, 16), act=nn.GELU(), fc2=nn.Linear(16, 8)))


def cut(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()})


def right():
    model = make()
    cut(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def optimizer_first():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cut(model)
    return model, optimizer


def not_cut():
    model = make()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def half():
    model = make()
    cut(model)
    return model, torch.optim.SGD(model.fc1.parameters(), lr=0.1)


def other_way_round():
    return right()[::-1]


def no_return():
    right()


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (right, "ok"),
        (optimizer_first, "it was built before the model was cut or replaced. Which line must come first?"),
        (not_cut, "a matrix is not cut"),
        (half, "will not move"),
        (other_way_round, "the model first"),
        (no_return, "return two things"),
        (7, "pass the function itself"),
    ],
)
def test_right_order(build, says):
    said = verdict("right-order", build)
    assert says in said and (said == "ok") == (build is right)
