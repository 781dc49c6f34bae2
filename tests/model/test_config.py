"""A configuration is checked when it is made, and its errors name the field, the value and what would do."""

from dataclasses import fields

import pytest

import tp_teach as tp

SEED_DEFAULTS = {
    "vocab_size": 32000,
    "seq_len": 256,
    "d_model": 768,
    "hidden_dim": 3072,
    "num_layers": 6,
    "num_classes": 10,
    "num_samples": 10000,
    "batch_size": 32,
    "num_workers": 4,
    "num_epochs": 1,
    "max_steps": 100,
    "lr": 1e-4,
    "seed": 1234,
    "log_every": 10,
}
AT_LEAST_1 = [
    "vocab_size",
    "seq_len",
    "d_model",
    "hidden_dim",
    "num_layers",
    "num_classes",
    "num_samples",
    "batch_size",
    "num_epochs",
    "max_steps",
    "log_every",
]
WRONG = (
    [(field, value) for field in AT_LEAST_1 for value in (0, -1, 2.5, "3", None, True)]
    + [("num_workers", -1), ("seed", -1), ("seed", 1.0)]
    + [("lr", value) for value in (0, -1e-3, float("nan"), float("inf"), "1e-3", None, True)]
    + [("task", value) for value in ("sorting", None, "")]
)


@pytest.mark.parametrize("field", SEED_DEFAULTS)
def test_defaults_are_the_seeds(field):
    assert getattr(tp.TrainConfig(), field) == SEED_DEFAULTS[field]


def test_preset_seed_is_the_defaults():
    assert tp.TrainConfig.preset("seed") == tp.TrainConfig()


def test_classroom_is_smaller_and_can_be_learned():
    seed, classroom = tp.TrainConfig(), tp.TrainConfig.preset("classroom")
    smaller = ("vocab_size", "seq_len", "d_model", "hidden_dim", "num_layers", "num_samples", "max_steps")
    assert all(getattr(classroom, field) < getattr(seed, field) for field in smaller)
    assert classroom.task == "first-token"


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("preset", ["seed", "classroom"])
def test_presets_divide_over_one_to_four_ranks(preset, world_size):
    tp.TrainConfig.preset(preset).check_ranks(world_size)


def test_a_preset_takes_changes_and_checks_them():
    assert tp.TrainConfig.preset("classroom", max_steps=3).max_steps == 3
    with pytest.raises(ValueError, match="max_steps=0"):
        tp.TrainConfig.preset("classroom", max_steps=0)


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(ValueError, match="'huge'.*'seed', 'classroom', 'decoder', 'llama2-7b', .* or 'megatron-8.3b'"):
        tp.TrainConfig.preset("huge")


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_value_is_refused_when_the_configuration_is_made(field, value):
    with pytest.raises(ValueError) as refused:
        tp.TrainConfig(**{field: value})
    sentence = str(refused.value)
    assert f"{field}={value!r}" in sentence
    assert "; use " in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("field", AT_LEAST_1)
def test_one_is_enough(field):
    sizes = {"batch_size": 1} if field == "num_samples" else {}
    assert getattr(tp.TrainConfig(**{field: 1} | sizes), field) == 1


def test_no_workers_and_seed_0_are_allowed():
    config = tp.TrainConfig(num_workers=0, seed=0)
    assert (config.num_workers, config.seed) == (0, 0)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="batch_size=33 .*num_samples=32"):
        tp.TrainConfig(batch_size=33, num_samples=32)
    assert tp.TrainConfig(batch_size=32, num_samples=32).batch_size == 32


@pytest.mark.parametrize(("hidden_dim", "ranks", "helps"), [(10, 3, "9 or 12"), (2, 4, "4"), (7, 2, "6 or 8")])
def test_a_hidden_size_that_the_ranks_do_not_divide(hidden_dim, ranks, helps):
    with pytest.raises(ValueError, match=f"hidden_dim={hidden_dim} .* {ranks} ranks; use hidden_dim={helps},"):
        tp.TrainConfig(hidden_dim=hidden_dim).check_ranks(ranks)


def test_a_configuration_cannot_be_changed_past_its_checks():
    config = tp.TrainConfig()
    for field in fields(config):
        with pytest.raises(AttributeError):
            setattr(config, field.name, 0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (dict(model="toy", num_heads=8), "num_heads=8 needs a decoder; use model='decoder'"),
        (dict(task="first-token"), "task='first-token' does not fit model='decoder'; use 'random' or 'next-token'"),
        (dict(d_model=10, num_heads=4), "d_model=10 does not divide over num_heads=4; use d_model=8 or 12"),
        (dict(d_model=12, num_heads=4), "num_heads=4 makes heads of 3 numbers; rotary positions turn pairs"),
        (dict(num_heads=6, num_kv_heads=4), "num_kv_heads=4 does not divide num_heads=6; use 1, 2, 3 or 6"),
        (dict(dropout=0.1), "dropout=0.1 needs block='gpt'"),
        (dict(loss_parallel=True), "loss_parallel=True needs logits cut along the vocabulary"),
        (dict(block="gpt", hidden_dim=1), "hidden_dim = 1 makes a bias of one number, which cannot be cut; use 2"),
        (dict(block="gpt", d_model=6, num_heads=6, num_kv_heads=1), "num_heads = 1 makes a bias of one number"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_a_decoder_is_refused(changes, sentence):
    sizes = dict(model="decoder", task="random", d_model=24, hidden_dim=24, num_heads=6, num_kv_heads=6)
    with pytest.raises(ValueError) as refused:
        tp.TrainConfig(**sizes | changes)
    assert sentence in str(refused.value)
