"""Which module a collective is named after, forward and backward."""

import pytest
import torch
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

import tp_teach as tp
from tp_teach.model.toy import MLPBlock
from tp_teach.train.loop import build

CONFIG = tp.TrainConfig(
    vocab_size=11, seq_len=5, d_model=8, hidden_dim=12, num_layers=2, num_classes=3, num_samples=9, batch_size=3
)
FORWARD = [("forward", "layers.0.fc2"), ("forward", "layers.1.fc2")]
BACKWARD = [("backward", "layers.1.fc1"), ("backward", "layers.0.fc1")]


def toy():
    """The toy transformer, cut over all ranks, its optimizer, and one batch."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model, optimizer = build(CONFIG, torch.device("cpu"), mesh)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(11, (3, 5), generator=generator)
    return model, optimizer, tokens


def rows_of_rank_0(fn, *args) -> list[tuple[str, str]]:
    comm = tp.launch(fn, *args, world_size=2).comm
    rows = comm[comm["rank"] == 0]
    assert rows["index"].tolist() == list(range(len(rows)))
    return list(zip(rows["phase"], rows["module"], strict=True))


def micro_batches(how_many: int) -> None:
    model, optimizer, tokens = toy()
    with tp.measure(model, optimizer):
        for _ in range(how_many):
            model(tokens).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("how_many", [1, 3])
def test_a_cut_block_reduces_after_fc2_forward_and_for_fc1_backward(how_many):
    """More than one: gradient accumulation."""
    assert rows_of_rank_0(micro_batches, how_many) == (FORWARD + BACKWARD) * how_many


def two_steps() -> None:
    model, optimizer, tokens = toy()
    for step in (4, 7):
        with tp.measure(model, optimizer, step=step):
            model(tokens).sum().backward()
            optimizer.step()


def test_two_measured_steps_give_the_same_rows_twice():
    run = tp.launch(two_steps, world_size=2)
    columns = [column for column in run.comm.columns if column not in ("step", "seconds")]
    one, two = (run.comm[run.comm["step"] == step][columns].reset_index(drop=True) for step in (4, 7))
    assert len(one) == 2 * 4
    assert one.equals(two)
    assert set(run.comm["step"]) == {4, 7}


class Checkpointed(nn.Module):
    """Computes its blocks again in the backward instead of keeping what they saved."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.inner.token_emb(tokens)
        for layer in self.inner.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.inner.head(self.inner.final_ln(x[:, 0]))


def checkpointed() -> None:
    model, optimizer, tokens = toy()
    model = Checkpointed(model)
    with tp.measure(model, optimizer):
        model(tokens).sum().backward()


def test_a_recomputed_forward_belongs_to_the_backward():
    rows = rows_of_rank_0(checkpointed)
    forward = [(phase, f"inner.{module}") for phase, module in FORWARD]
    assert rows[:2] == forward
    # The last thing in a block is fc2's all-reduce; nothing after it is needed, so torch may stop before it.
    again = [row for row in rows[2:] if row[1].endswith("fc2")]
    assert [row for row in rows[2:] if row not in again] == [(phase, f"inner.{module}") for phase, module in BACKWARD]
    assert again in ([], [("backward", "inner.layers.1.fc2"), ("backward", "inner.layers.0.fc2")])


class Sum(nn.Module):
    """Adds up over the ranks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return differentiable.all_reduce(x)


class Twice(nn.Module):
    """Calls one module two times, and sums the end itself."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), Sum())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return differentiable.all_reduce(self.block(self.block(x)))


def call_twice() -> None:
    model = Twice()
    with tp.measure(model):
        model(torch.ones(2, 4)).sum().backward()


def test_a_module_called_twice_and_a_collective_of_the_model_itself():
    forward = [("forward", "block.1"), ("forward", "block.1"), ("forward", "")]
    backward = [("backward", module) for _, module in reversed(forward)]
    assert rows_of_rank_0(call_twice) == forward + backward


def nested() -> None:
    model, optimizer, tokens = toy()
    with tp.measure(model, optimizer, step=0), tp.measure(model, optimizer, step=1):
        model(tokens).sum().backward()
        optimizer.step()


def test_nested_measurements_see_the_same():
    run = tp.launch(nested, world_size=2)
    columns = ["rank", "index", "phase", "module", "op", "shape", "payload_bytes", "wire_bytes"]
    outer, inner = (run.comm[run.comm["step"] == step][columns].reset_index(drop=True) for step in (0, 1))
    assert list(zip(outer["phase"], outer["module"], strict=True)) == (FORWARD + BACKWARD) * 2
    assert outer.equals(inner)
    kinds = run.memory[run.memory["kind"].isin(["parameters", "gradients", "optimizer"])]
    kinds = kinds[kinds["moment"] != "peak"]
    outer, inner = (kinds[kinds["step"] == step].drop(columns="step").reset_index(drop=True) for step in (0, 1))
    assert outer.equals(inner)


def sequence_parallel() -> None:
    """Two MLP blocks whose stream and norms are cut along the sequence; then clipping and AdamW."""
    model = nn.Sequential(MLPBlock(8, 12), MLPBlock(8, 12))
    plan = {
        "ln": SequenceParallel(),
        "fc1": ColwiseParallel(input_layouts=Shard(1)),
        "fc2": RowwiseParallel(output_layouts=Shard(1)),
    }
    mesh = init_device_mesh("cpu", (2,))
    for block in model:
        parallelize_module(block, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with tp.measure(model, optimizer):
        model(torch.ones(2, 2, 8)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def test_sequence_parallelism_gathers_and_scatters_and_its_norms_are_reduced_in_the_optimizer():
    comm = tp.launch(sequence_parallel, world_size=2).comm
    rows = [(row.phase, row.module, row.op, row.payload_bytes) for row in comm[comm["rank"] == 0].itertuples()]
    whole = 4 * (2 * 4 * 8)  # 2 samples, 2 positions on each of 2 ranks, width 8
    assert rows[:8] == [
        *(row for block in "01" for row in through("forward", f"{block}.fc1", f"{block}.fc2", whole)),
        *(row for block in "10" for row in through("backward", f"{block}.fc2", f"{block}.fc1", whole)),
    ]
    # Gradients of the 4 norm parameters (8 numbers each) are sums that no rank has added up yet: clipping reduces
    # each, and so does AdamW, three times.
    assert rows[8:] == [("other", "", "all_reduce", 32)] * 5 + [("optimizer", "", "all_reduce", 32)] * 12


def through(phase: str, gathers: str, scatters: str, payload: int) -> list[tuple]:
    return [(phase, gathers, "all_gather", payload), (phase, scatters, "reduce_scatter", payload)]
