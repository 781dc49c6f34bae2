"""Hard cases of training and measuring, each of which once went wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import tp_teach as tp
from tests.measure.alone import logged, memory_of
from tests.train.test_command import CONFIG as COMMAND_CONFIG
from tests.train.test_command import options, start
from tests.train.test_loop import CONFIG, fixed_batches, rank_losses
from tp_teach.train.command import main
from tp_teach.train.data import endless_batches
from tp_teach.train.loop import build, fit


def test_batches_need_not_be_contiguous():
    layouts = [
        lambda tokens: torch.cat([tokens, tokens[:, :1]], dim=1)[:, :-1],
        lambda tokens: tokens.t().contiguous().t(),
    ]
    batches = fixed_batches()
    with tp.ranks(world_size=2) as ranks:
        want = ranks.launch(tp.train, CONFIG, batches)
        for laid_out in layouts:
            odd = [(laid_out(tokens), labels) for tokens, labels in batches]
            assert all(torch.equal(a[0], b[0]) and not b[0].is_contiguous() for a, b in zip(batches, odd, strict=True))
            got = ranks.launch(tp.train, CONFIG, odd)
            for rank in range(2):
                assert rank_losses(got, rank) == rank_losses(want, rank)


@pytest.mark.parametrize("changes", [lambda x, y: (x.int(), y), lambda x, y: (x, y.float())], ids=["tokens", "labels"])
def test_a_batch_of_another_type_is_named(changes):
    with pytest.raises(tp.RankFailed, match="int64") as failed:
        tp.launch(tp.train, CONFIG, [changes(*b) for b in fixed_batches()], world_size=2)
    assert failed.value.error == "ValueError"


SCRIPT = """
import tp_teach as tp

def in_a_cell():
    return str(tp.device())

if __name__ == "__main__":
    print(tp.launch(in_a_cell, world_size=1).values)
"""


def test_a_function_of_main_may_use_tp(tmp_path):
    script = tmp_path / "cell.py"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(Path(tp.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert ended.stdout == "['cpu']\n", ended.stderr


class Sum(nn.Module):
    def forward(self, x):
        return differentiable.all_reduce(x)


class Between(nn.Module):
    """The root reduces between two calls of a child."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(differentiable.all_reduce(self.a(x)))


def between():
    model = Between()
    with tp.measure(model):
        model(torch.ones(2, 4)).sum().backward()


def test_a_parents_collective_before_a_child_is_the_parents_backward_too():
    comm = tp.launch(between, world_size=2).comm
    rows = comm[comm["rank"] == 0]
    assert list(zip(rows["phase"], rows["module"], strict=True)) == [("forward", ""), ("backward", "")]


def test_measuring_does_not_hide_an_error():
    """Sigmoid's backward needs its output, which is overwritten: torch refuses, measured or not."""
    model = nn.Linear(3, 3)

    def step():
        y = model(torch.ones(2, 3)).sigmoid()
        y.mul_(2)
        y.sum().backward()

    def measured():
        with tp.measure(model):
            step()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logged(measured)


def test_save_is_refused_before_training(tmp_path, capfd):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["--world-size", "1", *options(COMMAND_CONFIG), "--save", str(tmp_path)]) == 2
    printed = capfd.readouterr()
    assert "is not a saved run" in printed.err
    assert "step 0" not in printed.out


def test_torchrun_with_a_bad_option_prints_one_sentence():
    ended = start(
        *"-m torch.distributed.run --standalone --nproc-per-node 2 -m tp_teach.train --preset classroom".split(),
        "--hidden-dim",
        "7",
    )
    assert ended.returncode != 0
    assert ended.stderr.count("hidden_dim=7 does not divide over 2 ranks") == 1


def test_a_seed_too_large_is_refused_when_the_configuration_is_made():
    with pytest.raises(ValueError, match="seed="):
        tp.TrainConfig(seed=10**19)


def test_sparse_gradients_can_be_measured():
    model = nn.Embedding(10, 4, sparse=True)

    def step():
        with tp.measure(model):
            model(torch.tensor([1, 2])).sum().backward()

    assert memory_of(logged(step))["backward"]["gradients"] > 0


def test_a_model_without_parameters_is_measured_or_refused_in_words():
    def step():
        with tp.measure(nn.ReLU()):
            pass

    try:
        logged(step)
    except ValueError as refused:
        assert "parameter" in str(refused)


def nested():
    model, optimizer = build(CONFIG, torch.device("cpu"), init_device_mesh("cpu", (1,)))
    with tp.measure(model, optimizer, step=0), tp.measure(model, optimizer, step=1):
        model(fixed_batches(1)[0][0]).sum().backward()


def test_a_nested_measurement_leaves_the_outer_one_its_activations():
    memory = tp.launch(nested, world_size=1).memory
    saved = memory[(memory["kind"] == "activations") & (memory["moment"] == "forward")].set_index("step")["bytes"]
    assert saved[0] == saved[1] > 0


def two_steps():
    model, optimizer = build(CONFIG, torch.device("cpu"), init_device_mesh("cpu", (1,)))
    for step in range(2):
        with tp.measure(model, optimizer, step=step):
            model(fixed_batches(1)[0][0]).sum().backward()


def test_two_measured_steps_state_each_shard_once():
    shards = tp.launch(two_steps, world_size=1).shards
    assert not shards.duplicated(["rank", "parameter"]).any()


def test_fit_trains_a_dense_model_outside_a_rank():
    model, optimizer = build(CONFIG, torch.device("cpu"), None)
    assert fit(CONFIG, model, optimizer, endless_batches(CONFIG)) > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_each_allocator_number_is_recorded_once():
    memory = tp.launch(tp.train, CONFIG, world_size=1, device="cuda").memory  # log_every=1: step 1 is logged, measured
    assert not memory.duplicated(["rank", "step", "moment", "kind"]).any()


def closure_step():
    """LBFGS and others call forward and backward inside `optimizer.step(closure)`."""
    model = nn.Linear(4, 4)

    class Reducing(torch.optim.SGD):
        def step(self, closure=None):
            with torch.enable_grad():
                closure()
            for group in self.param_groups:
                for p in group["params"]:
                    torch.distributed.all_reduce(p.grad)
                    p.data.sub_(p.grad)

    optimizer = Reducing(model.parameters(), lr=1.0)

    def closure():
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        return loss

    with tp.measure(model, optimizer):
        optimizer.step(closure)


def test_after_a_closure_it_is_still_the_optimizer():
    comm = tp.launch(closure_step, world_size=2).comm
    assert set(comm["phase"]) == {"optimizer"}


def start_method():
    import multiprocessing

    return multiprocessing.get_start_method()


def test_a_rank_starts_its_own_processes_as_any_python_does():
    """In a rank it is forkserver, so that each DataLoader worker imports torch: about 2 s a worker and epoch."""
    assert tp.launch(start_method, world_size=1).values == [start_method()]


def data_parallel():
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    model(torch.ones(3, 4)).sum().backward()


def test_data_parallel_crashes_torch_under_its_checks_and_the_message_says_so():
    # torch 2.13: one process with DETAIL checks and DistributedDataParallel ends by SIGSEGV too.
    with pytest.raises(tp.RankFailed, match="SIGSEGV.*try check=False"):
        tp.launch(data_parallel, world_size=2)
    tp.launch(data_parallel, world_size=2, check=False)
