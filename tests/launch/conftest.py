import os

import pytest
import torch

import tp_teach as tp
from tests.launch.processes import ranks_of

NEEDED = {"gpu": 1, "gpus": 2}


@pytest.fixture(autouse=True, scope="session")
def fork_server():
    """The first launch starts the fork server; no test here is the first."""
    tp.launch(os.getpid, world_size=1)


@pytest.fixture(autouse=True)
def enough_gpus(request):
    for mark, needed in NEEDED.items():
        seen = torch.cuda.device_count()
        if request.node.get_closest_marker(mark) and seen < needed:
            pytest.skip(f"needs {needed} or more CUDA GPUs; torch sees {seen}")


@pytest.fixture(autouse=True)
def no_rank_left():
    """After every test here, however its launches ended, no rank runs."""
    yield
    assert ranks_of(os.getpid()) == []
