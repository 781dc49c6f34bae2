"""Checkpoints: saved on some ranks, opened on others; what is not one is refused, and nothing good is lost."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import tp_teach as tp
from tests.train.test_parity import CPU, FSDP, GPT, LLAMA, TOY, VOCAB, twin, whole
from tp_teach.train.build import build, make_mesh
from tp_teach.train.checkpoint import load, newest, save
from tp_teach.train.command import main
from tp_teach.train.data import endless_batches
from tp_teach.train.loop import fit

SMALL = dict(dtype="float32", max_steps=2, log_every=2, num_layers=1)
CASES = {
    "tied": replace(LLAMA, tied=True, **VOCAB, **SMALL),
    "fsdp": replace(LLAMA, **FSDP, **SMALL),
    "toy": replace(TOY, **SMALL),
}


def state(model, optimizer) -> dict:
    """Parameters, and what the optimizer keeps for each of them, in whole."""
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = whole(parameter)
        found |= {f"{name} {kind}": whole(value) for kind, value in optimizer.state[parameter].items()}
    return found


def go_on(config: tp.TrainConfig, source: Path | None, steps: int, target: Path | None = None) -> tuple[dict, dict]:
    """Open a checkpoint (or begin), train some steps, save. Returns the state at first and at last."""
    model, optimizer = build(config, CPU, make_mesh(config, CPU) if dist.is_initialized() else None)
    done = load(source, config, model, optimizer) if source is not None else 0
    first = state(model, optimizer) if source is not None else {}
    if steps:
        batches = endless_batches(config)
        for _ in range(done):
            next(batches)
        mesh = make_mesh(config, CPU) if dist.is_initialized() else None
        fit(replace(config, max_steps=done + steps), model, optimizer, batches, mesh, done)
    if target is not None:
        save(target, config, model, optimizer, done + steps)
    last = state(model, optimizer)
    return (first, last) if not dist.is_initialized() or dist.get_rank() == 0 else ({}, {})


def check_equal(here: dict, there: dict) -> None:
    assert here.keys() == there.keys()
    for name, tensor in here.items():
        assert torch.equal(tensor, there[name]), name


@pytest.fixture(scope="module")
def four():
    with tp.ranks(world_size=4, check=False, show="none") as ranks:
        yield ranks


@pytest.fixture(scope="module")
def two():
    with tp.ranks(world_size=2, check=False, show="none") as ranks:
        yield ranks


@pytest.mark.parametrize("case", CASES)
def test_from_four_ranks_to_two_to_one_model_to_four(case, four, two, tmp_path):
    """Bit for bit, optimizer state too; and the next step is that of training that was never interrupted."""
    config = CASES[case]
    _, on_four = four.launch(go_on, config, None, 2, tmp_path / "four")[0]
    on_two, _ = two.launch(go_on, config, tmp_path / "four", 0, tmp_path / "two")[0]
    dense, _ = go_on(twin(config), tmp_path / "two", 0, tmp_path / "dense")
    on_four_again, next_step = four.launch(go_on, config, tmp_path / "dense", 1)[0]
    _, uninterrupted = four.launch(go_on, config, None, 3)[0]
    assert len(on_four) == 4 * len(dict(build(twin(config), CPU, None)[0].named_parameters()))
    for other in (on_two, dense, on_four_again):
        check_equal(on_four, other)
    check_equal(next_step, uninterrupted)


def test_training_goes_on_where_it_was_saved_dropout_and_batches_too(two, tmp_path):
    config = replace(GPT, dropout=0.2, **SMALL | dict(max_steps=4, log_every=1))
    whole_run = two.launch(tp.train, config)
    two.launch(tp.train, replace(config, max_steps=2), None, tmp_path / "kept")
    rest = two.launch(tp.train, config, None, tmp_path / "kept")
    assert rest.steps["step"].tolist() == [2, 3] * 2
    same = ["rank", "step", "loss", "grad_norm", "tokens"]
    assert rest.steps[same].equals(whole_run.steps[whole_run.steps["step"] >= 2][same].reset_index(drop=True))
    assert newest(tmp_path / "kept") == 4
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["step-3", "step-4"]
    with pytest.raises(tp.RankFailed, match="has 4 steps behind it; use max_steps=5 or more"):
        tp.launch(tp.train, config, None, tmp_path / "kept", world_size=1)


@pytest.fixture
def saved(tmp_path) -> Path:
    """A folder with the checkpoints step-1 and step-2 of a small toy."""
    for _ in range(2):
        config = replace(TOY, **SMALL)
        steps = [path for path in (tmp_path / "kept").glob("step-*")]
        go_on(config, tmp_path / "kept" if steps else None, 1, tmp_path / "kept")
    return tmp_path / "kept"


def test_half_a_checkpoint_is_refused_and_the_one_before_it_is_good(saved):
    config = replace(TOY, **SMALL)
    model, optimizer = build(config, CPU, None)
    data = next((saved / "step-2").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"step-2' is not a whole checkpoint: {data.name} has .*; remove it to go on"):
        load(saved, config, model, optimizer)
    (saved / "step-2" / "checkpoint.json").unlink()
    with pytest.raises(ValueError, match="not a whole checkpoint: its checkpoint.json cannot be read"):
        load(saved, config, model, optimizer)
    shutil.rmtree(saved / "step-2")
    assert load(saved, config, model, optimizer) == 1


class Full(OSError):
    pass


def test_what_a_killed_run_left_is_no_checkpoint(saved):
    (saved / ".step-3").mkdir()
    (saved / ".step-3" / "__0_0.distcp").write_bytes(b"half")
    assert newest(saved) == 2
    go_on(replace(TOY, **SMALL), saved, 1, saved)
    assert sorted(path.name for path in saved.iterdir()) == ["step-2", "step-3"]


def test_an_interrupted_save_leaves_the_checkpoint_before_it(saved, monkeypatch):
    config = replace(TOY, **SMALL)
    model, optimizer = build(config, CPU, None)
    load(saved, config, model, optimizer)

    def full(self, *text, **options):
        raise Full("no space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(Full):
        save(saved, config, model, optimizer, 3)
    monkeypatch.undo()
    assert newest(saved) == 2
    assert load(saved, config, model, optimizer) == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (dict(hidden_dim=48), "saved with hidden_dim=24; this model has hidden_dim=48"),
        (dict(dtype="float64"), "saved with dtype='float32'"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(saved, changes, sentence):
    config = replace(TOY, **SMALL | changes)
    with pytest.raises(ValueError, match=sentence):
        load(saved, config, *build(config, CPU, None))


def test_a_foreign_or_newer_checkpoint_is_refused(saved, tmp_path):
    about = saved / "step-2" / "checkpoint.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"format": 99}))
    with pytest.raises(ValueError, match="has format 99; this version reads format 1"):
        newest(saved)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    assert newest(foreign) is None
    (foreign / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(ValueError, match="holds 'model.safetensors' and no checkpoint; name a new folder"):
        newest(foreign)
    with pytest.raises(ValueError, match="is a file; name a folder"):
        newest(foreign / "model.safetensors")
    with pytest.raises(ValueError, match="holds no checkpoint"):
        load(tmp_path / "none", replace(TOY, **SMALL), *build(replace(TOY, **SMALL), CPU, None))


def test_the_command_refuses_a_foreign_folder_before_it_trains(tmp_path, capfd):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["--world-size", "1", "--preset", "classroom", "--checkpoint", str(tmp_path)]) == 2
    printed = capfd.readouterr()
    assert "holds 'notes.txt' and no checkpoint" in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")
