"""Launches from programs of their own: a plain file, `python -c`, torchrun, an edited tp_teach."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import tp_teach
from tests.launch.processes import gone, ranks_of, wait_until

PACKAGE = Path(tp_teach.__file__).parent

PLAIN = """
import os
from pathlib import Path
import torch
import torch.distributed as dist
import tp_teach as tp

with open("started", "a") as file:
    file.write("once ")

class Doubler:
    def __init__(self, number):
        self.number = 2 * number

def reduce():
    number = torch.tensor(dist.get_rank())
    dist.all_reduce(number)
    return Doubler(number.item())

print([made.number for made in tp.launch(reduce, world_size=3)], flush=True)
"""


def python(*arguments, cwd, path=PACKAGE.parent, **environment):
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_plain_file_without_a_main_guard_runs_once_with_no_home_to_write_to(tmp_path):
    (tmp_path / "file.py").write_text(PLAIN)
    out, errors = python("file.py", cwd=tmp_path, HOME="/proc/nowhere").communicate(timeout=120)
    assert (out, errors) == ("[6, 6, 6]\n", "")
    assert (tmp_path / "started").read_text() == "once "


def test_an_edited_tp_teach_is_seen_at_the_next_launch(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "tp_teach", ignore=shutil.ignore_patterns("__pycache__"))
    program = """
import tp_teach as tp
from pathlib import Path

def mark():
    from tp_teach import tables
    return getattr(tables, "MARK", None)

tables = Path(tp.__file__).parent / "tables.py"
source = tables.read_text()
for text in ("", "MARK = 'edited'", "MARK = 'edited again'"):
    tables.write_text(source + text)
    print(tp.launch(mark, world_size=1)[0])
for text in ("2 +", "1 / 0"):
    tables.write_text(source + text)
    try:
        tp.launch(mark, world_size=2)
    except tp.RankFailed as failed:
        print(failed)
"""
    out, errors = python("-c", program, cwd=tmp_path, path=tmp_path).communicate(timeout=120)
    assert errors == ""
    shown = out.splitlines()
    assert shown[:3] == ["None", "edited", "edited again"]
    assert shown[3].startswith("rank 0 could not load tp_teach: SyntaxError: invalid syntax")
    assert f'File "{tmp_path}/tp_teach/tables.py", line ' in shown[4] and shown[5].strip() == "2 +"
    assert "rank 0 could not load tp_teach: ZeroDivisionError: division by zero" in shown


def test_a_program_that_is_ended_takes_its_ranks_along(tmp_path):
    program = """
import time, torch.distributed as dist, tp_teach as tp
from pathlib import Path

def wait():
    Path(f"ready{dist.get_rank()}").touch()
    dist.barrier() if dist.get_rank() == 0 else time.sleep(1000)

tp.launch(wait, world_size=2)
"""
    process = python("-c", program, cwd=tmp_path)
    wait_until(lambda: (tmp_path / "ready0").exists() and (tmp_path / "ready1").exists())
    ranks = ranks_of(process.pid)
    assert len(ranks) == 2
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: all(gone(rank) for rank in ranks), seconds=2)
    process.communicate(timeout=30)


def test_the_same_run_under_torchrun(tmp_path):
    (tmp_path / "file.py").write_text("""
import torch
import torch.distributed as dist
from tp_teach.launch.torchrun import join, started_by_torchrun
from tp_teach.tables import record

def reduce(factor):
    number = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(number)
    record("steps", [{"step": 0, "loss": dist.get_rank()}])
    return factor * number.item()

assert started_by_torchrun()
run = join(reduce, 10)
if run is not None:
    run.save("run")
""")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "file.py"]
    process = python(*command, cwd=tmp_path, OMP_NUM_THREADS="1")
    errors = process.communicate(timeout=90)[1]
    assert process.returncode == 0, errors
    run = tp_teach.load(tmp_path / "run")
    assert run.values == [30, 30]
    assert run.world["size"] == 2
    assert list(run.steps["loss"]) == [0, 1]


BARRAGE = """
import os, signal, tempfile, threading, time
from pathlib import Path
import psutil
import torch.distributed as dist
import tp_teach as tp

def hang(folder):
    Path(folder, os.environ["RANK"]).touch()
    time.sleep(1000)

def interrupt(folder, pause):
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.001)
    for _ in range(200):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(pause)

def handle(number, frame):
    if launching:
        raise KeyboardInterrupt

launching = False
signal.signal(signal.SIGINT, handle)
tp.launch(os.getpid, world_size=1)
descriptors = psutil.Process().num_fds()
for pause in (0.0001, 0.0003, 0.0006, 0.001):
    folder = Path(tempfile.mkdtemp())
    thread = threading.Thread(target=interrupt, args=(folder, pause))
    thread.start()
    launching = True
    try:
        try:
            tp.launch(hang, folder, world_size=2)
        except BaseException as error:
            ended = error
        launching = False
    except KeyboardInterrupt as error:
        ended = error
    launching = False
    thread.join()
    print(type(ended).__name__)
print(len(list(Path(tempfile.gettempdir()).glob("tp_teach-*"))), psutil.Process().num_fds() - descriptors)
print(tp.launch(dist.get_rank, world_size=2).values, flush=True)
"""


def test_hundreds_of_interrupts_leave_no_folder_and_no_descriptor(tmp_path):
    with tempfile.TemporaryDirectory() as files:  # a name that is short enough for a socket in it
        out, errors = python("-c", BARRAGE, cwd=tmp_path, TMPDIR=files).communicate(timeout=120)
    assert (out.splitlines(), errors) == (4 * ["KeyboardInterrupt"] + ["0 0", "[0, 1]"], "")
