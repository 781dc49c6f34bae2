"""Functions travel to the ranks, values travel home."""

import functools
import importlib
import os
import warnings
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import tp_teach as tp
from tp_teach.launch import pickling


@dataclass
class Box:
    content: Any
    note: str = ""


def rank_plus(number):
    return dist.get_rank() + number


class Adder:
    def __init__(self, number):
        self.number = number

    def add(self):
        return dist.get_rank() + self.number

    def __call__(self):
        return self.add()


def test_each_rank_returns_its_value_in_rank_order():
    def double(number):
        return dist.get_rank() * number, dist.get_world_size()

    run = tp.launch(double, 10, world_size=4)
    assert run.values == [(0, 4), (10, 4), (20, 4), (30, 4)]
    assert run[3] == (30, 4)
    assert len(run) == 4


def test_64_ranks_on_few_cores():
    def total():
        number = torch.tensor(dist.get_rank())
        dist.all_reduce(number)
        return number.item()

    assert tp.launch(total, world_size=64, check=False).values == [2016] * 64


@pytest.mark.parametrize(
    "fn",
    [
        lambda: dist.get_rank() + 5,
        rank_plus.__get__(5),
        functools.partial(rank_plus, 5),
        Adder(5),
        Adder(5).add,
    ],
    ids=["lambda", "method of a number", "partial", "callable object", "bound method"],
)
def test_anything_callable_runs(fn):
    assert tp.launch(fn, world_size=2).values == [5, 6]


config = 5


def test_a_variable_named_like_a_module_of_torch_travels():
    importlib.import_module("torch.distributed.config")  # `dist` has a module of that name, as notebooks have variables
    assert tp.launch(lambda: dist.get_rank() + config, world_size=2).values == [5, 6]


def test_a_builtin_runs():
    assert tp.launch(max, 3, 4, world_size=1).values == [4]


def test_a_class_runs_and_its_instance_comes_home():
    made = tp.launch(Box, "tea", world_size=1)[0]
    assert made == Box("tea")
    assert type(made) is Box


def test_a_tensor_too_large_for_a_pipe_comes_home():
    def count():
        return torch.arange(4_000_000)

    assert torch.equal(tp.launch(count, world_size=1)[0], torch.arange(4_000_000))


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs the system's mark of the highest memory")
def test_a_large_tensor_comes_home_without_a_copy_of_it():
    def peak():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

    size = 256 * 2**20
    tp.launch(torch.ones, 1, world_size=1)
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = peak()
    run = tp.launch(torch.ByteTensor, size, world_size=1)
    assert run[0].nbytes == size
    # Beside the tensor there is room for the piece of it that arrives and what else a launch takes, 16 MiB and some.
    assert peak() - before < 1.5 * size


def test_an_argument_too_large_for_a_pipe_arrives():
    assert tp.launch(torch.Tensor.sum, torch.ones(4_000_000), world_size=1)[0] == 4_000_000


def test_parameters_come_home_as_plain_tensors():
    def weights():
        return torch.nn.Linear(3, 2).state_dict(), torch.nn.Parameter(torch.ones(2))

    state, parameter = tp.launch(weights, world_size=1)[0]
    assert {name: tuple(weight.shape) for name, weight in state.items()} == {"weight": (2, 3), "bias": (2,)}
    assert type(parameter) is torch.Tensor
    assert not parameter.requires_grad


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tensor: tensor,
        lambda tensor: [tensor],
        lambda tensor: (1, tensor),
        lambda tensor: {"deep": [{"w": tensor}]},
        lambda tensor: OrderedDict(w=tensor),
    ],
    ids=["tensor", "list", "tuple", "nested", "ordered"],
)
def test_a_view_leaves_the_rest_of_its_storage_behind(wrap):
    large = torch.zeros(1_000_000)
    assert len(pickling.pack_value(wrap(large[:4]), {})[0]) < 10_000


@pytest.mark.parametrize("view", [torch.ones(3).expand(1000, 3), torch.arange(6).view(2, 3).t(), torch.empty(0)])
def test_odd_strides_keep_their_values(view):
    assert torch.equal(pickling.unpack_value(*pickling.pack_value(view, {})), view)


