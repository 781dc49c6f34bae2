"""`tp.timeline` tells compute from collectives, on one clock for all ranks."""

import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

import tp_teach as tp
from tests.measure.alone import logged
from tp_teach.train.loop import build

CONFIG = tp.TrainConfig(
    vocab_size=11, seq_len=5, d_model=8, hidden_dim=12, num_layers=2, num_classes=3, num_samples=9, batch_size=3
)


@pytest.fixture(scope="module")
def two():
    with tp.ranks(world_size=2, check=False) as ranks:
        yield ranks


def rows_of(run, rank: int, kind: str) -> list[dict]:
    """The rows of one rank without that of its whole call, in order."""
    rows = run.timeline[(run.timeline["rank"] == rank) & (run.timeline["kind"] == kind)]
    whole = run.timeline[run.timeline["rank"] == rank].iloc[-1]
    return rows[rows.index != whole.name].to_dict("records")


def by_hand() -> None:
    x, parts = torch.ones(64, 64), list(torch.empty(4, 64).chunk(2))
    with tp.timeline():
        y = x @ x
        dist.all_reduce(y)
        dist.broadcast(y, 0)
        dist.all_gather(parts, torch.ones(2, 64))
        dist.reduce_scatter_single(torch.empty(32, 64), y)
        torch.relu(y)
    torch.sigmoid(y)  # after the block: not traced


def test_each_operation_and_each_collective_is_a_row(two):
    run = two.launch(by_hand)
    for rank in range(2):
        assert [row["name"] for row in rows_of(run, rank, "collective")] == [
            "all_reduce",
            "broadcast",
            "all_gather",
            "all_reduce",  # Gloo's reduce_scatter
        ]
        compute = [row["name"] for row in rows_of(run, rank, "compute")]
        assert compute[0] == "matmul" and compute[-1] == "relu"
        assert "sigmoid" not in compute
    assert run.output == ["", ""]


def late(functionally: bool) -> None:
    """Rank 1 comes late to an all_reduce."""
    x = torch.ones(64)
    with tp.timeline():
        if dist.get_rank() == 1:
            time.sleep(0.2)
        if functionally:
            torch.relu(functional.all_reduce(x, "sum", dist.group.WORLD))
        else:
            dist.all_reduce(x)


@pytest.mark.parametrize("functionally", [True, False])
def test_waiting_for_the_others_belongs_to_the_collective_alone(two, functionally):
    run = two.launch(late, functionally)
    (early,), (last,) = (rows_of(run, rank, "collective") for rank in range(2))
    # Rank 0 waits from before rank 1 begins until after: the clocks agree, and nothing else went on.
    assert early["start"] < last["start"] < early["start"] + early["seconds"]
    assert not [
        row
        for row in rows_of(run, 0, "compute")
        if row["start"] <= last["start"] - 0.05 and row["start"] + row["seconds"] >= last["start"]
    ]


def toy_step() -> tuple[float, float]:
    model, optimizer = build(CONFIG, torch.device("cpu"), init_device_mesh("cpu", (dist.get_world_size(),)))
    tokens, labels = torch.zeros(3, 5, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)

    def step() -> None:
        torch.nn.functional.cross_entropy(model(tokens), labels).backward()
        optimizer.step()

    step()
    before = time.time()
    with tp.timeline():
        step()
    return before, time.time()


def test_a_training_step_is_some_hundred_rows_between_its_begin_and_end(two):
    run = two.launch(toy_step)
    names = []
    for rank in range(2):
        compute, talk = (rows_of(run, rank, kind) for kind in ("compute", "collective"))
        assert [row["name"] for row in talk] == ["all_reduce"] * 4
        names.append([row["name"] for row in compute])
        assert 50 < len(compute) < 200
        assert {"embedding", "layer_norm", "linear", "gelu", "MmBackward0", "AdamW.step"} <= set(names[rank])
        began, ended = run[rank]
        # The profiler's clock is fitted to the system's, to some microseconds.
        assert all(began <= row["start"] and row["start"] + row["seconds"] <= ended for row in (*compute, *talk))
        for row, after in zip(compute, compute[1:], strict=False):
            assert row["start"] + row["seconds"] <= after["start"] + 1e-6  # one thread does one thing at a time
    assert names[0] == names[1]


def after_an_error() -> str:
    try:
        with tp.timeline():
            torch.ones(2).sum()
            raise ValueError("the block's own")
    except ValueError as error:
        said = str(error)
    with tp.timeline():
        torch.ones(2).exp()
    return said


def test_an_error_in_the_block_is_its_own_and_leaves_no_rows(two):
    run = two.launch(after_an_error)
    assert list(run) == ["the block's own"] * 2
    assert [row["name"] for row in rows_of(run, 0, "compute")] == ["ones", "exp"]


def test_one_process_can_be_traced_without_ranks():
    def program() -> None:
        with tp.timeline():
            torch.ones(3).exp()

    assert [row["name"] for row in logged(program).rows["timeline"]] == ["ones", "exp"]
