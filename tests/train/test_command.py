"""`python -m tp_teach.train`, alone and under torchrun, and the words it finds for what cannot work."""

import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path

import pytest

import tp_teach as tp
from tp_teach.train.command import main

ROOT = Path(__file__).parents[2]
CONFIG = tp.TrainConfig(
    vocab_size=31,
    seq_len=6,
    d_model=8,
    hidden_dim=12,
    num_layers=2,
    num_classes=4,
    num_samples=20,
    batch_size=5,
    num_workers=0,
    num_epochs=2,
    max_steps=6,
    lr=2e-3,
    task="first-token",
    seed=77,
    log_every=2,
)
WORLD_SIZE = 2
# Every field that the toy above leaves at its default, with another value.
DECODER = tp.TrainConfig(
    model="decoder",
    block="gpt",
    vocab_size=36,
    seq_len=8,
    d_model=16,
    hidden_dim=24,
    num_layers=1,
    num_heads=8,
    num_kv_heads=4,
    tied=True,
    qkv_bias=True,
    dropout=0.25,
    sequence_parallel=True,
    vocab_parallel=True,
    loss_parallel=True,
    data_parallel=2,
    data_parallel_kind="fsdp",
    dtype="bfloat16",
    autocast=True,
    accumulate=2,
    clip=0.5,
    checkpointing=True,
    num_samples=20,
    batch_size=4,
    num_workers=0,
    max_steps=3,
    task="next-token",
    log_every=1,
)


def options(config: tp.TrainConfig) -> list[str]:
    """Every field of the configuration as an option of the command line."""
    words = []
    for field, value in asdict(config).items():
        name = field.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", str(value)]
    return words


