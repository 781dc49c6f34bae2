"""The training program on real ranks: what it computes, records and leaves behind."""

import math
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tp_teach as tp
from tp_teach.model.toy import ToyTransformer
from tp_teach.train.data import RandomTextDataset

SIZES = dict(
    vocab_size=61, seq_len=9, d_model=20, hidden_dim=48, num_layers=3, num_classes=5, num_samples=37, batch_size=6
)
CONFIG = tp.TrainConfig(**SIZES, num_workers=0, max_steps=20, lr=1e-3, log_every=1)


def fixed_batches(steps: int = 20) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randint(61, (6, 9), generator=generator), torch.randint(5, (6,), generator=generator))
        for _ in range(steps)
    ]


@pytest.fixture(scope="module")
def dense() -> list[float]:
    """Losses of 20 steps in one process: the plain loop, written out."""
    torch.manual_seed(CONFIG.seed)
    model = ToyTransformer(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=CONFIG.lr)
    losses = []
    for tokens, labels in fixed_batches():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def rank_losses(run, rank: int) -> list[float]:
    return run.steps[run.steps["rank"] == rank]["loss"].tolist()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_losses_equal_those_of_the_dense_model(dense, world_size):
    run = tp.launch(tp.train, CONFIG, fixed_batches(), world_size=world_size)
    for rank in range(world_size):
        # float32 sums in another order (6e-8 each), carried through 20 steps.
        assert rank_losses(run, rank) == pytest.approx(dense, rel=1e-6, abs=0)
        assert run[rank] == rank_losses(run, rank)[-1]


def test_a_learnable_task_is_learned_and_random_labels_are_not():
    chance = math.log(10)
    late = {}
    for task in ("first-token", "random"):
        config = tp.TrainConfig.preset("classroom", task=task)
        run = tp.launch(tp.train, config, world_size=2, check=False)
        late[task] = sum(rank_losses(run, 0)[-10:]) / 10
    assert late["first-token"] < chance / 2
    assert late["random"] > chance * 0.9


def count_reads(config: tp.TrainConfig) -> int:
    """How many samples this rank's own process made while it trained."""
    reads = 0

    def see(frame, event, arg):
        nonlocal reads
        reads += event == "call" and frame.f_code is RandomTextDataset.__getitem__.__code__

    sys.setprofile(see)
    try:
        tp.train(config)
    finally:
        sys.setprofile(None)
    return reads


def test_rank_0_alone_makes_data_and_starts_over():
    config = tp.TrainConfig(**SIZES, num_workers=0, max_steps=8)  # 48 samples of 37
    assert tp.launch(count_reads, config, world_size=3).values == [48, 0, 0]


def test_the_same_configuration_gives_the_same_losses_whatever_the_workers():
    runs = [
        tp.launch(tp.train, tp.TrainConfig(**SIZES, num_workers=n, max_steps=8, log_every=1), world_size=2)
        for n in (0, 0, 1)
    ]
    assert rank_losses(runs[0], 0) == rank_losses(runs[1], 0) == rank_losses(runs[2], 0)
    assert rank_losses(runs[0], 1) == rank_losses(runs[0], 0)


@pytest.mark.parametrize(
    ("max_steps", "log_every", "recorded"), [(8, 3, [0, 3, 6, 7]), (7, 3, [0, 3, 6]), (3, 10, [0, 2]), (1, 1, [0])]
)
def test_a_record_every_n_steps_and_at_the_last(max_steps, log_every, recorded):
    config = tp.TrainConfig(**SIZES, num_workers=0, max_steps=max_steps, log_every=log_every)
    run = tp.launch(tp.train, config, world_size=2)
    held = run.memory[run.memory["kind"] == "allocated"]
    for rank in range(2):
        steps = run.steps[run.steps["rank"] == rank]
        assert steps["step"].tolist() == recorded
        assert steps["tokens"].tolist() == [(step + 1) * 6 * 9 for step in recorded]
        assert steps["seconds"].is_monotonic_increasing and steps["seconds"].min() > 0
        assert steps[["loss", "grad_norm"]].notna().all(axis=None)
        mine = held[held["rank"] == rank]
        assert mine["step"].tolist() == recorded
        # What lives at least: parameters, gradients, AdamW's two numbers each.
        parameters = run.shards[run.shards["rank"] == rank]["local_bytes"].sum()
        assert mine["bytes"].min() >= 4 * parameters
    assert "reserved" not in set(run.memory["kind"]), "a CPU reserves nothing"


def test_the_run_knows_its_configuration():
    config = tp.TrainConfig(**SIZES, num_workers=0, max_steps=1)
    assert tp.TrainConfig(**tp.launch(tp.train, config, world_size=1).config) == config


@pytest.mark.parametrize("max_steps", [1, 2, 5])
def test_the_second_step_is_measured_or_the_only_one(max_steps):
    config = tp.TrainConfig(**SIZES, num_workers=0, max_steps=max_steps)
    run = tp.launch(tp.train, config, world_size=1)
    assert set(run.comm["step"]) == {min(1, max_steps - 1)}


def train_under_watch(config: tp.TrainConfig) -> bool:
    with tp.measure(nn.Linear(1, 1)):
        tp.train(config)
    return dist.is_initialized()


def test_the_last_collective_is_a_barrier():
    run = tp.launch(train_under_watch, tp.TrainConfig(**SIZES, num_workers=0, max_steps=2), world_size=2)
    assert run.values == [True, True], "train must leave the group to whoever made it"
    for rank in range(2):
        watched = run.comm[(run.comm["rank"] == rank) & (run.comm["step"] == 0)]
        assert watched["op"].tolist()[-1] == "barrier"
        assert watched["op"].tolist().count("barrier") == 1


def test_a_hidden_size_that_does_not_divide_is_refused_before_a_process_starts():
    with pytest.raises(ValueError, match="hidden_dim=48 .* 5 ranks"):
        tp.launch(tp.train, CONFIG, world_size=5)


def shaped(tokens: tuple[int, ...], labels: tuple[int, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.zeros(tokens, dtype=torch.long), torch.zeros(labels, dtype=torch.long))] * 20


@pytest.mark.parametrize(
    ("batches", "sentence"),
    [
        (fixed_batches(2), "ended at step 2; max_steps=20"),
        ([], "ended at step 0; max_steps=20"),
        (shaped((6, 8), (6,)), r"batch 0 has tokens \(6, 8\)"),
        (shaped((5, 9), (5,)), r"batch 0 has tokens \(5, 9\)"),
        (shaped((6, 9), (6, 1)), r"labels \(6, 1\)"),
    ],
    ids=["too few", "none", "short", "small", "labels"],
)
def test_batches_that_do_not_fit_are_named(batches, sentence):
    with pytest.raises(tp.RankFailed, match=sentence) as failed:
        tp.launch(tp.train, CONFIG, batches, world_size=2)
    assert (failed.value.rank, failed.value.error) == (0, "ValueError")


def test_more_batches_than_needed_are_left_alone():
    config = tp.TrainConfig(**SIZES, num_workers=0, max_steps=3, log_every=1)
    few, many = (tp.launch(tp.train, config, fixed_batches(n), world_size=2) for n in (3, 20))
    assert rank_losses(few, 0) == rank_losses(many, 0)
