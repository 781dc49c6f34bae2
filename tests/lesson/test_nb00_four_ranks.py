"""The exercises of notebook 00: the solution passes, and typical wrong answers get the hint that helps."""

import pytest
import torch
import torch.distributed as dist

import tp_teach as tp
from tp_teach.lesson.check import check, verdict
from tp_teach.lesson.exercises.nb00_four_ranks import judge_waiting


def right_row():
    return torch.eye(dist.get_world_size())[dist.get_rank()]


def no_return():
    torch.eye(dist.get_world_size())[dist.get_rank()]


def whole_matrix():
    return torch.eye(dist.get_world_size())


def first_row():
    return torch.eye(dist.get_world_size())[0]


def always_four():
    return torch.eye(4)[dist.get_rank()]


def a_list():
    return [0.0] * dist.get_world_size()


def next_row():
    return torch.eye(dist.get_world_size()).roll(1, 0)[dist.get_rank()]


def wants_a_number(number):
    return torch.eye(number)[dist.get_rank()]


def off_the_end():
    return torch.eye(dist.get_world_size())[dist.get_rank() + 1]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (right_row, "ok"),
        (None, "no answer"),
        (no_return, "return"),
        (whole_matrix, "whole 4 x 4 matrix"),
        (first_row, "get_rank"),
        (always_four, "with 3 ranks"),
        (a_list, "a tensor"),
        (next_row, "rank 0 returned [0.0, 0.0, 0.0, 1.0], which is not its row"),
        (off_the_end, "IndexError"),
        (7, "the function itself"),
        (wants_a_number, "0 arguments do not fit wants_a_number(number)"),
    ],
)
def test_own_row(answer, says):
    said = verdict("own-row", answer)
    assert says in said and (said == "ok") == (answer is right_row)


def puzzle():
    rank = torch.tensor(dist.get_rank())
    total = rank.clone()
    dist.all_reduce(total)
    if rank < total - 3:
        dist.barrier()


def harmless():
    dist.barrier()


@pytest.mark.parametrize(
    ("fn", "told", "says"),
    [
        (puzzle, {"missing": [3], "call": "barrier"}, "ok"),
        (puzzle, {"missing": None, "call": None}, "fill in both"),
        (puzzle, {"missing": 3, "call": "barrier"}, "a list of ranks"),
        (puzzle, {"missing": [3, "two"], "call": "barrier"}, "a list of ranks"),
        (puzzle, {"rank": 3}, "under the names"),
        (harmless, {"missing": [3], "call": "barrier"}, "unchanged"),
    ],
)
def test_who_waits(fn, told, says):
    said = verdict("who-waits", (fn, told))
    assert says in said and (said == "ok") == (says == "ok")


@pytest.fixture(scope="module")
def stuck() -> tp.RanksStuck:
    with pytest.raises(tp.RanksStuck) as raised:
        tp.launch(puzzle, world_size=4, timeout=1)
    return raised.value


@pytest.mark.parametrize(
    ("missing", "call", "says"),
    [
        ([3], "dist.barrier()", None),
        ({3}, dist.barrier, None),
        ([0], "barrier", "other ranks"),
        ([0, 3], "barrier", "other ranks"),
        ([3], "all_reduce", "another call"),
    ],
)
def test_what_was_told_beside_what_the_ranks_did(stuck, missing, call, says):
    hint = judge_waiting({"missing": missing, "call": call}, stuck)
    assert hint is None if says is None else says in hint


def test_check_prints_one_verdict_and_raises_nothing(capsys):
    check("own-row", None)
    assert capsys.readouterr().out == "own-row: not yet: there is no answer so far\n"


def test_an_unknown_exercise_is_refused_by_name():
    with pytest.raises(ValueError, match="'own-column' is not known; there are own-row, who-waits"):
        check("own-column", None)
