"""Ranks that never meet: where each of them stands. Many cases wait at the same time."""

import inspect
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import tp_teach as tp

TIMEOUT = 4


def alone(wait):
    """The first rank calls `wait`, the others return."""

    def first_waits():
        if dist.get_rank() == 0:
            wait()

    return first_waits


def first_reduces_alone():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2, 3))


def one_sleeps():
    if dist.get_rank() == 2:
        time.sleep(1000)
    dist.barrier()


def one_loops():
    if dist.get_rank() == 0:
        while True:
            pass
    dist.barrier()


def one_counts():
    if dist.get_rank() == 1:
        sum(range(10**12))
    dist.barrier()


def read_alone():
    whole = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])
    if dist.get_rank() == 0:
        whole.full_tensor()


def in_new_group():
    group = dist.new_group([0, 1])
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2), group=group)
    elif dist.get_rank() == 1:
        time.sleep(1000)


def in_mesh_dimension():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2), group=mesh["tp"].get_group())


CALLS = {
    "recv of (2,) float32": lambda: dist.recv(torch.ones(2), 1),
    "barrier": lambda: dist.barrier(),
    "all_reduce of (2,) float32": lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(),
    "broadcast of (2,) float32": lambda: dist.broadcast(torch.ones(2), 0),
}
LATER = {
    "irecv": lambda: dist.irecv(torch.ones(2), 1).wait(),
    "batch": lambda: dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(2), 1)])[0].wait(),
}
GROUPS = {
    "new_group": (in_new_group, 2),
    "mesh": (in_mesh_dimension, 4),
    "making a group": (alone(lambda: dist.new_group([0, 1])), 2),
}
CASES = {
    **{("returned", check): (first_reduces_alone, 2, check) for check in (True, False)},
    **{(name, check): (fn, ranks, check) for name, (fn, ranks) in GROUPS.items() for check in (True, False)},
    **{call: (alone(wait), 2, True) for call, wait in (CALLS | LATER).items()},
    "sleep": (one_sleeps, 3, True),
    "loop": (one_loops, 2, True),
    "native": (one_counts, 2, True),
    "full_tensor": (read_alone, 2, True),
}


def launch(fn, world_size, check):
    try:
        tp.launch(fn, world_size=world_size, timeout=TIMEOUT, check=check)
    except tp.RanksStuck as stuck:
        return stuck


@pytest.fixture(scope="module")
def stuck():
    # Not all at once: until its ranks have met, a world waits no longer than its timeout either.
    with ThreadPoolExecutor(6) as pool:
        waiting = {name: pool.submit(launch, *case) for name, case in CASES.items()}
        return {name: future.result(timeout=120) for name, future in waiting.items()}


@pytest.mark.parametrize("check", [True, False])
def test_a_rank_that_has_returned_is_waited_for(stuck, check):
    error = stuck["returned", check]
    assert error.missing == [1]
    assert [state.rank for state in error.states] == [0, 1]
    assert error.states[0].waits_in == "all_reduce of (2, 3) float32"
    assert error.states[0].line.endswith("dist.all_reduce(torch.ones(2, 3))")
    assert error.states[1].over == "returned"
    first, *table = str(error).splitlines()
    assert first == f"rank 0 waited {TIMEOUT} s for rank 1"
    assert [row.split()[:2] for row in table] == [["rank", "0"], ["rank", "1"]]


def test_a_rank_that_does_something_else_shows_its_line(stuck):
    error = stuck["sleep"]
    assert error.missing == [2]
    assert error.states[2].line.endswith("time.sleep(1000)")
    assert error.states[2].line.startswith("test_stuck.py, line ")
    assert str(error).splitlines()[0] == f"ranks 0 and 1 waited {TIMEOUT} s for rank 2"


def test_a_rank_in_an_endless_loop_shows_its_line(stuck):
    assert stuck["loop"].missing == [0]
    assert stuck["loop"].states[0].line.endswith(("while True:", "pass"))


def test_a_rank_inside_native_code_that_cannot_answer(stuck):
    assert stuck["native"].missing == [1]
    assert "native code" in str(stuck["native"])


@pytest.mark.parametrize("call", CALLS)
def test_the_call_that_waits_is_named(stuck, call):
    assert stuck[call].states[0].waits_in == call


@pytest.mark.parametrize("name", LATER)
def test_a_receive_that_is_awaited_later_is_stuck_too(stuck, name):
    assert stuck[name].missing == [1]


def test_full_tensor_on_one_rank(stuck):
    assert stuck["full_tensor"].states[0].waits_in.startswith("full_tensor")


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", GROUPS)
def test_the_timeout_holds_in_groups_that_the_function_makes(stuck, name, check):
    assert 0 not in stuck[name, check].missing
    assert 1 in stuck[name, check].missing


def test_the_timeout_is_a_minute_if_nobody_says_otherwise():
    for call in (tp.launch, tp.ranks):
        assert inspect.signature(call).parameters["timeout"].default == 60


def test_a_long_computation_is_not_ended():
    def slow():
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            torch.ones(10).sum()
        return "done"

    assert tp.launch(slow, world_size=2, timeout=2).values == ["done", "done"]
