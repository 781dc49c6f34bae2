"""Cells of a real kernel: what they define runs on the ranks, and what goes wrong there is shown as theirs."""

import inspect
import os
import re
import time

import pytest
import torch.distributed as dist

import tp_teach as tp
from tests.launch.kernel import Kernel
from tests.launch.processes import gone, ranks_of, wait_until
from tests.launch.test_bar import work

SET_UP = """
import inspect, os, time
from dataclasses import dataclass
from pathlib import Path
import torch
import torch.distributed as dist
import tp_teach as tp
"""
WAIT = """
def wait(folder):
    Path(folder, str(dist.get_rank())).touch()
    dist.barrier() if dist.get_rank() == 0 else sum(range(10**12))
"""
MULTIPLY = """
def multiply(folder):
    Path(folder, str(dist.get_rank())).touch()
    while True:
        torch.ones(1500, 1500) @ torch.ones(1500, 1500)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The kernel's folder for temporary files."""
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def kernel(files):
    kernel = Kernel(TMPDIR=str(files))
    kernel.run(SET_UP)
    yield kernel
    kernel.close()


def launch_and_wait(kernel, folder, fn="wait"):
    """Start a cell whose ranks work for ever; give it back when both do."""
    kernel.run(WAIT + MULTIPLY)
    cell = kernel.start(f"tp.launch({fn}, {str(folder)!r}, world_size=2)")
    wait_until(lambda: len(list(folder.iterdir())) == 2)
    ranks = ranks_of(kernel.pid)
    assert len(ranks) == 2
    return cell, ranks


def test_a_function_of_a_cell(kernel):
    kernel.run("def rank_plus(number):\n    return dist.get_rank() + number")
    assert kernel.run("tp.launch(rank_plus, 10, world_size=3).values") == "[10, 11, 12]"


def test_a_function_of_a_cell_sees_the_cells_names(kernel):
    kernel.run("weights = torch.ones(4)\ndef helper():\n    return weights.sum().item()")
    assert kernel.run("tp.launch(lambda: helper() + dist.get_rank(), world_size=2).values") == "[4.0, 5.0]"


def test_a_class_of_a_cell(kernel):
    kernel.run("class Layer(torch.nn.Linear):\n    def size(self):\n        return self.in_features")
    assert kernel.run("tp.launch(lambda: Layer(3, 2).size(), world_size=2).values") == "[3, 3]"


def test_a_dataclass_of_a_cell_comes_home_as_itself(kernel):
    kernel.run("@dataclass\nclass Point:\n    x: int")
    kernel.run("def make():\n    return Point(dist.get_rank())\nrun = tp.launch(make, world_size=2)")
    assert kernel.run("run.values, type(run[0]) is Point") == "([Point(x=0), Point(x=1)], True)"


def test_a_failure_shows_the_cells_line_and_nothing_of_the_launcher(kernel):
    kernel.run(
        "def cut(n):\n    if dist.get_rank() == 1:\n        raise ValueError('does not divide')\n    dist.barrier()"
    )
    number = int(kernel.run("len(In) - 2"))
    shown = kernel.run("tp.launch(cut, 10, world_size=2)")
    assert shown.splitlines() == [
        "RankFailed: rank 1 raised ValueError: does not divide",
        f'  File "Cell In[{number}]", line 3, in cut',
        "    raise ValueError('does not divide')",
        "meanwhile: rank 0 waited in barrier",
    ]


def test_the_line_of_a_second_cell_is_shown_too(kernel):
    kernel.run("def inner():\n    return 1 / 0")
    kernel.run("def outer():\n    return inner()")
    number = int(kernel.run("len(In) - 2"))
    shown = kernel.run("tp.launch(outer, world_size=1)")
    assert f'File "Cell In[{number}]", line 2, in outer\n    return inner()' in shown
    assert f'File "Cell In[{number - 1}]", line 2, in inner\n    return 1 / 0' in shown


def test_stuck_ranks_show_the_cells_lines(kernel):
    kernel.run("def miss():\n    if dist.get_rank() == 0:\n        dist.all_reduce(torch.ones(8))")
    number = int(kernel.run("len(In) - 2"))
    shown = kernel.run("tp.launch(miss, world_size=2, timeout=2)")
    assert shown.splitlines() == [
        "RanksStuck: rank 0 waited 2 s for rank 1",
        f"  rank 0  waits in all_reduce of (8,) float32  Cell In[{number}], line 3: dist.all_reduce(torch.ones(8))",
        "  rank 1  has returned",
    ]


def test_what_ranks_print_is_the_cells_output(kernel):
    shown = kernel.run("run = tp.launch(lambda: os.system('echo child'), world_size=2)")
    assert shown == "[rank 0] child\n[rank 1] child"


def test_a_run_shows_itself_in_a_line(kernel):
    shown = kernel.run("tp.launch(os.getpid, world_size=2, device='cpu')")
    assert re.fullmatch(r"Run: 2 ranks on the CPU with Gloo, as asked\. Rows: .*\.", shown)


