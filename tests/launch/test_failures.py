"""One rank's failure is the caller's exception, and nothing else is."""

import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import tp_teach as tp
from tests.launch.processes import gone, wait_until


def failure(fn, *args, **options):
    with pytest.raises(tp.RankFailed) as failed:
        tp.launch(fn, *args, **options)
    return failed.value


@pytest.mark.parametrize("check", [True, False])
def test_the_rank_that_raised_is_named_and_its_peers_are_silent(check, capfd):
    def third_fails():
        if dist.get_rank() == 2:
            raise ValueError("wrong head count")
        dist.all_reduce(torch.ones(1000))

    failed = failure(third_fails, world_size=4, check=check)
    assert (failed.rank, failed.error, failed.reason) == (2, "ValueError", "wrong head count")
    assert str(failed).splitlines()[0] == "rank 2 raised ValueError: wrong head count"
    assert 'raise ValueError("wrong head count")' in failed.traceback
    assert capfd.readouterr() == ("", "")


def test_the_traceback_is_the_learners_lines_alone():
    def scale(tensor):
        return tensor @ torch.ones(5)

    def forward():
        return scale(torch.ones(2, 3))

    failed = failure(forward, world_size=1)
    assert [line.strip() for line in failed.traceback.splitlines() if not line.startswith("  File")] == [
        "return scale(torch.ones(2, 3))",
        "return tensor @ torch.ones(5)",
    ]


def test_an_error_inside_torch_shows_the_call_and_not_torch():
    def wrong_shape():
        torch.nn.Linear(3, 2)(torch.ones(4))

    failed = failure(wrong_shape, world_size=1)
    assert "torch.nn.Linear(3, 2)(torch.ones(4))" in failed.traceback
    assert os.path.dirname(torch.__file__) not in failed.traceback


def test_a_chained_exception_keeps_its_cause():
    def chained():
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("no such plan") from error

    failed = failure(chained, world_size=1)
    assert failed.reason == "no such plan"
    assert "KeyError: 'missing'" in failed.traceback
    assert "direct cause" in failed.traceback


def test_an_exception_that_does_not_pickle():
    class Stubborn(Exception):
        def __init__(self, text, more):
            super().__init__(text)
            self.more = (number for number in range(more))

    def stubborn():
        raise Stubborn("mine", 2)

    failed = failure(stubborn, world_size=2)
    assert (failed.rank, failed.error, failed.reason) == (0, "Stubborn", "mine")


def test_exit_is_a_failure():
    failed = failure(sys.exit, 3, world_size=1)
    assert (failed.error, failed.reason) == ("SystemExit", "3")


def test_a_keyboard_interrupt_inside_a_rank_is_that_ranks_failure():
    def interrupted():
        if dist.get_rank() == 1:
            raise KeyboardInterrupt("inside")
        dist.barrier()

    failed = failure(interrupted, world_size=2)
    assert (failed.rank, failed.error) == (1, "KeyboardInterrupt")


def test_endless_recursion_is_told_in_few_lines():
    def deeper(depth=0):
        return deeper(depth + 1)

    failed = failure(deeper, world_size=1)
    assert failed.error == "RecursionError"
    assert "Previous line repeated" in failed.traceback
    assert len(failed.traceback.splitlines()) < 20


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM"])
def test_a_rank_that_a_signal_ends_is_named_with_the_signal(name):
    def die(number):
        if dist.get_rank() == 1:
            os.kill(os.getpid(), number)
        dist.barrier()

    failed = failure(die, signal.Signals[name].value, world_size=2)
    assert failed.rank == 1
    assert failed.error is None
    assert failed.reason.startswith(f"was ended by {name}")


def test_a_rank_that_leaves_without_an_answer():
    def leave():
        if dist.get_rank() == 1:
            os._exit(7)
        dist.barrier()

    failed = failure(leave, world_size=2)
    assert failed.rank == 1
    assert "exit code 7" in failed.reason


def test_different_shapes_are_named_for_both_ranks():
    def differ():
        dist.all_reduce(torch.ones(2 + dist.get_rank()))

    failed = failure(differ, world_size=2)
    assert "the ranks call different collectives" in failed.reason
    assert "rank 0 calls all_reduce of (2,) float32" in failed.reason
    assert "rank 1 calls all_reduce of (3,) float32" in failed.reason


def other_dtype():
    dist.all_reduce(torch.ones(2, dtype=(torch.float32, torch.float64)[dist.get_rank()]))


def other_operation():
    dist.barrier() if dist.get_rank() else dist.all_reduce(torch.ones(2))


def other_order():
    for turn in range(2):
        if turn == dist.get_rank():
            dist.all_reduce(torch.ones(2))
        else:
            dist.broadcast(torch.ones(2), 0)


