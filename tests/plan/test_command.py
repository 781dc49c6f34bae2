"""`python -m tp_teach.plan` prints what tp.plan says, as text and as data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tp_teach as tp
from tp_teach.plan.command import main

ROOT = Path(__file__).parents[2]


def test_the_command_itself_prints_the_plan():
    command = [sys.executable, "-m", "tp_teach.plan", "llama3-70b", "--hardware", "h100", "--tp", "8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tp.plan('llama3-70b', 'h100', tp=8)}\n"


OPTIONS = {
    "--tp 2 4": {"tp": [2, 4]},
    "--tp 8 --sequence-parallel": {"tp": 8, "sequence_parallel": True},
    "--data-parallel 2 --data-parallel-kind fsdp": {"data_parallel": 2, "data_parallel_kind": "fsdp"},
    "--batch-size 4 --seq-len 2048 --checkpointing": {"batch_size": 4, "seq_len": 2048, "checkpointing": True},
    "--bytes-per-parameter 10": {"bytes_per_parameter": 10},
}


@pytest.mark.parametrize("words", OPTIONS)
def test_each_option_is_that_of_plan(words, capfd):
    assert main(["llama3-8b", "--hardware", "h100", *words.split(), "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == tp.plan("llama3-8b", "h100", **OPTIONS[words]).data()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["llama4", "--hardware", "h100"], "error: model='llama4' is not known; use 'llama2-7b', "),
        (["llama3-8b", "--hardware", "h900"], "error: hardware='h900' is not known; use 'a100', 'h100', "),
        (["llama3-8b", "--hardware", "h100", "--tp", "3"], "error: hidden_dim=14336 does not divide over 3 ranks"),
        (["llama3-8b", "--hardware", "h100", "--bytes-per-parameter", "3"], "has no recipe; use 10, 12, 16, 18, 20"),
        (["classroom", "--hardware", "this", "--tp", "1"], "error: world_size=1 has no link to measure"),
    ],
)
def test_what_cannot_be_planned_is_one_line_and_status_2(arguments, sentence, capfd):
    assert main(arguments) == 2
    printed = capfd.readouterr()
    assert sentence in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")


@pytest.mark.parametrize("arguments", [[], ["llama3-8b"], ["llama3-8b", "--hardware", "h100", "--nope"]])
def test_what_is_no_option_gives_status_2(arguments, capfd):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capfd.readouterr().err


def test_this_machine_is_measured_first(capfd):
    assert main(["classroom", "--hardware", "this", "--tp", "2", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["hardware"].startswith("this machine, 2 ranks on ")
    assert [candidate["tp"] for candidate in found["candidates"]] == [2]