def test_a_cell_that_awaits(kernel):
    kernel.run("async def run():\n    return tp.launch(os.getpid, world_size=2)")
    assert kernel.run("len(await run())") == "2"


def test_an_exception_class_of_a_cell(kernel):
    kernel.run("class Odd(Exception):\n    pass\ndef odd():\n    raise Odd(dist.get_rank())")
    assert kernel.run("tp.launch(odd, world_size=2)").splitlines()[0] == "RankFailed: rank 0 raised Odd: 0"


def test_a_class_of_a_cell_is_as_it_was_after_its_instance_came_home(kernel):
    kernel.run("class Spot:\n    count = 0\n    def half(self):\n        return 1 / self.count")
    kernel.run("def make():\n    Spot.count = 5\n    return Spot()")
    kernel.run("run = tp.launch(make, world_size=1)")
    assert kernel.run("Spot.count") == "0"
    assert "return 1 / self.count" in kernel.run("print(inspect.getsource(Spot.half))")
    assert "return 1 / self.count" in kernel.run("Spot().half()")
    assert "return 1 / self.count" in kernel.run("tp.launch(Spot().half, world_size=1)")


def test_cells_of_vs_code(kernel):
    kernel.run("__vsc_ipynb_file__ = '/somewhere/lesson.ipynb'")
    cell = kernel.start("def third():\n    return 1 / 0", cellId="vscode-notebook-cell:/somewhere/lesson.ipynb#W2sZmls")
    kernel.finish(cell)
    number = int(kernel.run("len(In) - 2"))
    shown = kernel.run("tp.launch(third, world_size=2)").splitlines()
    assert shown[:2] == [
        "RankFailed: rank 0 raised ZeroDivisionError: division by zero",
        f'  File "Cell In[{number}]", line 2, in third',
    ]


def test_two_programs_launch_at_once(kernel, tmp_path):
    kernel.run(
        "def meet(folder):\n    Path(folder, str(dist.get_rank())).touch()\n"
        "    while not Path(folder, 'go').exists():\n        time.sleep(0.01)\n"
        "    dist.barrier()\n    return dist.get_rank()"
    )
    cell = kernel.start(f"tp.launch(meet, {str(tmp_path)!r}, world_size=2).values")
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    assert tp.launch(dist.get_rank, world_size=2).values == [0, 1]
    (tmp_path / "go").touch()
    assert kernel.finish(cell) == "[0, 1]"


def test_a_bar_stores_the_same_before_and_after(kernel):
    kernel.run(inspect.getsource(work))
    number = kernel.start("run = tp.launch(work, world_size=2)")
    bundles = []
    while True:
        message = kernel.client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != number:
            continue
        if message["msg_type"] in ("display_data", "update_display_data"):
            bundles.append(message["content"]["data"])
        if message["content"].get("execution_state") == "idle":
            break
    assert bundles[0] == bundles[-1] == {"text/plain": "", "text/html": ""}
    drawn = [bundle["text/html"] for bundle in bundles[1:-1]]
    assert any("<progress" in text and "of 20" in text and "loss" in text for text in drawn)


@pytest.mark.parametrize(("fn", "times"), [("wait", 1), ("multiply", 1), ("wait", 2)])
def test_an_interrupt_leaves_no_rank_and_the_next_cell_launches(kernel, tmp_path, fn, times):
    cell, ranks = launch_and_wait(kernel, tmp_path, fn)
    for _ in range(times):
        kernel.manager.interrupt_kernel()
        time.sleep(0.01)
    wait_until(lambda: all(gone(rank) for rank in ranks), seconds=2)
    assert kernel.finish(cell).splitlines()[-1].startswith("KeyboardInterrupt")
    assert ranks_of(kernel.pid) == []
    assert kernel.run("tp.launch(dist.get_rank, world_size=2).values") == "[0, 1]"


def test_a_restart_leaves_no_rank(kernel, tmp_path):
    _, ranks = launch_and_wait(kernel, tmp_path)
    kernel.manager.restart_kernel(now=True)
    wait_until(lambda: all(gone(rank) for rank in ranks), seconds=2)
    kernel.client.wait_for_ready(timeout=60)
    kernel.pid = kernel.manager.provisioner.pid
    kernel.run(SET_UP)
    assert kernel.run("tp.launch(dist.get_rank, world_size=2).values") == "[0, 1]"


def test_a_killed_kernel_leaves_no_rank_and_no_file(kernel, files, tmp_path):
    """The last test here: the kernel is gone after it. One of its ranks is busy in native code."""
    _, ranks = launch_and_wait(kernel, tmp_path)
    assert sorted(path.name.partition("-")[0] for path in files.glob("*-*")) == ["pymp", "tp_teach"]
    os.killpg(kernel.pid, 9)  # as Jupyter does it
    wait_until(lambda: all(gone(rank) for rank in ranks), seconds=2)
    wait_until(lambda: not list(files.glob("*-*")))
