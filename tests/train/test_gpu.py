"""On GPUs: the same losses as the dense model, and the allocator's own numbers in the record."""

import pytest
import torch
from torch import nn

import tp_teach as tp
from tests.train.test_loop import CONFIG, SIZES, fixed_batches
from tp_teach.model.toy import ToyTransformer

GPUS = torch.cuda.device_count()
needs_one = pytest.mark.skipif(GPUS < 1, reason="torch sees no GPU here")
needs_two = pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs, and torch sees {GPUS}")


def dense_losses() -> list[float]:
    """Runs in a launched rank, so that this process does not initialise CUDA."""
    torch.manual_seed(CONFIG.seed)
    model = ToyTransformer(CONFIG).to(tp.device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=CONFIG.lr, foreach=False)
    losses = []
    for tokens, labels in fixed_batches():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens.to(tp.device())), labels.to(tp.device()))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_losses(run, wanted: list[float]) -> None:
    for rank in range(run.world["size"]):
        losses = run.steps[run.steps["rank"] == rank]["loss"].tolist()
        # float32 sums in another order, and kernels chosen by shape: a few roundings (6e-8 each) a step.
        assert losses == pytest.approx(wanted, rel=1e-5, abs=0)


def check_memory(run) -> None:
    held = run.memory[run.memory["kind"].isin(["allocated", "reserved"])]
    logged = held[held["moment"] == "step"]
    for rank in range(run.world["size"]):
        mine = logged[logged["rank"] == rank]
        for kind in ("allocated", "reserved"):
            assert sorted(set(mine[mine["kind"] == kind]["step"])) == list(range(CONFIG.max_steps))
        parameters = run.shards[run.shards["rank"] == rank]["local_bytes"].sum()
        assert mine["bytes"].min() >= 4 * parameters
        allocated, reserved = (mine[mine["kind"] == kind]["bytes"].max() for kind in ("allocated", "reserved"))
        assert reserved >= allocated
        peak = held[(held["rank"] == rank) & (held["moment"] == "peak")].set_index("kind")["bytes"]
        measured = held[(held["rank"] == rank) & (held["step"] == 1) & (held["kind"] == "allocated")]
        assert peak["allocated"] >= measured[measured["moment"] != "step"]["bytes"].max()


@pytest.mark.gpu
@needs_one
@pytest.mark.parametrize("world_size", [1, 2])
def test_on_one_gpu_alone_or_shared(world_size):
    (wanted,) = tp.launch(dense_losses, world_size=1, device="cuda")
    run = tp.launch(tp.train, CONFIG, fixed_batches(), world_size=world_size, device="cuda")
    assert all(device.startswith("cuda") for device in run.world["devices"])
    check_losses(run, wanted)
    check_memory(run)
    assert run.compare(tp.predict(CONFIG, world_size))["equal"].all()


@pytest.mark.gpus
@needs_two
def test_nccl_equals_the_dense_model():
    (wanted,) = tp.launch(dense_losses, world_size=1, device="cuda")
    run = tp.launch(tp.train, CONFIG, fixed_batches(), world_size=2)
    assert run.world["mode"] == "nccl"
    check_losses(run, wanted)
    check_memory(run)
    assert run.compare(tp.predict(CONFIG, 2))["equal"].all()


@pytest.mark.gpu
@needs_one
def test_each_fact_of_the_measured_step_is_recorded_once():
    config = tp.TrainConfig(**SIZES, num_workers=0, max_steps=3, log_every=2)
    run = tp.launch(tp.train, config, world_size=1, device="cuda")
    assert not run.memory.duplicated(["rank", "step", "moment", "kind"]).any()
