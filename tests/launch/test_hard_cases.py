"""Hard cases of launching, each of which once went wrong."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import tp_teach as tp
from tests.launch.processes import gone, wait_until
from tp_teach.launch import pickling


def failure(fn, *args, **options):
    with pytest.raises(tp.RankFailed) as failed:
        tp.launch(fn, *args, **options)
    return failed.value


def test_a_rank_function_may_use_tp():
    assert tp.launch(lambda: tp.device().type, world_size=1, device="cpu")[0] == "cpu"


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


def test_a_loader_with_workers_reads_a_dataset_of_the_cell():
    class Local(Numbers):
        pass

    def read():
        return [batch.tolist() for batch in torch.utils.data.DataLoader(Local(), 2, num_workers=1)]

    assert tp.launch(read, world_size=2).values == [[[0, 1], [2, 3]]] * 2


@pytest.mark.parametrize("end", ["return", "exit", "kill"])
def test_a_ranks_children_end_with_it_however_it_ends(tmp_path, end):
    def with_child(note):
        child = subprocess.Popen(["sleep", "1000"])
        note.write_text(str(child.pid))
        if end == "exit":
            os._exit(3)
        if end == "kill":
            os.kill(os.getpid(), 9)

    with contextlib.suppress(tp.RankFailed):
        tp.launch(with_child, tmp_path / "pid", world_size=1)
    child = int((tmp_path / "pid").read_text())
    try:
        wait_until(lambda: gone(child), seconds=2)
    finally:
        if not gone(child):
            os.kill(child, 9)


def test_an_exception_that_cannot_say_what_it_is():
    class Mute(Exception):
        def __str__(self):
            raise ValueError("no text")

    def mute():
        raise Mute

    failed = failure(mute, world_size=1)
    assert failed.error == "Mute"
    assert "raise Mute" in failed.traceback


@pytest.mark.parametrize("check", [True, False])
def test_the_cause_is_named_even_when_it_takes_long_to_say(check):
    class Slow(Exception):
        def __str__(self):
            time.sleep(0.2)
            return "cause"

    def second_fails():
        if dist.get_rank() == 1:
            raise Slow
        dist.all_reduce(torch.ones(1))

    failed = failure(second_fails, world_size=2, check=check)
    assert (failed.rank, failed.error) == (1, "Slow")


def test_a_rank_that_dies_after_its_answer_spoils_nothing():
    def answer_early():
        if dist.get_rank() == 0:
            threading.Timer(0.2, os._exit, (5,)).start()
        else:
            time.sleep(1)
        return dist.get_rank()

    assert tp.launch(answer_early, world_size=2).values == [0, 1]


@dataclass
class Box:
    content: Any


class Pair(NamedTuple):
    content: Any


class Plain:
    def __init__(self, content):
        self.content = content


WRAPS = [Box, Pair, Plain, lambda tensor: torch.return_types.max((tensor, tensor))]
NAMES = ["dataclass", "named tuple", "object", "torch.max"]


@pytest.mark.parametrize("wrap", WRAPS, ids=NAMES)
def test_a_view_leaves_the_rest_of_its_storage_behind(wrap):
    assert len(pickling.pack_value(wrap(torch.zeros(1_000_000)[:4]), {})[0]) < 10_000


@pytest.mark.parametrize("wrap", [*WRAPS[1:], lambda tensor: {1, tensor}], ids=[*NAMES[1:], "set"])
def test_a_dtensor_is_refused_wherever_it_is(wrap):
    def cut():
        return wrap(distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,)), [Shard(0)]))

    assert "is a DTensor" in failure(cut, world_size=1).reason


@pytest.mark.gpu
@pytest.mark.parametrize("wrap", WRAPS, ids=NAMES)
def test_a_cuda_tensor_comes_home_on_the_cpu_wherever_it_is(wrap):
    def make():
        return wrap(torch.ones(2, device=tp.device()))

    value = tp.launch(make, world_size=1, device="cuda")[0]
    assert (value[0] if isinstance(value, tuple) else value.content).device.type == "cpu"


@pytest.mark.parametrize("make", [lambda: torch.eye(2).to_sparse(), lambda: torch.ones(2, device="meta")])
def test_a_tensor_without_plain_storage_comes_home_or_is_refused_in_words(make):
    try:
        assert pickling.unpack_value(*pickling.pack_value(make(), {})).is_sparse
    except ValueError as refused:
        assert str(refused).startswith("the returned value")


def test_a_refused_value_shows_no_line_of_the_launcher():
    failed = failure(lambda: torch.nn.Linear(2, 2), world_size=1)
    assert "tp_teach/launch" not in failed.traceback


def test_an_exception_without_text_ends_its_first_line_cleanly():
    def asserts():
        raise AssertionError

    assert str(failure(asserts, world_size=1)).splitlines()[0] == "rank 0 raised AssertionError"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes since Python 3.11")
def test_notes_of_an_exception_are_shown():
    def noted():
        error = ValueError("wrong")
        error.add_note("see notebook 03")
        raise error

    assert "see notebook 03" in str(failure(noted, world_size=1))


def test_recursion_of_two_functions_is_told_in_few_lines():
    def ping():
        return pong()

    def pong():
        return ping()

    assert len(failure(ping, world_size=1).traceback.splitlines()) < 100


def test_a_temporary_folder_with_a_question_mark(tmp_path, monkeypatch):
    (tmp_path / "a?b").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a?b"))
    assert tp.launch(dist.get_rank, world_size=2).values == [0, 1]


def test_a_temporary_folder_with_too_long_a_name_is_refused_in_words(tmp_path):
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    program = "import tp_teach as tp, os; print(len(tp.launch(os.getpid, world_size=2)))"
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.path.dirname(os.path.dirname(tp.__file__))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert "ValueError: the temporary folder" in done.stderr and "set TMPDIR" in done.stderr


def test_only_line_ends_end_lines(capsys):
    tp.launch(lambda: print("50%\r100% a\x0bb\u2028c"), world_size=1)
    assert capsys.readouterr().out.count("[rank 0]") == 1


def test_a_lost_fork_server_is_not_called_an_exit_of_the_rank():
    def end_the_server():
        psutil.Process().parent().kill()
        time.sleep(1000)

    assert "called exit" not in failure(end_the_server, world_size=1).reason


def test_output_that_the_stream_cannot_spell_does_not_lose_the_result():
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="ascii")):
        assert tp.launch(lambda: print("é") or 7, world_size=1).values == [7]


@pytest.mark.parametrize("close", [lambda: sys.stdout.close(), lambda: print("x", end="") or os.close(1)])
def test_a_rank_may_close_its_stdout(close, capsys):
    def work():
        close()
        return 7

    assert tp.launch(work, world_size=1).values == [7]
    assert "Traceback" not in capsys.readouterr().err


def test_a_failure_pickles():
    import pickle

    failed = pickle.loads(pickle.dumps(tp.RankFailed(1, "wrong", "ValueError", "  File ...")))
    assert (failed.rank, failed.reason, failed.error) == (1, "wrong", "ValueError")
    assert str(failed).startswith("rank 1 raised ValueError: wrong")


def test_ranks_stuck_in_no_known_collective_can_still_be_told():
    from tp_teach.launch.state import RankState

    error = tp.RanksStuck([RankState(0, "cell, line 1: new_group"), RankState(1, "", over="returned")], 2)
    assert "rank 0" in str(error)