def start(*command: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def three_ways(tmp_path_factory):
    """The same configuration from a notebook's call, from the command and from torchrun."""
    folder = tmp_path_factory.mktemp("runs")
    asked = [*options(CONFIG), "--save"]
    alone = start("-m", "tp_teach.train", "--world-size", str(WORLD_SIZE), *asked, str(folder / "alone"))
    torchrun = start(
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(WORLD_SIZE),
        "-m",
        "tp_teach.train",
        *asked,
        str(folder / "torchrun"),
    )
    for ended in (alone, torchrun):
        assert ended.returncode == 0, ended.stderr
    runs = {
        "launch": tp.launch(tp.train, CONFIG, world_size=WORLD_SIZE),
        "alone": tp.load(folder / "alone"),
        "torchrun": tp.load(folder / "torchrun"),
    }
    return runs, {"alone": alone, "torchrun": torchrun}


@pytest.mark.parametrize("way", ["alone", "torchrun"])
def test_every_way_to_start_it_gives_the_same_run(three_ways, way):
    """Bitwise: the same operations on the same data, whoever starts the processes."""
    runs, _ = three_ways
    here, there = runs["launch"], runs[way]
    same = ["rank", "step", "loss", "grad_norm", "tokens"]
    assert here.steps[same].equals(there.steps[same])
    assert sorted(set(there.steps["step"])) == [0, 2, 4, 5]
    assert here.shards.equals(there.shards)
    assert here.comm.equals(there.comm)
    assert here.values == there.values
    assert there.world["size"] == WORLD_SIZE


@pytest.mark.parametrize("way", ["alone", "torchrun"])
def test_every_field_is_an_option_and_is_kept(three_ways, way):
    assert tp.TrainConfig(**three_ways[0][way].config) == CONFIG


def test_the_two_configurations_change_every_field():
    """But for `compile`, which takes a compiler half a minute."""
    unchanged = {f.name for f in fields(CONFIG) if getattr(CONFIG, f.name) == getattr(DECODER, f.name) == f.default}
    assert unchanged == {"compile"}


@pytest.fixture(scope="module")
def two_machines(tmp_path_factory):
    """The decoder under two agents of torchrun, as on two machines of two ranks each."""
    folder = tmp_path_factory.mktemp("machines")
    with socket.socket() as port:
        port.bind(("localhost", 0))
        address = f"localhost:{port.getsockname()[1]}"
    words = f"-m torch.distributed.run --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint {address}"
    words = [
        *words.split(),
        "--rdzv-id",
        "two",
        "-m",
        "tp_teach.train",
        *options(DECODER),
        "--save",
        str(folder / "run"),
    ]
    with ThreadPoolExecutor() as pool:
        ended = list(pool.map(lambda _: start(*words), range(2)))
    for one in ended:
        assert one.returncode == 0, one.stderr
    return tp.load(folder / "run"), ended


def test_two_machines_give_the_same_run_as_one(two_machines):
    run, ended = two_machines
    assert tp.TrainConfig(**run.config) == DECODER
    assert run.world["size"] == 4
    assert run.world["reason"].startswith("4 ranks, on each machine 2 ranks on the CPU with Gloo")
    assert sorted("step 2: loss" in one.stdout for one in ended) == [False, True], "rank 0 alone prints"
    here = tp.launch(tp.train, DECODER, world_size=4, show="none")
    same = ["rank", "step", "loss", "grad_norm", "tokens"]
    assert here.steps[same].equals(run.steps[same])
    assert here.shards.equals(run.shards)
    assert here.comm.equals(run.comm)


@pytest.mark.parametrize("way", ["alone", "torchrun"])
def test_rank_0_prints_summary_and_log(three_ways, way):
    runs, ended = three_ways
    lines = [line.removeprefix("[rank 0] ") for line in ended[way].stdout.splitlines()]
    for name, global_shape, local_shape, placement in [
        ("token_emb.weight", "(31, 8)", "(31, 8)", "plain"),
        ("layers.1.fc1.weight", "(12, 8)", "(6, 8)", "Shard(0)"),
        ("layers.0.fc2.weight", "(8, 12)", "(8, 6)", "Shard(1)"),
        ("head.bias", "(4,)", "(4,)", "plain"),
    ]:
        wanted = [name, global_shape, local_shape, placement]
        assert [re.split(r"\s{2,}", line) for line in lines].count(wanted) == 1, name
    summary = [line for line in lines if re.match(r"(token|pos|layers|final|head)\S*\.(weight|bias) ", line)]
    assert len(summary) == runs["launch"].shards["parameter"].nunique()
    steps = [re.match(r"step (\d+): loss (\d\.\d{4}), allocated .* MiB, .* s$", line) for line in lines]
    told = [(int(found[1]), found[2]) for found in steps if found]
    rows = runs["launch"].steps[runs["launch"].steps["rank"] == 0]
    assert told == [(row.step, f"{row.loss:.4f}") for row in rows.itertuples()]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "error: --world-size is missing"),
        (["--world-size", "0"], "error: world_size=0 starts no rank"),
        (["--world-size", "5"], "error: hidden_dim=3072 does not divide over 5 ranks"),
        (["--world-size", "2", "--batch-size", "10001"], "error: batch_size=10001 is larger than the data"),
        (["--world-size", "2", "--preset", "classroom", "--batch-size", "2049"], "num_samples=2048"),
        (["--world-size", "2", "--max-steps", "0"], "error: max_steps=0 does not work"),
        (["--world-size", "2", "--lr", "-1"], "error: lr=-1.0 does not work"),
        (["--world-size", "2", "--preset", "huge"], "error: preset='huge' is not known"),
        (["--world-size", "2", "--backend", "nccl", "--device", "cpu"], "error: backend='nccl' cannot work"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_work_gives_one_sentence_and_status_2(arguments, sentence, capfd):
    assert main(arguments) == 2
    printed = capfd.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize("arguments", [["--batch-size", "many"], ["--nope", "3"], ["--task", "sorting"], ["--preset"]])
def test_what_is_no_option_gives_status_2(arguments, capfd):
    with pytest.raises(SystemExit) as ended:
        main(["--world-size", "2", *arguments])
    assert ended.value.code == 2
    assert arguments[0] in capfd.readouterr().err


def test_the_command_itself_ends_with_status_2():
    ended = start("-m", "tp_teach.train", "--world-size", "5")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(r"error: hidden_dim=3072 does not divide over 5 ranks; .*\n", ended.stderr)


def test_a_rank_that_fails_gives_status_1(capfd):
    too_much = str(10**13)  # tokens; their vectors would take 320 terabytes
    assert main(["--world-size", "2", *options(CONFIG), "--vocab-size", too_much]) == 1
    assert re.search(r"^RankFailed: rank [01] raised \w*Error: ", capfd.readouterr().err, re.MULTILINE)


BROKEN = """
import os
import torch.distributed as dist
from tp_teach.launch.torchrun import join

def broken():
    dist.barrier()
    raise KeyError("broken on purpose")

try:
    join(broken)
except KeyError:
    os.write(1, f"initialized: {dist.is_initialized()}\\n".encode())
"""


def test_the_process_group_is_destroyed_after_an_error(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text(BROKEN)
    ended = start("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("initialized: False") == 2
