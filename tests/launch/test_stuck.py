"""Ranks that never meet: where each of them stands."""

import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import tp_teach as tp


def stuck(fn, *args, timeout=2, world_size=2, **options):
    with pytest.raises(tp.RanksStuck) as caught:
        tp.launch(fn, *args, world_size=world_size, timeout=timeout, **options)
    return caught.value


@pytest.mark.parametrize("check", [True, False])
def test_a_rank_that_has_returned_is_waited_for(check):
    def first_reduces_alone():
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(2, 3))

    error = stuck(first_reduces_alone, check=check)
    assert error.missing == [1]
    assert [state.rank for state in error.states] == [0, 1]
    assert error.states[0].waits_in == "all_reduce of (2, 3) float32"
    assert error.states[0].line.endswith("dist.all_reduce(torch.ones(2, 3))")
    assert error.states[1].over == "returned"
    first, *table = str(error).splitlines()
    assert first == "rank 0 waited 2 s for rank 1"
    assert [row.split()[:2] for row in table] == [["rank", "0"], ["rank", "1"]]


def test_a_rank_that_does_something_else_shows_its_line():
    def one_sleeps():
        if dist.get_rank() == 2:
            time.sleep(1000)
        dist.barrier()

    error = stuck(one_sleeps, world_size=3)
    assert error.missing == [2]
    assert error.states[2].line.endswith("time.sleep(1000)")
    assert error.states[2].line.startswith("test_stuck.py, line ")
    assert str(error).splitlines()[0] == "ranks 0 and 1 waited 2 s for rank 2"


def test_a_rank_inside_native_code_that_cannot_answer():
    def one_counts():
        if dist.get_rank() == 1:
            sum(range(10**12))
        dist.barrier()

    error = stuck(one_counts)
    assert error.missing == [1]
    assert "native code" in str(error)


@pytest.mark.parametrize(
    "wait, call",
    [
        (lambda: dist.recv(torch.ones(2), 1), "recv of (2,) float32"),
        (lambda: dist.barrier(), "barrier"),
        (lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(), "all_reduce of (2,) float32"),
        (lambda: dist.broadcast(torch.ones(2), 0), "broadcast of (2,) float32"),
    ],
    ids=["recv", "barrier", "async all_reduce", "broadcast"],
)
def test_the_call_that_waits_is_named(wait, call):
    def first_waits():
        if dist.get_rank() == 0:
            wait()

    assert stuck(first_waits).states[0].waits_in == call


def test_full_tensor_on_one_rank():
    def read_alone():
        whole = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])
        if dist.get_rank() == 0:
            whole.full_tensor()

    assert stuck(read_alone).states[0].waits_in.startswith("full_tensor")


def test_a_long_computation_is_not_ended():
    def slow():
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            torch.ones(10).sum()
        return "done"

    assert tp.launch(slow, world_size=2, timeout=2).values == ["done", "done"]
