"""Processes: none left behind, none in another's way."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

import tp_teach as tp
from tests.launch.processes import gone, ranks_of, wait_until
from tp_teach.launch import folders


def total():
    number = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(number)
    return number.item()


def test_each_rank_is_a_process_of_its_own_and_ends_with_the_launch():
    pids = tp.launch(os.getpid, world_size=4).values
    assert len({*pids, os.getpid()}) == 5
    assert all(gone(pid) for pid in pids)


def test_ranks_do_not_share_memory_with_the_next_launch():
    def leave_mark():
        torch.tp_teach_mark = True

    tp.launch(leave_mark, world_size=1)
    assert tp.launch(lambda: hasattr(torch, "tp_teach_mark"), world_size=1)[0] is False


@pytest.mark.skipif(not hasattr(psutil.Process, "num_fds"), reason="needs a count of open descriptors")
def test_many_launches_leave_no_descriptor_no_process_and_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    me = psutil.Process()
    family = {me, *me.children(recursive=True)}
    before = {process.pid: process.num_fds() for process in family}
    for _ in range(20):
        tp.launch(os.getpid, world_size=1)
    assert {process.pid: process.num_fds() for process in {me, *me.children(recursive=True)}} == before
    assert list(tmp_path.iterdir()) == []


def test_two_threads_launch_at_once():
    def meet(folder, mine, other):
        if dist.get_rank() == 0:
            (folder / mine).touch()
            while not (folder / other).exists():
                time.sleep(0.01)
        number = torch.tensor(dist.get_rank() + 1)
        dist.all_reduce(number)
        return mine, number.item()

    with tempfile.TemporaryDirectory() as folder:
        runs = {}

        def launch(mine, other):
            runs[mine] = tp.launch(meet, Path(folder), mine, other, world_size=2)

        threads = [threading.Thread(target=launch, args=names) for names in (("a", "b"), ("b", "a"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert {name: run.values for name, run in runs.items()} == {name: [(name, 3)] * 2 for name in ("a", "b")}


def test_a_failure_in_one_thread_leaves_the_other_alone(tmp_path):
    failed = tmp_path / "failed"

    def fail():
        raise ValueError("mine alone")

    def outlive(file):
        while not file.exists():
            time.sleep(0.01)
        number = torch.tensor(dist.get_rank() + 1)
        dist.all_reduce(number)
        return number.item()

    runs = []
    thread = threading.Thread(target=lambda: runs.append(tp.launch(outlive, failed, world_size=2)))
    thread.start()
    wait_until(lambda: len(ranks_of(os.getpid())) == 2)
    with pytest.raises(tp.RankFailed, match="mine alone"):
        tp.launch(fail, world_size=2)
    failed.touch()
    thread.join(timeout=60)
    assert runs[0].values == [3, 3]


def test_a_rank_killed_from_outside_is_named():
    caught = []

    def wait_forever():
        while True:
            time.sleep(0.1)

    def launch():
        try:
            tp.launch(wait_forever, world_size=2)
        except tp.RankFailed as failed:
            caught.append(failed)

    thread = threading.Thread(target=launch)
    thread.start()
    wait_until(lambda: len(ranks_of(os.getpid())) == 2)
    os.kill(ranks_of(os.getpid())[0], 9)
    thread.join(timeout=60)
    assert caught[0].reason.startswith("was ended by SIGKILL")


def test_a_launch_inside_a_rank():
    def outer(inner):
        return tp.launch(inner, world_size=2).values

    assert tp.launch(outer, total, world_size=1).values == [[3, 3]]


def test_the_folder_of_a_killed_launcher_is_removed_by_the_next_launch(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = f"import os; from tp_teach.launch import folders; folders.tempfile.tempdir = {str(tmp_path)!r}\n"
    program += "with folders.folder(): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    left = list(tmp_path.iterdir())
    assert len(left) == 1
    with folders.folder() as used:
        tp.launch(os.getpid, world_size=1)
        assert list(tmp_path.iterdir()) == [Path(used)]
