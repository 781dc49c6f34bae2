"""What a function may do in a simulation, and what is said when it may not."""

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import tp_teach as tp
from tests.launch.processes import ranks_of


def reads_item():
    return torch.ones(3).sum().item()


def reads_a_condition():
    if torch.ones(3).sum() > 2:
        return 1


def reads_numpy():
    return torch.ones(3).numpy()


def reads_a_mask():
    x = torch.ones(3)
    return x[x > 0]


def reads_an_object():
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, "me")


def reads_to_verify():
    tp.verify.replicas(nn.Linear(2, 2))


@pytest.mark.parametrize(
    "fn, line",
    [
        (reads_item, "return torch.ones(3).sum().item()"),
        (reads_a_condition, "if torch.ones(3).sum() > 2:"),
        (reads_numpy, "return torch.ones(3).numpy()"),
        (reads_a_mask, "return x[x > 0]"),
        (reads_an_object, 'dist.all_gather_object(everyone, "me")'),
        (reads_to_verify, "tp.verify.replicas(nn.Linear(2, 2))"),
    ],
)
def test_a_line_that_reads_a_number_is_named(fn, line):
    with pytest.raises(tp.RankFailed) as caught:
        tp.simulate(fn, world_size=4, rank=2)
    first = str(caught.value).splitlines()[0]
    assert first.startswith("rank 2 raised NumberNeeded: a simulated tensor has a shape and no numbers")
    assert "test_functions.py, line " in first and first.endswith(line)
    assert (caught.value.rank, caught.value.error) == (2, "NumberNeeded")


def fails():
    raise KeyError("no such thing")


def dies():
    os.abort()


def test_a_failure_is_that_of_the_rank_and_leaves_this_process_alone():
    with pytest.raises(tp.RankFailed, match=r"rank 5 raised KeyError: 'no such thing'"):
        tp.simulate(fails, world_size=8, rank=5)
    with pytest.raises(tp.RankFailed, match="rank 1 was ended by SIGABRT"):
        tp.simulate(dies, world_size=2, rank=1)


def says():
    model = nn.Linear(4, 2).to(tp.device()).to(torch.bfloat16)
    print(dist.get_rank(), "of", dist.get_world_size(), os.environ["RANK"], os.environ["WORLD_SIZE"])
    for _ in tp.progress(range(2)):
        out = model(torch.randn(3, 4, dtype=torch.bfloat16))
    with tp.wire() as wire:
        dist.all_reduce(out)
    return wire.bytes, wire.reason, [out]


def test_what_it_says_comes_home_under_its_rank(capsys):
    run = tp.simulate(says, world_size=3, rank=2)
    assert capsys.readouterr().out == "[rank 2] 2 of 3 2 3\n"
    assert run.output == ["", "", "2 of 3 2 3\n"]
    sent, why, (out,) = run[2]
    assert (sent, why) == (None, "a simulation sends nothing")
    assert (out.device.type, tuple(out.shape), out.dtype) == ("meta", (3, 2), torch.bfloat16)
    assert repr(run).startswith("Run: rank 2 of 3 simulated in one process, without numbers.")


def stands():
    mesh = init_device_mesh("cpu", (512, 8), mesh_dim_names=("dp", "tp"))
    return mesh.get_coordinate(), mesh["tp"].mesh.tolist(), mesh["dp"].size()


def test_a_mesh_of_thousands_of_ranks_keeps_its_numbers():
    run = tp.simulate(stands, world_size=4096, rank=4095)
    assert run[4095] == ((511, 7), list(range(4088, 4096)), 512)


def test_a_checkpoint_of_no_numbers_is_refused(tmp_path):
    with pytest.raises(tp.RankFailed, match="a simulation has no numbers to save; leave it out"):
        tp.simulate(tp.train, tp.TrainConfig.preset("classroom"), None, tmp_path / "folder", world_size=2)
    assert not (tmp_path / "folder").exists()


def test_arguments_that_cannot_work_are_refused_before_a_process_starts():
    config = tp.TrainConfig.preset("decoder")
    for error, words, call in [
        (TypeError, "world_size='8' is not a whole number", dict(world_size="8")),
        (ValueError, "world_size=0 has no rank; use 1 or more", dict(world_size=0)),
        (ValueError, "rank=8 is not in a world of 8; use 0 to 7", dict(world_size=8, rank=8)),
        (ValueError, "show='some' is not known", dict(world_size=2, show="some")),
        (ValueError, "num_heads=12 does not divide over 8 ranks", dict(world_size=8)),
    ]:
        with pytest.raises(error, match=words):
            tp.simulate(tp.train, config, **call)
    with pytest.raises(TypeError, match="is not callable"):
        tp.simulate(3, world_size=2)


def plays_for_ever(folder):
    (folder / "here").touch()
    while True:
        torch.ones(64, 64) @ torch.ones(64, 64)


@pytest.fixture
def interrupts():
    """Interrupts raise, also where the tests were started in the background, which ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_a_simulation_and_the_next_one_works(tmp_path, interrupts):
    def interrupt():
        while not (tmp_path / "here").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        tp.simulate(plays_for_ever, tmp_path, world_size=64)
    thread.join()
    assert ranks_of(os.getpid()) == []
    assert tp.simulate(dist.get_rank, world_size=64, rank=63)[63] == 63
