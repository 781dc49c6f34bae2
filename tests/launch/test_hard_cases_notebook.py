"""Hard cases of launching from a notebook, each of which once went wrong."""

import time

import psutil
import pytest

from tests.launch.kernel import Kernel
from tests.launch.processes import wait_until

SET_UP = """
import time
import torch.distributed as dist
import tp_teach as tp
"""


@pytest.fixture
def kernel():
    kernel = Kernel()
    kernel.run(SET_UP)
    yield kernel
    kernel.close()


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
