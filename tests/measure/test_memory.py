"""Bytes by kind at each moment, against sizes worked out by hand; one process is enough."""

import gc

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tp_teach as tp
from tests.measure.alone import KINDS, logged, memory_of
from tp_teach.measure.memory import StorageTracker, allocated_rows, live_tensor_bytes

FLOAT = 4
MOMENTS = {"init", "forward", "backward", "step", "peak"}


class Tied(nn.Module):
    """A language model's end: the table of token vectors is also the last layer's weight."""

    def __init__(self, tie: bool) -> None:
        super().__init__()
        self.emb = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        if tie:
            self.head.weight = self.emb.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.emb(tokens))


def measured(model: nn.Module, given: torch.Tensor, optimizer=None, repeat: int = 1) -> dict[str, dict[str, int]]:
    def step() -> None:
        with tp.measure(model, optimizer):
            for _ in range(repeat):
                model(given).sum().backward()
            if optimizer is not None:
                optimizer.step()

    return memory_of(logged(step))


@pytest.mark.parametrize("tie", [True, False])
def test_tied_weights_count_once(tie):
    model = Tied(tie)
    memory = measured(model, torch.arange(3), torch.optim.AdamW(model.parameters()))
    tensors = 1 if tie else 2
    size = FLOAT * 10 * 4 * tensors
    at_step = memory["step"]
    assert (at_step["parameters"], at_step["gradients"]) == (size, size)
    assert at_step["optimizer"] == 2 * size + FLOAT * tensors  # two moments, and one step counter a tensor


@pytest.mark.parametrize(
    ("make", "numbers_a_parameter", "counters"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0, 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1, 0),
        (lambda p: torch.optim.AdamW(p, foreach=False), 2, 1),
        (lambda p: torch.optim.AdamW(p, foreach=True), 2, 1),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 3, 1),
    ],
    ids=["sgd", "momentum", "adamw", "adamw foreach", "amsgrad"],
)
def test_optimizer_state(make, numbers_a_parameter, counters):
    model = nn.Linear(5, 3)
    memory = measured(model, torch.ones(2, 5), make(model.parameters()))
    size = FLOAT * (5 * 3 + 3)
    assert set(memory) == MOMENTS
    assert [memory[moment]["optimizer"] for moment in ("init", "forward", "backward")] == [0, 0, 0]
    assert memory["step"]["optimizer"] == numbers_a_parameter * size + counters * FLOAT * 2
    assert [memory[moment]["gradients"] for moment in ("init", "forward", "backward", "step")] == [0, 0, size, size]
    assert {moment["parameters"] for moment in memory.values()} == {size}


def test_activations_are_what_autograd_saved_for_the_backward():
    """Linear saves its input, GELU its input: x is the caller's, so h = fc1(x) and gelu(h) are left."""
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2))
    memory = measured(model, torch.ones(3, 4))
    assert memory["forward"]["activations"] == FLOAT * (3 * 6 + 3 * 6)
    assert memory["init"]["activations"] == memory["backward"]["activations"] == 0


def test_a_tensor_saved_twice_or_as_a_view_counts_once():
    class Squares(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = super().forward(x)
            return h * h * h.view(-1).view(h.shape)

    memory = measured(Squares(4, 5, bias=False), torch.ones(3, 4))
    assert memory["forward"]["activations"] == FLOAT * 2 * (3 * 5)  # h, and h*h


def test_the_caller_batch_is_temporary_and_all_adds_up():
    """At the end of the step live: weights, gradients, optimizer state, and what the caller holds: batch and loss."""
    model = nn.Linear(5, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = torch.ones(2, 5)
    held = []

    def step() -> None:
        with tp.measure(model, optimizer):
            held.append(model(batch).sum())
            held[0].backward()
            optimizer.step()

    memory = memory_of(logged(step))
    weights = FLOAT * 5 * 3
    state = [buffer["momentum_buffer"] for buffer in optimizer.state.values()]
    live = [*model.parameters(), *(p.grad for p in model.parameters()), *state, batch, held[0]]
    assert memory["step"] == {
        "parameters": weights,
        "gradients": weights,
        "optimizer": weights,
        "activations": 0,
        "temporary": FLOAT * (2 * 5 + 1),
    }
    assert sum(memory["step"].values()) == sum(tensor.untyped_storage().nbytes() for tensor in live)


@pytest.mark.parametrize("repeat", [2, 3])
def test_gradient_accumulation_keeps_one_gradient(repeat):
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2))
    once, more = measured(model, torch.ones(3, 4)), measured(model, torch.ones(3, 4), repeat=repeat)
    assert more["backward"]["gradients"] == once["backward"]["gradients"] == once["init"]["parameters"]
    assert more["forward"]["activations"] == once["forward"]["activations"]
    assert more["init"]["gradients"] == once["backward"]["gradients"]  # of the step before


