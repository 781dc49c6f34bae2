"""A prediction says what it is, and tells one configuration from another."""

import pytest

import tp_teach as tp

SMALL = dict(vocab_size=11, seq_len=5, d_model=7, hidden_dim=12, num_layers=2, num_classes=3, batch_size=3)


def config(changes: dict) -> tp.TrainConfig:
    return tp.TrainConfig(**SMALL | changes)


@pytest.mark.parametrize(
    "other", [{"batch_size": 2}, {"num_layers": 3}, {"hidden_dim": 24}, {"d_model": 8}, {"dtype": "bfloat16"}]
)
def test_another_configuration_is_not_equal(other):
    assert not tp.predict(config({}), 2).compare(tp.predict(config(other), 2))["equal"].all()


def test_prediction_says_what_it_is():
    predicted = tp.predict(config({}), 3)
    assert (predicted.world["mode"], predicted.world["size"], predicted.config["d_model"]) == ("predicted", 3, 7)


def test_a_hidden_size_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="hidden_dim=12 .* 5 ranks"):
        tp.predict(config({}), 5)
