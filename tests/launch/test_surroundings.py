"""What a rank finds around it: environment, threads, sockets, devices."""

import os
import sys
import tempfile

import psutil
import pytest
import torch
import torch.distributed as dist

import tp_teach as tp


def total():
    number = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(number)
    return number.item()


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "7", "WORLD_SIZE": "99", "LOCAL_RANK": "3", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"},
        {"GLOO_SOCKET_IFNAME": "eth99", "NCCL_SOCKET_IFNAME": "eth99"},
        {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "other"},
        {"TORCH_DISTRIBUTED_DEBUG": "INFO"},
        {"TP_TEACH_DEVICE": "cuda:9"},
    ],
    ids=["torchrun", "interfaces", "elastic", "debug", "device"],
)
def test_a_distributed_environment_already_set_does_not_matter(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run = tp.launch(lambda total: (total(), str(tp.device())), total, world_size=2, device="cpu")
    assert run.values == [(3, "cpu"), (3, "cpu")]


def test_the_environment_of_this_moment_is_the_ranks(monkeypatch):
    monkeypatch.setenv("TP_TEACH_TEST", "now")
    monkeypatch.delenv("HOME", raising=False)
    assert tp.launch(lambda: (os.environ.get("TP_TEACH_TEST"), "HOME" in os.environ), world_size=1)[0] == ("now", False)


def test_a_rank_knows_its_place_as_under_torchrun():
    def place():
        return [int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]

    assert tp.launch(place, world_size=2).values == [[0, 0, 2, 2], [1, 1, 2, 2]]


def test_the_launcher_keeps_its_own_environment():
    before = dict(os.environ)
    tp.launch(os.environ.update, {"TP_TEACH_TEST": "inside"}, world_size=1)
    assert dict(os.environ) == before


def test_a_rank_works_in_the_callers_folder_and_finds_its_modules(tmp_path, monkeypatch):
    (tmp_path / "lesson_helper.py").write_text("ANSWER = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert tp.launch(lambda: (os.getcwd(), __import__("lesson_helper").ANSWER), world_size=1)[0] == (str(tmp_path), 42)


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_the_cores_are_shared_out_as_threads(world_size):
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert tp.launch(torch.get_num_threads, world_size=world_size).values == [max(1, cores // world_size)] * world_size


def test_nothing_listens_beyond_the_loopback_interface():
    def addresses():
        dist.barrier()
        seen = [connection.laddr.ip for connection in psutil.Process().net_connections("inet")]
        dist.barrier()
        return seen

    seen = [address for rank in tp.launch(addresses, world_size=2) for address in rank]
    assert seen
    assert set(seen) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.parametrize("name", ["with a space", "a#b", "100%25", "été"])
def test_any_temporary_folder_will_do_and_is_left_empty(tmp_path, monkeypatch, name):
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert tp.launch(total, world_size=2).values == [3, 3]
    assert list(folder.iterdir()) == []


def test_device_is_known_only_inside_a_rank():
    assert tp.launch(lambda: tp.device().type, world_size=1, device="cpu")[0] == "cpu"
    with pytest.raises(RuntimeError, match="only inside a rank"):
        tp.device()


def test_the_run_says_where_it_ran():
    world = tp.launch(total, world_size=2, device="cpu").world
    assert (world["mode"], world["size"], world["devices"]) == ("gloo", 2, ["cpu", "cpu"])
    assert world["reason"] == "2 ranks on the CPU with Gloo, as asked"
    assert world["versions"]["python"] == sys.version.split()[0]
    assert world["versions"]["torch"] == torch.__version__


def test_checks_may_be_switched_off():
    assert tp.launch(dist.get_debug_level, world_size=1)[0] == dist.DebugLevel.DETAIL
    assert tp.launch(dist.get_debug_level, world_size=1, check=False)[0] == dist.DebugLevel.OFF


def test_ranks_import_no_pandas_and_no_matplotlib():
    names = tp.launch(lambda: list(sys.modules), world_size=1)[0]
    assert "torch" in names
    assert not {"pandas", "matplotlib", "IPython"} & set(names)