class Deep(nn.Module):
    """Four blocks, each saved whole or computed again in the backward."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x


def test_checkpointing_keeps_only_the_blocks_inputs_and_changes_no_gradient():
    torch.manual_seed(0)
    plain, again = Deep(False), Deep(True)
    again.load_state_dict(plain.state_dict())
    x = torch.randn(5, 8)
    memory = {model: measured(model, x) for model in (plain, again)}
    # A block saves h and gelu(h); between blocks its input is saved too, and the first input is the caller's.
    assert memory[plain]["forward"]["activations"] == FLOAT * 5 * (4 * 2 * 32 + 3 * 8)
    assert memory[again]["forward"]["activations"] == FLOAT * 5 * (3 * 8)
    assert sum(memory[again]["peak"].values()) < sum(memory[plain]["peak"].values())
    for a, b in zip(plain.parameters(), again.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


class Bulge(nn.Linear):
    """Makes 10 000 numbers on the way and drops them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = x + torch.ones(10_000).sum() * 0
        return super().forward(x)


def test_the_peak_sees_what_no_moment_sees():
    memory = measured(Bulge(4, 2), torch.ones(3, 4))
    assert memory["forward"]["temporary"] < 1000
    assert memory["peak"]["temporary"] >= FLOAT * 10_000


@pytest.mark.parametrize("model", [Deep(False), Deep(True), Bulge(8, 2), nn.Linear(8, 3)], ids=lambda m: repr(m)[:6])
def test_the_peak_is_no_less_than_any_moment_and_all_kinds_are_stated(model):
    memory = measured(model, torch.ones(2, 8), torch.optim.AdamW(model.parameters()))
    totals = {moment: sum(kinds[kind] for kind in KINDS) for moment, kinds in memory.items()}
    assert set(totals) == MOMENTS
    assert totals["peak"] == max(totals.values())
    assert min(number for kinds in memory.values() for number in kinds.values()) >= 0


def test_buffers_are_counted():
    model = nn.BatchNorm1d(8)
    memory = measured(model, torch.randn(4, 8))
    assert memory["init"]["temporary"] == FLOAT * 2 * 8 + 8  # mean and variance, and an int64 counter


def storage(numbers: int) -> torch.Tensor:
    return torch.empty(numbers, dtype=torch.uint8)


def test_the_ledger_adds_up_through_births_and_deaths():
    ledger, tensors = StorageTracker(), []
    for size in (100, 300, 50):
        tensors.append(storage(size))
        ledger.add([tensors[-1], tensors[-1][5:], tensors[-1].view(-1)])
        assert sum(piece.nbytes for piece in ledger.now()) == sum(len(tensor) for tensor in tensors)
    del tensors[1]
    assert sum(piece.nbytes for piece in ledger.now()) == 150
    ledger.add([storage(200)])  # dies at once
    assert sum(piece.nbytes for piece in ledger.now()) == 150
    assert sum(piece.nbytes for piece in ledger.at_peak()) == 450
    tensors.append(storage(500))
    ledger.add(tensors)
    assert sorted(piece.nbytes for piece in ledger.at_peak()) == [50, 100, 500]


def test_the_ledger_is_not_fooled_by_an_address_used_again():
    ledger = StorageTracker()
    for _ in range(200):
        ledger.add([storage(64)], "activations", born=True)
        assert ledger.now() == []
    assert len(ledger.at_peak()) == 1


def test_a_kind_once_settled_stays():
    ledger, weight, saved, batch = StorageTracker(), storage(1), storage(2), storage(4)
    ledger.add([weight], "parameters")
    ledger.add([saved], born=True)
    ledger.add([weight, saved, batch], "activations")
    ledger.add([saved], "gradients")
    kinds = {piece.nbytes: piece.kind for piece in ledger.now()}
    assert kinds == {1: "parameters", 2: "activations", 4: "temporary"}


def test_live_tensor_bytes_counts_each_storage_once():
    gc.collect()
    before = live_tensor_bytes()
    tensor = storage(12_345)
    views = [tensor[10:], tensor.view(-1, 5), nn.Parameter(tensor, requires_grad=False)]
    assert live_tensor_bytes() - before == 12_345
    del tensor, views
    assert live_tensor_bytes() == before


def test_a_cpu_states_live_bytes_as_allocated_and_nothing_as_reserved():
    rows = allocated_rows(torch.device("cpu"), step=3, moment="step")
    assert [(row["step"], row["moment"], row["kind"]) for row in rows] == [(3, "step", "allocated")]
    assert allocated_rows(torch.device("cpu"), step=3, moment="peak") == []


def test_what_is_measured_does_not_depend_on_when_gloo_drops_a_tensor():
    config = tp.TrainConfig.preset("classroom", num_layers=1, max_steps=2)
    with tp.ranks(world_size=4) as ranks:
        tables = [ranks.launch(tp.train, config).memory for _ in range(8)]
    # Rank 0 also holds the data; the others are alike, in every run.
    rows = pd.concat(table[table["rank"] > 0] for table in tables).query("step == 1 and kind == 'temporary'")
    held = rows.groupby("moment")["bytes"].agg(set)
    assert all(len(found) == 1 for found in held), held
