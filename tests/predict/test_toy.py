"""What arithmetic predicts is what real ranks do, to the byte."""

import pytest

import tp_teach as tp

SMALL = dict(
    vocab_size=11,
    seq_len=5,
    d_model=7,
    hidden_dim=12,
    num_layers=2,
    num_classes=3,
    num_samples=9,
    batch_size=3,
    num_workers=0,
    max_steps=2,
    log_every=1,
)
GRID = [
    {},
    {"batch_size": 1},
    {"num_layers": 1},
    {"max_steps": 1},
    {"d_model": 13, "hidden_dim": 60, "seq_len": 17, "batch_size": 5, "num_layers": 3, "task": "first-token"},
    dict.fromkeys(("vocab_size", "seq_len", "d_model", "num_layers", "num_classes", "batch_size", "max_steps"), 1),
]


def config(changes: dict) -> tp.TrainConfig:
    return tp.TrainConfig(**SMALL | changes)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("changes", GRID, ids=["small", "batch 1", "one layer", "one step", "odd sizes", "all ones"])
def test_prediction_equals_measurement(changes, world_size):
    run = tp.launch(tp.train, config(changes), world_size=world_size)
    predicted = tp.predict(config(changes), world_size)
    rows = run.compare(predicted)
    assert rows["equal"].all(), rows[~rows["equal"]].to_string()
    assert set(rows["table"]) == {"shards", "comm", "memory"}
    assert set(rows["rank"]) == set(range(world_size))
    # `compare` sums; row by row, shapes and order are the same too.
    assert run.shards.equals(predicted.shards)
    assert run.comm.drop(columns="seconds").equals(predicted.comm.drop(columns="seconds"))


def test_every_predicted_memory_row_was_measured():
    """`compare` joins memory on what both state, so a row that only one of them has would go unseen."""
    run, predicted = tp.launch(tp.train, config({}), world_size=2), tp.predict(config({}), 2)
    key = ["rank", "step", "moment", "kind", "bytes"]
    joined = predicted.memory[key].merge(run.memory[key], how="left", on=key, indicator=True)
    assert (joined["_merge"] == "both").all()
    assert len(joined) == len(predicted.memory) == 2 * 4 * 4  # ranks, moments, kinds


@pytest.mark.parametrize("other", [{"batch_size": 2}, {"num_layers": 3}, {"hidden_dim": 24}, {"d_model": 8}])
def test_another_configuration_is_not_equal(other):
    assert not tp.predict(config({}), 2).compare(tp.predict(config(other), 2))["equal"].all()


def test_prediction_says_what_it_is():
    predicted = tp.predict(config({}), 3)
    assert (predicted.world["mode"], predicted.world["size"], predicted.config["d_model"]) == ("predicted", 3, 7)


@pytest.mark.parametrize("world_size", [0, -1, 2.0, "2", None, True])
def test_a_wrong_number_of_ranks_is_refused(world_size):
    with pytest.raises(ValueError, match=f"world_size={world_size!r}"):
        tp.predict(config({}), world_size)


def test_a_hidden_size_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="hidden_dim=12 .* 5 ranks"):
        tp.predict(config({}), 5)
