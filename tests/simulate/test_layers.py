"""Few layers foretell many, to the byte; where they cannot, all are played."""

from dataclasses import replace

import psutil
import pytest

import tp_teach as tp


def noting(config, path):
    with open(path, "a") as file:
        file.write(f"{config.num_layers} ")
    tp.train(config)


def telling(config, path):
    noting(config, path)
    return config.num_layers


def printing(config, path):
    noting(config, path)
    print("one line")


def deep(config, path):
    """Fails with few layers."""
    noting(config, path)
    assert config.num_layers == 6


@pytest.mark.parametrize(
    "world_size, changes",
    [
        (2, dict(sequence_parallel=True, vocab_parallel=True, loss_parallel=True)),
        (4, dict(block="gpt", dropout=0.1, data_parallel=2, data_parallel_kind="fsdp")),
    ],
    ids=str,
)
def test_few_layers_foretell_many(world_size, changes, tmp_path):
    config = tp.TrainConfig.preset("decoder", num_layers=5, max_steps=1, **changes)
    few = tp.simulate(noting, config, tmp_path / "few", world_size=world_size, rank=1)
    many = tp.simulate(noting, config, tmp_path / "many", world_size=world_size, rank=1, every_layer=True)
    assert (tmp_path / "few").read_text() == "2 3 4 "
    assert (tmp_path / "many").read_text() == "5 "
    for table in ("shards", "comm", "memory", "flops"):
        assert getattr(few, table).equals(getattr(many, table)), table
    assert few.config == many.config


def test_the_peak_is_found_where_many_layers_have_it():
    """Four layers hold most at the logits, six at the end of the backward, when all gradients are there."""
    config = tp.TrainConfig.preset(
        "decoder",
        **dict(num_layers=6, d_model=48, hidden_dim=384, num_heads=4, num_kv_heads=4, vocab_size=1000, seq_len=96),
        **dict(batch_size=1, checkpointing=True, max_steps=2),
    )
    few = tp.simulate(tp.train, config, world_size=2)
    assert few.memory.equals(tp.simulate(tp.train, config, world_size=2, every_layer=True).memory)
    four = tp.simulate(tp.train, replace(config, num_layers=4), world_size=2)
    gradients = [run.memory.query("moment == 'peak' and kind == 'gradients'")["bytes"].item() for run in (four, few)]
    assert gradients[0] == 0 < gradients[1]


@pytest.mark.parametrize("fn", [telling, deep])
def test_a_function_that_few_layers_do_not_foretell_plays_all(fn, tmp_path):
    config = tp.TrainConfig.preset("classroom", num_layers=6, max_steps=1)
    run = tp.simulate(fn, config, tmp_path / "played", world_size=2)
    assert (tmp_path / "played").read_text().endswith(" 6 ")
    assert run[0] == (6 if fn is telling else None)
    assert len(run.shards) == 6 * 4 + 6


def test_what_is_printed_is_shown_once(tmp_path):
    config = tp.TrainConfig.preset("classroom", num_layers=6, max_steps=1)
    run = tp.simulate(printing, config, tmp_path / "played", world_size=2, rank=1)
    assert (tmp_path / "played").read_text() == "2 3 4 "
    assert run.output == ["", "one line\n"]


def train_within(config, mebibytes):
    tp.train(config)
    return psutil.Process().memory_info().rss < mebibytes * 2**20


def test_a_large_model_is_what_arithmetic_says():
    config = tp.TrainConfig.preset("llama3-70b", max_steps=1)
    run = tp.simulate(train_within, config, 500, world_size=8, rank=7)
    assert run[7]
    rows = run.compare(tp.predict(config, 8))
    assert rows[rows["rank"] == 7]["equal"].all()
    assert rows[rows["rank"] == 7]["table"].value_counts()["shards"] == 80 * 9 + 3
