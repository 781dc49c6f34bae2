"""What cannot be cut or computed is one ValueError that names the field and what would work. No process starts."""

import dataclasses

import pytest

import tp_teach as tp

DECODER = tp.TrainConfig.preset("decoder", d_model=96, num_heads=12, num_kv_heads=6)


def changed(**changes) -> tp.TrainConfig:
    return dataclasses.replace(DECODER, **changes)


CANNOT_BE_CUT = [
    ({}, 4, r"num_kv_heads=6 does not divide over 4 ranks; use num_kv_heads=4 or 8"),
    ({}, 5, r"hidden_dim=192 does not divide over 5 ranks; use hidden_dim=190 or 195"),
    ({"hidden_dim": 195, "d_model": 120}, 5, r"num_heads=12 does not divide over 5 ranks; use num_heads=10 or 15"),
    ({"vocab_size": 257, "vocab_parallel": True}, 2, r"vocab_size=257 .* use vocab_size=256 or 258"),
    ({"seq_len": 31, "sequence_parallel": True}, 2, r"seq_len=31 .* use seq_len=30 or 32"),
    ({"data_parallel": 2}, 3, r"data_parallel=2 does not divide 3 ranks; use 1 or 3, or 2 or 4 ranks"),
]


@pytest.mark.parametrize(("changes", "world_size", "words"), CANNOT_BE_CUT)
@pytest.mark.parametrize("start", ["predict", "launch"])
def test_a_cut_that_cannot_be_made(changes, world_size, words, start):
    config = changed(**changes)
    with pytest.raises(ValueError, match=words):
        if start == "predict":
            tp.predict(config, world_size)
        else:
            tp.launch(tp.train, config, world_size=world_size)


WRONG_FIELDS = [
    ({"hidden_dim": -4}, "hidden_dim=-4 does not work; use a whole number of at least 1"),
    ({"seq_len": 2.5}, "seq_len=2.5 does not work; use a whole number of at least 1"),
    ({"dtype": "float8"}, "dtype='float8' is not known; use 'float32', 'bfloat16' or 'float64'"),
    ({"num_heads": 10}, "d_model=96 does not divide over num_heads=10; use d_model=90 or 100"),
    ({"batch_size": 9, "accumulate": 2}, "batch_size=9 does not divide .* use batch_size=8 or 10"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG_FIELDS)
def test_a_field_that_makes_no_sense(changes, words):
    with pytest.raises(ValueError, match=words):
        tp.TrainConfig.preset("decoder", **changes)


@pytest.mark.parametrize("field", ["compile", "autocast"])
def test_what_has_no_closed_form_is_refused(field):
    with pytest.raises(ValueError, match=f"{field}=True cannot be predicted"):
        tp.predict(changed(**{field: True}), 2)


@pytest.mark.parametrize("world_size", [0, -2, 2.0, True, "2", None])
def test_a_wrong_number_of_ranks(world_size):
    with pytest.raises(ValueError, match="world_size="):
        tp.predict(DECODER, world_size)


@pytest.mark.parametrize("config", [None, {}, "decoder", {"model": "decoder"}])
def test_another_configuration(config):
    with pytest.raises(TypeError, match="is not a TrainConfig"):
        tp.predict(config, 2)


def test_an_unknown_model_names_the_known_ones():
    with pytest.raises(ValueError, match="preset='llama9' is not known; use .*'llama3-70b'"):
        tp.TrainConfig.preset("llama9")
