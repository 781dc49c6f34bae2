"""The data sets and the batches: the same for the same seed, made on rank 0, equal on all ranks."""

import itertools

import pytest
import torch
import torch.distributed as dist

import tp_teach as tp
from tp_teach.train.data import (
    ContinuedTextDataset,
    FirstTokenDataset,
    NextTokenDataset,
    RandomTextDataset,
    broadcast_batches,
    dataset,
    endless_batches,
    share,
)

KINDS = [RandomTextDataset, FirstTokenDataset, ContinuedTextDataset]
SIZES = dict(num_samples=40, seq_len=7, vocab_size=13, num_classes=5)
CONFIG = tp.TrainConfig(**SIZES, batch_size=6, num_workers=0, max_steps=14)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_depends_on_seed_and_index_alone(kind):
    one, two = kind(**SIZES, seed=3), kind(**SIZES, seed=3)
    torch.manual_seed(99)
    backwards = [two[index] for index in reversed(range(40))][::-1]
    for index, (tokens, label) in enumerate(backwards):
        assert torch.equal(one[index][0], tokens)
        assert torch.equal(one[index][1], label)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_and_indices_tell_samples_apart(kind):
    samples = {tuple(kind(**SIZES, seed=seed)[index][0].tolist()) for seed in range(5) for index in range(40)}
    assert len(samples) == 5 * 40  # of 13 ** 7 possible ones


@pytest.mark.parametrize("kind", [RandomTextDataset, FirstTokenDataset])
def test_shape_type_and_range(kind):
    samples = [kind(**SIZES)[index] for index in range(40)]
    tokens, labels = torch.stack([s[0] for s in samples]), torch.stack([s[1] for s in samples])
    assert (tokens.shape, tokens.dtype, labels.shape, labels.dtype) == ((40, 7), torch.int64, (40,), torch.int64)
    assert set(tokens.flatten().tolist()) == set(range(13))
    assert set(labels.tolist()) <= set(range(5))
    assert len(set(labels.tolist())) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [-1, 40])
def test_an_index_outside_is_refused(kind, index):
    with pytest.raises(IndexError, match=f"index={index} .* 40 samples"):
        kind(**SIZES)[index]


def test_making_samples_draws_no_number_from_torchs_own_generator():
    before = torch.get_rng_state()
    next(iter(endless_batches(CONFIG)))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_first_token_decides_the_label():
    data = FirstTokenDataset(num_samples=400, seq_len=3, vocab_size=13, num_classes=5)
    classes: dict[int, set[int]] = {}
    for tokens, label in (data[index] for index in range(400)):
        classes.setdefault(int(tokens[0]), set()).add(int(label))
    assert len(classes) == 13
    assert all(len(labels) == 1 for labels in classes.values())


def test_random_labels_are_told_by_nothing():
    data = RandomTextDataset(num_samples=400, seq_len=3, vocab_size=4, num_classes=5)
    classes: dict[int, set[int]] = {}
    for tokens, label in (data[index] for index in range(400)):
        classes.setdefault(int(tokens[0]), set()).add(int(label))
    assert all(len(labels) == 5 for labels in classes.values())


@pytest.mark.parametrize("kind", [ContinuedTextDataset, NextTokenDataset])
def test_a_decoders_labels_are_the_next_tokens(kind):
    tokens, labels = zip(*(kind(**SIZES)[index] for index in range(40)), strict=True)
    tokens, labels = torch.stack(tokens), torch.stack(labels)
    assert (tokens.shape, tokens.dtype, labels.shape, labels.dtype) == ((40, 7), torch.int64, (40, 7), torch.int64)
    assert torch.equal(tokens[:, 1:], labels[:, :-1])
    assert set(tokens.flatten().tolist()) == set(range(13))
    after: dict[int, set[int]] = {}
    for token, label in zip(tokens.flatten().tolist(), labels.flatten().tolist(), strict=True):
        after.setdefault(token, set()).add(label)
    if kind is NextTokenDataset:
        assert sorted(label for (label,) in after.values()) == list(range(13)), "each token has a successor of its own"
    else:
        assert all(len(labels) > 5 for labels in after.values())


def test_the_groups_micro_batches_make_the_whole_batch():
    config = tp.TrainConfig(**SIZES, batch_size=12, data_parallel=2, accumulate=3)
    batch = torch.arange(24).view(12, 2), torch.arange(12)
    parts = [[part[1].tolist() for part in share(config, batch, group)] for group in range(2)]
    assert parts == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]


@pytest.mark.parametrize(("task", "kind"), [("random", RandomTextDataset), ("first-token", FirstTokenDataset)])
def test_the_configuration_names_the_data_set(task, kind):
    data = dataset(tp.TrainConfig(**SIZES, batch_size=6, task=task, seed=8))
    assert type(data) is kind
    assert torch.equal(data[3][0], kind(**SIZES, seed=8)[3][0])


def indices_of(batches) -> list[list[int]]:
    data = dataset(CONFIG)
    index_of = {tuple(data[index][0].tolist()): index for index in range(len(data))}
    return [[index_of[tuple(tokens.tolist())] for tokens in batch] for batch, _ in batches]


def test_the_loader_starts_over_in_a_new_order_and_drops_the_rest():
    batches = indices_of(itertools.islice(endless_batches(CONFIG), 14))
    epochs = [sum(batches[start : start + 6], []) for start in (0, 6)]  # 6 whole batches of 6 in 40 samples
    assert all(len(set(epoch)) == 36 for epoch in epochs), "a sample came twice in one epoch"
    assert epochs[0] != epochs[1]
    assert epochs[0] != sorted(epochs[0])
    assert all(len(batch) == 6 for batch in batches)


def test_the_order_does_not_depend_on_the_number_of_workers():
    alone = list(itertools.islice(endless_batches(CONFIG), 8))
    helped = list(
        itertools.islice(endless_batches(tp.TrainConfig(**SIZES, batch_size=6, num_workers=1, max_steps=14)), 8)
    )
    for (tokens, labels), (others, theirs) in zip(alone, helped, strict=True):
        assert torch.equal(tokens, others)
        assert torch.equal(labels, theirs)


def receive() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What a rank receives; rank 0 also hands in its own batches, the others' would differ."""
    mine = endless_batches(CONFIG) if dist.get_rank() == 0 else None
    return list(broadcast_batches(CONFIG, mine, torch.device("cpu")))


def test_all_ranks_receive_rank_0s_batches():
    wanted = list(itertools.islice(endless_batches(CONFIG), 14))
    for received in tp.launch(receive, world_size=3):
        assert len(received) == 14
        for (tokens, labels), (want_tokens, want_labels) in zip(received, wanted, strict=True):
            assert torch.equal(tokens, want_tokens)
            assert torch.equal(labels, want_labels)