@pytest.mark.parametrize(
    "wrap, place",
    [
        (lambda tensor: tensor, "the returned value is a DTensor"),
        (lambda tensor: [1, tensor], "the returned value[1] is a DTensor"),
        (lambda tensor: {"w": (tensor,)}, "the returned value['w'][0] is a DTensor"),
        (lambda tensor: OrderedDict(w=tensor), "the returned value['w'] is a DTensor"),
        (lambda tensor: defaultdict(list, w=[tensor]), "the returned value['w'][0] is a DTensor"),
        (Box, "the returned value.content is a DTensor"),
        (lambda tensor: [Box({"w": tensor})], "the returned value[0].content['w'] is a DTensor"),
    ],
    ids=["bare", "list", "dict", "ordered", "default", "dataclass", "nested"],
)
def test_a_dtensor_is_refused_at_its_place(wrap, place):
    def cut():
        return wrap(distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,)), [Shard(0)]))

    with pytest.raises(tp.RankFailed) as failed:
        tp.launch(cut, world_size=1)
    assert failed.value.error == "ValueError"
    assert failed.value.reason.startswith(place)
    assert "return .to_local() or .full_tensor() instead" in failed.value.reason


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: [torch.nn.Linear(2, 2)], "the returned value[0] is a module (Linear); return its state_dict()"),
        (lambda: dist.group.WORLD, "the returned value is a process group"),
        (lambda: (number for number in range(3)), "the returned value cannot travel home"),
    ],
    ids=["module", "process group", "generator"],
)
def test_what_cannot_travel_home_is_refused_in_words(make, sentence):
    with pytest.raises(tp.RankFailed) as failed:
        tp.launch(make, world_size=1)
    assert failed.value.reason.startswith(sentence)


def test_what_cannot_travel_out_is_refused_before_a_start(tmp_path):
    with (tmp_path / "open").open("w") as file, pytest.raises(ValueError, match="cannot travel to the ranks"):
        tp.launch(lambda: file.name, world_size=1)


@pytest.mark.parametrize(
    "arguments, options, error, sentence",
    [
        ((3,), {"world_size": 2}, TypeError, "fn=3 is not callable"),
        ((os.getpid,), {"world_size": 0}, ValueError, "world_size=0 starts no rank"),
        ((os.getpid,), {"world_size": -1}, ValueError, "world_size=-1 starts no rank"),
        ((os.getpid,), {"world_size": 2.0}, TypeError, "world_size=2.0 is not a whole number"),
        ((os.getpid,), {"world_size": True}, TypeError, "world_size=True is not a whole number"),
        (
            (os.getpid,),
            {"world_size": 1, "timeout": 0},
            ValueError,
            "timeout=0 does not work; use 0.1 to 1,000,000 seconds",
        ),
        ((os.getpid,), {"world_size": 1, "timeout": "5"}, ValueError, "timeout='5' does not work"),
        ((os.getpid,), {"world_size": 1, "timeout": float("inf")}, ValueError, "timeout=inf does not work"),
        ((os.getpid,), {"world_size": 1, "timeout": float("nan")}, ValueError, "timeout=nan does not work"),
        ((os.getpid,), {"world_size": 1, "device": "tpu"}, ValueError, "device='tpu' is not known"),
        ((rank_plus,), {"world_size": 1}, TypeError, "0 arguments do not fit rank_plus(number)"),
        ((rank_plus, 1, 2), {"world_size": 1}, TypeError, "2 arguments do not fit rank_plus(number)"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, options, error, sentence):
    with pytest.raises(error) as refused:
        tp.launch(*arguments, **options)
    assert str(refused.value).startswith(sentence)


def test_an_argument_is_asked_whether_it_fits_the_ranks():
    class Plan:
        def check_ranks(self, world_size):
            raise ValueError(f"no {world_size} ranks")

    with pytest.raises(ValueError, match="no 3 ranks"):
        tp.launch(rank_plus, Plan(), world_size=3)


LUGGAGE = torch.zeros(15_000_000)


def test_a_large_variable_that_travels_by_accident_is_pointed_out():
    luggage = LUGGAGE

    def forgetful():
        return len(luggage)

    with pytest.warns(UserWarning, match="forgetful mentions the variable 'luggage', so 57 MiB travel to each rank"):
        assert tp.launch(forgetful, world_size=1).values == [15_000_000]


def test_a_large_argument_is_meant():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tp.launch(len, LUGGAGE, world_size=1).values == [15_000_000]