@pytest.mark.parametrize(
    ("fn", "sides"),
    [
        (other_dtype, ["all_reduce of (2,) float32", "all_reduce of (2,) float64"]),
        (other_operation, ["all_reduce of (2,) float32", "barrier"]),
        (other_order, ["all_reduce of (2,) float32", "broadcast of (2,) float32"]),
    ],
)
def test_what_else_differs_is_named_for_both_ranks(fn, sides):
    reason = failure(fn, world_size=2).reason
    assert reason.startswith("the ranks call different collectives") and all(side in reason for side in sides), reason


def different_sizes():
    dist.all_reduce(torch.ones(1000 * (1 + dist.get_rank())))


@pytest.mark.parametrize("fn", [different_sizes, other_operation])
def test_without_checks_a_mismatch_still_ends_in_a_readable_error(fn):
    with pytest.raises((tp.RankFailed, tp.RanksStuck)) as ended:
        tp.launch(fn, world_size=2, check=False, timeout=4, show="none")
    first = str(ended.value).splitlines()[0]
    assert first.startswith(("rank 0 ", "rank 1 ", "the ranks waited 4 s")), first
    assert len(str(ended.value).splitlines()) < 12


def test_the_peers_have_ended_when_the_failure_arrives(tmp_path):
    def one_fails(folder):
        (folder / str(dist.get_rank())).write_text(str(os.getpid()))
        dist.barrier()
        if dist.get_rank() == 0:
            raise ValueError("first")
        while True:
            pass

    failure(one_fails, tmp_path, world_size=3)
    assert [gone(int((tmp_path / str(rank)).read_text())) for rank in range(3)] == [True] * 3


def test_a_failing_rank_takes_its_own_children_along(tmp_path):
    def with_child(note):
        child = subprocess.Popen(["sleep", "1000"])
        note.write_text(str(child.pid))
        raise ValueError("after the child started")

    failure(with_child, tmp_path / "pid", world_size=1)
    wait_until(lambda: gone(int((tmp_path / "pid").read_text())), seconds=2)


def test_the_next_launch_starts_clean():
    def fail_once(rank):
        torch.tp_teach_mark = True
        raise ValueError("once")

    failure(fail_once, 0, world_size=2)
    assert tp.launch(lambda: hasattr(torch, "tp_teach_mark"), world_size=2).values == [False, False]


def test_one_line_says_what_the_others_did():
    def fail():
        if dist.get_rank() == 1:
            raise ValueError("alone")
        if dist.get_rank() == 2:
            return
        dist.all_reduce(torch.ones(2, 3))

    with pytest.raises(tp.RankFailed) as failed:
        tp.launch(fail, world_size=4)
    last = str(failed.value).splitlines()[-1]
    assert last == "meanwhile: ranks 0 and 3 waited in all_reduce of (2, 3) float32, rank 2 had returned"
    assert failed.value.others == last


def test_ranks_that_fail_alike_are_told_in_one_line():
    with pytest.raises(tp.RankFailed, match="rank 0 raised") as failed:
        tp.launch(lambda: 1 / 0, world_size=3)
    assert failed.value.others == "meanwhile: ranks 1 and 2 raised too"


class OfThisTest(Exception):
    """Its second argument makes it impossible to unpickle."""

    def __init__(self, text, needed):
        super().__init__(text)
        self.needed = lambda: needed


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise OfThisTest("in a worker", 1)


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise OfThisTest("in backward", 1)


def on_rank(rank):
    if dist.get_rank() == rank:
        raise OfThisTest("now", 1)
    dist.barrier()


def on_all(_):
    raise OfThisTest("now", 1)


def after_100_collectives(rank):
    for _ in range(100):
        dist.all_reduce(torch.ones(1))
    on_rank(rank)


def in_backward(rank):
    x = torch.ones(2, requires_grad=True)
    if dist.get_rank() == rank:
        FailsBackward.apply(x).sum().backward()
    dist.barrier()


def in_a_loaders_worker(rank):
    if dist.get_rank() == rank:
        next(iter(torch.utils.data.DataLoader(Broken(), num_workers=1)))
    dist.barrier()


@pytest.mark.parametrize(
    ("fn", "rank"),
    [
        (on_rank, 0),
        (on_rank, 3),
        (on_all, 0),
        (after_100_collectives, 2),
        (in_backward, 1),
        (in_a_loaders_worker, 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_rank_that_raises_is_named_wherever_it_raises(fn, rank):
    with pytest.raises(tp.RankFailed) as failed:
        tp.launch(fn, rank, world_size=4, show="none")
    first = str(failed.value).splitlines()[0]
    # A loader's worker hands an exception that it cannot pickle on as a RuntimeError that names it.
    assert first.startswith(f"rank {rank} raised ") and "OfThisTest" in first
    assert "test_failures.py" in failed.value.traceback and "meanwhile: ranks " in failed.value.others
    assert len(str(failed.value).splitlines()) < 30
