"""`tp.ranks`: the same processes for several launches, with the same results and the same failures."""

import os

import pytest
import torch
import torch.distributed as dist

import tp_teach as tp
from tests.launch.processes import gone


def add_up(start):
    number = torch.tensor(start + dist.get_rank())
    dist.all_reduce(number)
    print("sum", number.item())
    return number.item(), os.getpid()


def test_calls_share_processes_and_say_what_a_launch_says(capsys):
    with tp.ranks(world_size=3) as ranks:
        runs = [ranks.launch(add_up, start) for start in (0, 10)]
    first, second = [[value for value, _ in run] for run in runs]
    assert first == [3, 3, 3] and second == [33, 33, 33]
    assert [pid for _, pid in runs[0]] == [pid for _, pid in runs[1]]
    assert [run.output for run in runs] == [["sum 3\n"] * 3, ["sum 33\n"] * 3]
    assert capsys.readouterr().out.splitlines() == [f"[rank {r}] sum {s}" for s in (3, 33) for r in range(3)]


def test_measurements_of_one_call_do_not_come_home_with_the_next():
    def measured():
        model = torch.nn.Linear(2, 2)
        with tp.measure(model):
            dist.all_reduce(torch.ones(4))

    with tp.ranks(world_size=2) as ranks:
        runs = [ranks.launch(measured), ranks.launch(dist.get_rank), ranks.launch(measured)]
    assert [len(run.comm) for run in runs] == [2, 0, 2]


def test_the_processes_end_with_the_block():
    with tp.ranks(world_size=2) as ranks:
        pids = ranks.launch(os.getpid).values
        assert not any(gone(pid) for pid in pids)
    assert all(gone(pid) for pid in pids)
    with pytest.raises(RuntimeError, match="these ranks are over: its block has ended"):
        ranks.launch(os.getpid)


def test_the_processes_end_when_the_block_raises():
    with pytest.raises(ZeroDivisionError), tp.ranks(world_size=2) as ranks:
        pids = ranks.launch(os.getpid).values
        1 / 0  # noqa: B018
    assert all(gone(pid) for pid in pids)


def fail_on_rank_1():
    if dist.get_rank() == 1:
        raise ValueError("once")


@pytest.mark.parametrize(
    ("fn", "error"),
    [(fail_on_rank_1, tp.RankFailed), (lambda: dist.get_rank() or dist.barrier(), tp.RanksStuck)],
    ids=["raises", "stuck"],
)
def test_after_a_failure_the_block_is_over(fn, error):
    with tp.ranks(world_size=2, timeout=2) as ranks:
        pids = ranks.launch(os.getpid).values
        with pytest.raises(error):
            ranks.launch(fn)
        assert all(gone(pid) for pid in pids)
        with pytest.raises(RuntimeError, match=f"these ranks are over: an earlier launch ended with {error.__name__}"):
            ranks.launch(os.getpid)


def test_a_call_that_cannot_start_leaves_the_block_open():
    with tp.ranks(world_size=2) as ranks:
        with pytest.raises(TypeError, match="do not fit"):
            ranks.launch(add_up)
        assert ranks.launch(dist.get_rank).values == [0, 1]
