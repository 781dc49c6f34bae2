"""Hard cases of launching from a notebook, each of which once went wrong."""

import os
import time

import psutil
import pytest

from tests.launch.kernel import Kernel
from tests.launch.processes import gone, ranks_of, wait_until

SET_UP = """
import os, time, inspect
from pathlib import Path
import torch
import torch.distributed as dist
import tp_teach as tp
"""


@pytest.fixture
def kernel():
    kernel = Kernel()
    kernel.run(SET_UP)
    yield kernel
    kernel.close()


def test_a_class_of_a_cell_is_as_it_was_after_its_instance_came_home(kernel):
    kernel.run("class Point:\n    count = 0\n    def half(self):\n        return 1 / self.count")
    kernel.run("def make():\n    Point.count = 5\n    return Point()")
    kernel.run("run = tp.launch(make, world_size=1)")
    assert kernel.run("Point.count") == "0"
    assert "return 1 / self.count" in kernel.run("print(inspect.getsource(Point.half))")
    assert "return 1 / self.count" in kernel.run("Point().half()")
    assert "return 1 / self.count" in kernel.run("tp.launch(Point().half, world_size=1)")


@pytest.mark.parametrize("after", [0.5, 1.0, 1.5])
def test_an_interrupt_of_the_very_first_launch(kernel, after):
    cell = kernel.start("tp.launch(time.sleep, 1000, world_size=2)")
    wait_until(lambda: any("forkserver" in " ".join(p.cmdline()) for p in psutil.Process(kernel.pid).children()))
    time.sleep(after)  # the fork server loads torch for about two seconds; every moment of it must do
    kernel.manager.interrupt_kernel()
    shown = kernel.finish(cell)
    assert shown.splitlines()[-1].startswith("KeyboardInterrupt")
    assert "__import__(modname)" not in shown  # the fork server's own traceback
    assert kernel.run("tp.launch(dist.get_rank, world_size=2).values") == "[0, 1]"


def test_a_killed_kernel_leaves_no_rank_that_is_busy_in_native_code(kernel, tmp_path):
    kernel.start(
        f"def count():\n    Path({str(tmp_path)!r}, str(dist.get_rank())).touch()\n    sum(range(10**12))\n"
        "tp.launch(count, world_size=2)"
    )
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    ranks = ranks_of(kernel.pid)
    psutil.Process(kernel.pid).kill()
    try:
        wait_until(lambda: all(gone(rank) for rank in ranks), seconds=2)
    finally:
        for rank in ranks:
            if not gone(rank):
                os.kill(rank, 9)
