"""Launches on real GPUs. Each skips itself where torch sees too few."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import tp_teach as tp


def total():
    number = torch.tensor(dist.get_rank() + 1, device=tp.device())
    dist.all_reduce(number)
    return number, str(tp.device()), torch.cuda.current_device()


@pytest.mark.gpu
def test_one_rank_gets_the_gpu_and_nccl():
    run = tp.launch(total, world_size=1)
    assert (run.world["mode"], run.world["devices"]) == ("nccl", ["cuda:0"])
    assert run[0] == (torch.tensor(1), "cuda:0", 0)


@pytest.mark.gpu
def test_cuda_tensors_come_home_on_the_cpu():
    def make():
        return {"w": [torch.ones(3, device=tp.device())]}

    assert tp.launch(make, world_size=1, device="cuda")[0]["w"][0].device.type == "cpu"


@pytest.mark.gpu
def test_more_ranks_than_gpus_share_them_with_gloo():
    ranks = torch.cuda.device_count() + 1
    run = tp.launch(total, world_size=ranks, device="cuda")
    assert run.world["mode"] == "gloo"
    assert "real memory, meaningless speed" in run.world["reason"]
    assert [value[0].item() for value in run] == [ranks * (ranks + 1) // 2] * ranks
    assert [value[2] for value in run] == [rank % (ranks - 1) for rank in range(ranks)]


@pytest.mark.gpu
def test_more_ranks_than_gpus_and_no_request_run_on_the_cpu():
    run = tp.launch(lambda: tp.device().type, world_size=torch.cuda.device_count() + 1)
    assert (run.world["mode"], set(run.values)) == ("gloo", {"cpu"})


@pytest.mark.gpu
def test_nccl_for_more_ranks_than_gpus_is_refused_before_a_start():
    with pytest.raises(ValueError, match="needs one GPU a rank"):
        tp.launch(total, world_size=torch.cuda.device_count() + 1, backend="nccl")


@pytest.mark.gpu
def test_the_launcher_never_initialises_cuda(tmp_path):
    (tmp_path / "file.py").write_text("""
import torch
import tp_teach as tp
tp.launch(lambda: torch.ones(2, device=tp.device()), world_size=1, device="cuda")
print(torch.cuda.is_initialized())
""")
    command = [sys.executable, str(tmp_path / "file.py")]
    assert subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout == "False\n"


@pytest.mark.gpus
def test_two_ranks_reduce_over_nccl():
    run = tp.launch(total, world_size=2)
    assert (run.world["mode"], run.world["devices"]) == ("nccl", ["cuda:0", "cuda:1"])
    assert [value[0].item() for value in run] == [3, 3]
    assert [value[2] for value in run] == [0, 1]


@pytest.mark.gpus
@pytest.mark.parametrize("check", [True, False])
def test_ranks_stuck_in_nccl(check):
    def first_reduces_alone():
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(2, device=tp.device()))

    with pytest.raises(tp.RanksStuck) as caught:
        tp.launch(first_reduces_alone, world_size=2, timeout=5, check=check)
    assert caught.value.missing == [1]
    assert caught.value.states[0].waits_in == "all_reduce of (2,) float32"


@pytest.mark.gpus
def test_a_failure_beside_nccl():
    def second_fails():
        if dist.get_rank() == 1:
            raise ValueError("mine")
        dist.all_reduce(torch.ones(2, device=tp.device()))

    with pytest.raises(tp.RankFailed, match="rank 1 raised ValueError: mine"):
        tp.launch(second_fails, world_size=2, timeout=5)
