"""Each collective that a rank calls by hand is one row of `comm`, its bytes by the convention of nccl-tests."""

import pickle
import time
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import nn

import tp_teach as tp

RANKS = 3


def x(numbers: int = 6, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(numbers, dtype=dtype)


def world() -> dist.ProcessGroup:
    return dist.group.WORLD


def receive_parts(call, given: torch.Tensor) -> None:
    """A gather or scatter whose list only rank 0 has."""
    parts = [x() for _ in range(RANKS)] if dist.get_rank() == 0 else None
    call(given, parts, 0)


# Called with 6 float32 numbers (24 bytes) a rank. Wanted: op, dtype, shape handed in, payload, ring bytes.
CALLS = {
    "all_reduce": (lambda: dist.all_reduce(x()), "all_reduce", "float32", "(6,)", 24, 32),
    "all_reduce, async": (lambda: dist.all_reduce(x(), async_op=True).wait(), "all_reduce", "float32", "(6,)", 24, 32),
    "all_reduce, bfloat16": (
        lambda: dist.all_reduce(x(6, torch.bfloat16)),
        "all_reduce",
        "bfloat16",
        "(6,)",
        12,
        16,
    ),
    "all_reduce, 2 of 7 bytes": (lambda: dist.all_reduce(x(7, torch.uint8)), "all_reduce", "uint8", "(7,)", 7, 9),
    "all_reduce, functional": (
        lambda: functional.all_reduce(x(), "sum", world()).sum(),
        "all_reduce",
        "float32",
        "(6,)",
        24,
        32,
    ),
    "all_gather_into_tensor": (
        lambda: dist.all_gather_into_tensor(x(18), x()),
        "all_gather",
        "float32",
        "(6,)",
        72,
        48,
    ),
    "all_gather, list": (
        lambda: dist.all_gather([x() for _ in range(RANKS)], x()),
        "all_gather",
        "float32",
        "(6,)",
        72,
        48,
    ),
    "all_gather, functional": (
        lambda: functional.all_gather_tensor(x(), 0, world()).sum(),
        "all_gather",
        "float32",
        "(6,)",
        72,
        48,
    ),
    "all_gather_single": (lambda: dist.all_gather_single(x(18), x()), "all_gather", "float32", "(6,)", 72, 48),
    "all_gather_coalesced": (
        lambda: dist.all_gather_coalesced([[x(), x(2)] for _ in range(RANKS)], [x(), x(2)]),
        "all_gather",
        "float32",
        "(6,), (2,)",
        96,
        64,
    ),
    "all_gather, functional and coalesced": (
        lambda: functional.all_gather_single_coalesced([x(), x(2)], world())[0].sum(),
        "all_gather",
        "float32",
        "(6,), (2,)",
        96,
        64,
    ),
    "all_reduce_coalesced": (
        lambda: dist.all_reduce_coalesced([x(), x(3)]),
        "all_reduce",
        "float32",
        "(6,), (3,)",
        36,
        48,
    ),
    "all_reduce, functional and coalesced": (
        lambda: functional.all_reduce_coalesced([x(), x()], "sum", world())[0].sum(),
        "all_reduce",
        "float32",
        "(6,)",
        48,
        64,
    ),
    "all_reduce, by the group": (
        lambda: world().allreduce([x()]).wait(),
        "all_reduce",
        "float32",
        "(6,)",
        24,
        32,
    ),
    "reduce_scatter_single": (
        lambda: dist.reduce_scatter_single(x(2), x()),
        "reduce_scatter",
        "float32",
        "(6,)",
        24,
        16,
    ),
    "reduce_scatter, functional and coalesced": (
        lambda: functional.reduce_scatter_single_coalesced([x(), x(3)], "sum", [0, 0], world())[0].sum(),
        "reduce_scatter",
        "float32",
        "(6,), (3,)",
        36,
        24,
    ),
    "reduce_scatter_tensor": (
        lambda: dist.reduce_scatter_tensor(x(2), x()),
        "reduce_scatter",
        "float32",
        "(6,)",
        24,
        16,
    ),
    "reduce_scatter, list": (
        lambda: dist.reduce_scatter(x(2), [x(2) for _ in range(RANKS)]),
        "reduce_scatter",
        "float32",
        "(2,)",
        24,
        16,
    ),
    "reduce_scatter, functional": (
        lambda: functional.reduce_scatter_tensor(x(), "sum", 0, world()).sum(),
        "reduce_scatter",
        "float32",
        "(6,)",
        24,
        16,
    ),
    "all_to_all_single": (lambda: dist.all_to_all_single(x(), x()), "all_to_all", "float32", "(6,)", 24, 16),
    "all_to_all, functional": (
        lambda: functional.all_to_all_single(x(), None, None, world()).sum(),
        "all_to_all",
        "float32",
        "(6,)",
        24,
        16,
    ),
    "all_to_all": (
        lambda: dist.all_to_all([x(2) for _ in range(RANKS)], [x(2) for _ in range(RANKS)]),
        "all_to_all",
        "float32",
        "(2,)",
        24,
        16,
    ),
    "permute_tensor": (
        lambda: functional.permute_tensor(x(), [1, 2, 0], world()).sum(),
        "all_to_all",
        "float32",
        "(6,)",
        24,
        16,
    ),
    "broadcast": (lambda: dist.broadcast(x(), 0), "broadcast", "float32", "(6,)", 24, 24),
    "broadcast, functional": (
        lambda: functional.broadcast(x(), 0, world()).sum(),
        "broadcast",
        "float32",
        "(6,)",
        24,
        24,
    ),
    "reduce": (lambda: dist.reduce(x(), 0), "reduce", "float32", "(6,)", 24, 24),
    "gather": (lambda: receive_parts(dist.gather, x()), "gather", "float32", "(6,)", 72, 48),
    "scatter": (lambda: receive_parts(dist.scatter, x()), "scatter", "float32", "(6,)", 72, 48),
    "barrier": (lambda: dist.barrier(), "barrier", "", "", 0, 0),
    "monitored_barrier": (lambda: dist.monitored_barrier(), "barrier", "", "", 0, 0),
}


THING = {"a": 1}
PICKLED = len(pickle.dumps(THING))


def of_rank_0(many: list) -> list | None:
    return many if dist.get_rank() == 0 else None


def leaf(numbers: int = 6) -> torch.Tensor:
    return x(numbers).requires_grad_()


# Calls that are several collectives: op and payload of each, the same on every rank. Objects travel as their size, an
# int64, and their bytes; what autograd can differentiate has a backward.
SEVERAL = {
    "all_gather_object": (
        lambda: dist.all_gather_object([None] * RANKS, THING),
        [("all_gather", 8 * RANKS), ("all_gather", PICKLED * RANKS)],
    ),
    "broadcast_object_list": (
        lambda: dist.broadcast_object_list([THING], 0),
        [("broadcast", 8), ("broadcast", PICKLED)],
    ),
    "gather_object": (
        lambda: dist.gather_object(THING, of_rank_0([None] * RANKS), 0),
        [("all_gather", 8 * RANKS), ("gather", PICKLED * RANKS)],
    ),
    "scatter_object_list": (
        lambda: dist.scatter_object_list([None], of_rank_0([THING] * RANKS), 0),
        [("broadcast", 8), ("scatter", PICKLED * RANKS), ("scatter", 8 * RANKS)],
    ),
    "functional.all_gather_single_autograd": (
        lambda: functional.all_gather_single_autograd(leaf(), 0, world()).sum().backward(),
        [("all_gather", 72), ("reduce_scatter", 72)],
    ),
    "functional.reduce_scatter_single_autograd": (
        lambda: functional.reduce_scatter_single_autograd(leaf(), "sum", 0, world()).sum().backward(),
        [("reduce_scatter", 24), ("all_gather", 24)],
    ),
    "functional.all_to_all_single_autograd": (
        lambda: functional.all_to_all_single_autograd(leaf(), None, None, world()).sum().backward(),
        [("all_to_all", 24), ("all_to_all", 24)],
    ),
    "nn.all_reduce": (
        lambda: differentiable.all_reduce(leaf()).sum().backward(),
        [("all_reduce", 24), ("all_reduce", 24)],
    ),
    "nn.all_gather": (
        lambda: sum(part.sum() for part in differentiable.all_gather(leaf())).backward(),
        # Gloo has no all_to_all of lists there: the backward is a scatter from each rank.
        [("all_gather", 72), *[("scatter", 72)] * RANKS],
    ),
    "nn.reduce_scatter": (
        lambda: differentiable.reduce_scatter(x(2), [leaf(2) for _ in range(RANKS)]).sum().backward(),
        [("reduce_scatter", 24), ("all_gather", 24)],
    ),
    "nn.all_to_all_single": (
        lambda: differentiable.all_to_all_single(x(), leaf()).sum().backward(),
        [("all_to_all", 24), ("all_to_all", 24)],
    ),
    "nn.broadcast": (lambda: differentiable.broadcast(leaf(), 0).sum().backward(), [("broadcast", 24), ("reduce", 24)]),
    "nn.reduce": (lambda: differentiable.reduce(leaf(), 0).sum().backward(), [("reduce", 24), ("broadcast", 24)]),
    "nn.gather": (
        lambda: sum(part.sum() for part in differentiable.gather(leaf(), 0)).backward(),
        [("gather", 72), ("scatter", 72)],
    ),
    "nn.scatter": (
        lambda: differentiable.scatter([leaf() for _ in range(RANKS)], 0).sum().backward(),
        [("scatter", 72), ("gather", 72)],
    ),
}


def call_each() -> None:
    warnings.simplefilter("ignore", FutureWarning)  # some are on their way out, but still in use
    model = nn.Linear(1, 1)
    for step, (call, *_) in enumerate([*CALLS.values(), *SEVERAL.values()]):
        with tp.measure(model, step=step):
            call()


@pytest.fixture(scope="module")
def called():
    # Without torch's own checks: after a monitored_barrier they refuse the next collective.
    return tp.launch(call_each, world_size=RANKS, check=False).comm


@pytest.mark.parametrize("name", CALLS)
def test_one_row_with_the_right_bytes(called, name):
    rows = called[called["step"] == list(CALLS).index(name)]
    _, op, dtype, shape, payload, wire = CALLS[name]
    columns = ["rank", "index", "op", "group", "group_size", "dtype", "payload_bytes", "wire_bytes", "phase", "module"]
    assert rows[columns].values.tolist() == [
        [rank, 0, op, "0,1,2", 3, dtype, payload, wire, "other", ""] for rank in range(RANKS)
    ]
    # A rank that hands nothing in (scatter) shows what it receives into; here all have the same shape.
    assert set(rows["shape"]) == {shape}


@pytest.mark.parametrize("name", SEVERAL)
def test_a_call_that_is_several_collectives(called, name):
    rows = called[called["step"] == len(CALLS) + list(SEVERAL).index(name)]
    for rank in range(RANKS):
        mine = rows[rows["rank"] == rank]
        assert list(zip(mine["op"], mine["payload_bytes"], strict=True)) == SEVERAL[name][1]


MEETINGS = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")


def test_every_public_collective_is_tried():
    words = ("reduce", "gather", "scatter", "broadcast", "all_to_all", "barrier", "send", "recv")
    public = {
        name
        for name in dir(dist)
        if name.islower() and callable(getattr(dist, name)) and any(word in name for word in words)
    }
    assert {name for name in public if name[0] != "_"} <= {
        *(name.partition(",")[0] for name in (*CALLS, *SEVERAL, *MEETINGS))
    }


def point_to_point() -> float:
    """Rank 0 sends 6 numbers to rank 1, one number to rank 2, and an object to rank 1; nobody else sends."""
    rank, model = dist.get_rank(), nn.Linear(1, 1)
    got = torch.zeros(6 if rank == 1 else 1)
    with tp.measure(model):
        if rank == 0:
            dist.send(x(6), 1)
            dist.isend(x(1), 2).wait()
            dist.send_object_list([THING], 1)
        elif rank == 1:
            dist.recv(got, 0)
            dist.recv_object_list([None], 0)
        else:
            dist.irecv(got).wait()  # from any rank
    return got.sum().item()


def rows_of_meetings(run) -> list[list]:
    return run.comm[["rank", "op", "group", "group_size", "payload_bytes", "wire_bytes"]].values.tolist()


def test_send_and_recv():
    run = tp.launch(point_to_point, world_size=RANKS)
    assert run.values == [0.0, 6.0, 1.0]
    assert rows_of_meetings(run) == [
        [0, "send", "0,1", 2, 24, 24],
        [0, "send", "0,2", 2, 4, 4],
        [0, "send", "0,1", 2, 8, 8],
        [0, "send", "0,1", 2, PICKLED, PICKLED],
        [1, "recv", "0,1", 2, 24, 0],
        [1, "recv", "0,1", 2, 8, 0],
        [1, "recv", "0,1", 2, PICKLED, 0],
        [2, "recv", "0,1,2", 3, 4, 0],
    ]


def pass_on(seconds: bool) -> list[float]:
    """In a group of ranks 1 and 2, which are 0 and 1 there, each sends the other 6 numbers, in three ways."""
    pair = dist.new_group([1, 2])
    rank = dist.get_rank()
    other, there = 3 - rank, 2 - rank
    got = [torch.zeros(6) for _ in range(3)]
    if rank == 0:
        return []
    with tp.measure(nn.Linear(1, 1), seconds=seconds):
        sends = [dist.P2POp(dist.isend, x(), other, pair), dist.P2POp(dist.irecv, got[0], other, pair)]
        for work in dist.batch_isend_irecv(sends):
            work.wait()
        calls = (["isend", "irecv"], [there, there], [0, 0], [x(), got[1]], pair.group_name)
        for part in torch.ops._c10d_functional.batch_p2p_ops(*calls):
            torch.ops._c10d_functional.wait_tensor(part)
        parts = [
            torch.ops._c10d_functional.isend(x(), there, 0, pair.group_name),
            torch.ops._c10d_functional.irecv(got[2], there, 0, pair.group_name),
        ]
        for part in parts:
            torch.ops._c10d_functional.wait_tensor(part)
    return [tensor.sum().item() for tensor in got]


@pytest.mark.parametrize("seconds", [False, True])
def test_an_exchange_within_a_group_names_the_ranks_of_the_world(seconds):
    run = tp.launch(pass_on, seconds, world_size=RANKS)
    assert run.values == [[], [6.0] * 3, [6.0] * 3]
    both = [["send", "1,2", 2, 24, 24], ["recv", "1,2", 2, 24, 0]]
    assert rows_of_meetings(run) == [[rank, *row] for rank in (1, 2) for row in both * 3]
    assert run.comm["seconds"].isna().all()


def late(seconds: bool) -> list[bool]:
    """Rank 1 comes late to each call. Is the result there when the call returns on rank 0?"""
    rank, given = dist.get_rank(), torch.ones(6)
    there = []
    dist.barrier()
    with tp.measure(nn.Linear(1, 1), seconds=seconds):
        time.sleep(0.2 * rank)
        there.append(dist.all_reduce(given, async_op=True).is_completed())
        time.sleep(0.2 * rank)
        total = functional.all_reduce(given, "sum", world())
        there.append(total.elem.sum().item() == 24)
        total.sum()
        dist.barrier()
    return there


def test_with_seconds_a_result_is_there_when_the_call_returns():
    run = tp.launch(late, True, world_size=2, check=False)
    assert run.values == [[True, True]] * 2
    assert (run.comm["seconds"] > 0).all() and len(run.comm) == 2 * 3
    assert tp.launch(late, False, world_size=2, check=False).comm["seconds"].isna().all()


def in_a_subgroup() -> None:
    rank = dist.get_rank()
    pair = dist.new_group([0, 2])
    with tp.measure(nn.Linear(1, 1)):
        if rank != 1:
            dist.all_reduce(x(), group=pair)
            functional.all_gather_tensor(x(), 0, pair).sum()


def test_a_subgroup_counts_its_own_ranks():
    comm = tp.launch(in_a_subgroup, world_size=RANKS).comm
    wanted = [["all_reduce", "0,2", 2, 24, 24], ["all_gather", "0,2", 2, 48, 24]]
    rows = comm[["rank", "op", "group", "group_size", "payload_bytes", "wire_bytes"]].values.tolist()
    assert rows == [[rank, *row] for rank in (0, 2) for row in wanted]


class Summed(nn.Module):
    """Sums a linear's output over the ranks, by a collective that has a backward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2, bias=False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return differentiable.all_reduce(self.linear(given))


def differentiate() -> None:
    model = Summed()
    with tp.measure(model):
        model(torch.ones(3, 4)).sum().backward()


def test_a_collective_inside_autograd_is_seen_both_ways():
    comm = tp.launch(differentiate, world_size=2).comm
    rows = comm[comm["rank"] == 0][["phase", "op", "shape", "payload_bytes"]].values.tolist()
    assert rows == [["forward", "all_reduce", "(3, 2)", 24], ["backward", "all_reduce", "(3, 2)", 24]]


def data_parallel() -> None:
    model = nn.Linear(4, 2)
    wrapped = nn.parallel.DistributedDataParallel(model)
    with tp.measure(wrapped):
        wrapped(torch.ones(3, 4)).sum().backward()


def test_the_all_reduce_of_native_data_parallel_code_is_seen():
    # Without torch's own checks: under them this version of torch crashes when the data-parallel model is dropped.
    comm = tp.launch(data_parallel, world_size=2, check=False).comm
    rows = comm[(comm["rank"] == 0) & (comm["phase"] == "backward")][["op", "payload_bytes"]].values.tolist()
    assert rows == [["all_reduce", 4 * (4 * 2 + 2)]]
