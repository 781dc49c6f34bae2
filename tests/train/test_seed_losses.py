"""Fed the same batches, `tp.train` gives the losses of the seed's program, step by step.

How `seed_losses.json` was recorded. The program of the seed, train_tensor_parallel.py, was copied outside this
repository and changed only where it had to be: backend gloo; device and mesh "cpu"; the two CUDA memory figures left
out; its Config set to the sizes in the file (num_workers 0); pin_memory False; `src.data.RandomTextDataset` a data set
that notes which index is read; the `repr(loss.item())` of each step kept. It ran under
`OMP_NUM_THREADS=1 torchrun --standalone --nproc_per_node=N` with N = 2 and 3, and wrote the samples, the indices of
each batch and the losses. The batches came from its own DataLoader: 24 steps of 6 of 37 samples, so it started over 3
times.
"""

import json
from pathlib import Path

import pytest
import torch

import tp_teach as tp

RECORDED = json.loads((Path(__file__).parent / "seed_losses.json").read_text(encoding="utf-8"))


def recorded_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    samples, labels = torch.tensor(RECORDED["samples"]), torch.tensor(RECORDED["labels"])
    return [(samples[indices], labels[indices]) for indices in RECORDED["batches"]]


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_step_has_the_seeds_loss(world_size):
    config = tp.TrainConfig(**RECORDED["config"], log_every=1)
    run = tp.launch(tp.train, config, recorded_batches(), world_size=world_size)
    wanted = [float(loss) for loss in RECORDED["losses"][str(world_size)]]
    assert len(wanted) == config.max_steps
    # The same operations in the same order are bitwise equal on the machine that recorded them. Another processor
    # rounds its float32 sums (6e-8) in another order; 1e-6 leaves room for 24 steps of that.
    for rank in range(world_size):
        losses = run.steps[run.steps["rank"] == rank]["loss"].tolist()
        assert losses == pytest.approx(wanted, rel=1e-6, abs=0), f"rank {rank}"


def test_the_recorded_losses_tell_the_batches_apart():
    """The comparison above would mean little if any batches gave these losses."""
    config = tp.TrainConfig(**RECORDED["config"], log_every=1)
    batches = recorded_batches()
    batches[3] = batches[4]
    run = tp.launch(tp.train, config, batches, world_size=2)
    losses = run.steps[run.steps["rank"] == 0]["loss"].tolist()
    wanted = [float(loss) for loss in RECORDED["losses"]["2"]]
    assert losses[:3] == pytest.approx(wanted[:3], rel=1e-6, abs=0)
    assert losses[3] != pytest.approx(wanted[3], rel=1e-3)
