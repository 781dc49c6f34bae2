"""Each collective that a rank calls by hand is one row of `comm`, its bytes by the convention of nccl-tests."""

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
}


def call_each() -> None:
    model = nn.Linear(1, 1)
    for step, (call, *_) in enumerate(CALLS.values()):
        with tp.measure(model, step=step):
            call()


@pytest.fixture(scope="module")
def called():
    return tp.launch(call_each, world_size=RANKS).comm


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


def point_to_point() -> float:
    """Rank 0 sends 6 numbers to rank 1 and one to rank 2; nobody else sends."""
    rank, model = dist.get_rank(), nn.Linear(1, 1)
    got = torch.zeros(6 if rank == 1 else 1)
    with tp.measure(model):
        if rank == 0:
            dist.send(x(6), 1)
            dist.isend(x(1), 2).wait()
        elif rank == 1:
            dist.recv(got, 0)
        else:
            dist.irecv(got).wait()  # from any rank
    return got.sum().item()


def test_send_and_recv():
    run = tp.launch(point_to_point, world_size=RANKS)
    assert run.values == [0.0, 6.0, 1.0]
    rows = run.comm[["rank", "op", "payload_bytes", "wire_bytes"]].values.tolist()
    assert rows == [[0, "send", 24, 24], [0, "send", 4, 4], [1, "recv", 24, 0], [2, "recv", 4, 0]]


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
