"""Exercises of notebook 06, Is it the same model?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tp_teach.launch import device, launch, ranks
from tp_teach.lesson.check import Solved
from tp_teach.measure import measure, parity
from tp_teach.model.config import TrainConfig
from tp_teach.model.toy import ToyTransformer
from tp_teach.parallel.by_hand import ColumnParallelLinear, RowParallelLinear
from tp_teach.parallel.regions import copy_to_region, reduce_from_region
from tp_teach.run import Run
from tp_teach.tables import record, record_config

CONFIG = TrainConfig.preset(
    "classroom", vocab_size=64, seq_len=4, d_model=24, hidden_dim=48, num_layers=1, num_classes=8
)
STEPS, BATCHES = 40, 16
SUSPECTS = {"A": "right", "B": "early", "C": "pieces", "D": "eps", "E": "decay", "F": "dealt"}
FAULTY = "BDE"
WIDTH, HIDDEN = 8, 16
LEAST = 2
"""Collectives of a cut block, forward and backward."""


class Block(nn.Module):
    """The toy's block cut by hand, right or in one way different."""

    def __init__(self, dense: nn.Module, how: str) -> None:
        super().__init__()
        self.group, self.how, self.ln = dist.group.WORLD, how, dense.ln
        if how == "eps":
            self.ln.eps = 1e-6  # the toy's norm has torch's default, 1e-5
        if how == "dealt":
            _deal(dense, self.group.size())
        self.fc1 = ColumnParallelLinear(dense.fc1, self.group, input_is_prepared=True)
        self.fc2 = RowParallelLinear(dense.fc2, self.group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        early = self.how == "early"
        h = self.ln(copy_to_region(x, self.group)) if early else copy_to_region(self.ln(x), self.group)
        return x + self.fc2(nn.functional.gelu(self.fc1(h)))


def _deal(dense: nn.Module, size: int) -> None:
    """Give the hidden features to the ranks in turn: the same function, summed in another order."""
    order = torch.arange(dense.fc1.out_features).view(-1, size).T.reshape(-1)
    with torch.no_grad():
        dense.fc1.weight.copy_(dense.fc1.weight[order].clone())
        dense.fc2.weight.copy_(dense.fc2.weight[:, order].clone())


Lineup = tuple[dict[str, Run], Run, list[Run]]


def suspects(*dtypes: str) -> dict[str, Lineup]:
    """By dtype: six runs A to F on two ranks, the dense reference, and dense runs that differ by rounding alone.

    Each is what `tp.plot.parity` takes. Some of the six have a bug; `SUSPECTS` says which, so do not look.
    """
    found = {}
    with ranks(world_size=2, check=False, show="none") as these:
        for dtype in dtypes:
            runs = {name: these.launch(train, dtype, how) for name, how in SUSPECTS.items()}
            reference, *rounding = (these.launch(train, dtype, "dense", pieces) for pieces in (1, 2, 4))
            found[dtype] = runs, reference, rounding
    return found


def train(dtype: str, how: str, pieces: int = 1) -> None:
    """Train on this rank, and record the loss. The dense model is trained whole, by each rank for itself."""
    torch.manual_seed(0)
    model = ToyTransformer(CONFIG)
    tokens = torch.randint(CONFIG.vocab_size, (BATCHES, CONFIG.batch_size, CONFIG.seq_len))
    labels = torch.randint(CONFIG.num_classes, (CONFIG.vocab_size,))[tokens[:, :, 0]].to(device())
    tokens = tokens.to(device())
    if how != "dense":
        model.layers = nn.ModuleList(Block(layer, how) for layer in model.layers)
    model.to(device(), getattr(torch, dtype))
    cut = [p for name, p in model.named_parameters() if "fc" in name]
    rest = [p for name, p in model.named_parameters() if "fc" not in name]
    groups = [{"params": cut, "weight_decay": 0.0 if how == "decay" else 0.01}, {"params": rest}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, weight_decay=0.01)
    record_config({"dtype": dtype})
    pieces = 2 if how == "pieces" else pieces
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        batch = zip(tokens[step % BATCHES].chunk(pieces), labels[step % BATCHES].chunk(pieces), strict=True)
        for some, wanted in batch:
            loss = nn.functional.cross_entropy(model(some).double(), wanted) / pieces
            loss.backward()
            total += loss.item()
        optimizer.step()
        if step % 2 == 0:
            record("steps", [{"step": step, "loss": total}])


def six_curves(answer: str) -> str | None:
    """Name the runs of `suspects` that have a bug."""
    if isinstance(answer, list | tuple | set) and all(isinstance(letter, str) for letter in answer):
        answer = "".join(answer)
    if not isinstance(answer, str):
        return 'write the letters as text, such as "AF"'
    named = set(answer.upper()) - set(" ,")
    if unknown := sorted(named - set(SUSPECTS)):
        return f"{unknown[0]} is none of the runs A to F"
    if wrongly := sorted(named - set(FAULTY)):
        return f"{wrongly[0]} only rounds: in float64 its difference is gone. Look where the curves lie there"
    if missing := len(set(FAULTY) - named):
        bugs = "a run" if missing == 1 else f"{missing} runs"
        return f"{bugs} with a bug passed you by: which differences are still there in float64, however small?"
    return None


class DenseBlock(nn.Module):
    """x + fc2(gelu(fc1(ln(x)))), with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.ln, self.fc1, self.fc2 = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(nn.functional.gelu(self.fc1(self.ln(x))))


def mend_the_block(answer: type[nn.Module]) -> str | None:
    """Repair the forward of a cut block, so that output and gradients are the dense block's."""
    if not (isinstance(answer, type) and issubclass(answer, nn.Module)):
        return "pass the class itself, `MyBlock`"
    run = launch(compare_block, answer, world_size=2, timeout=10)
    faults = [set(said) for said in run]
    wrong = set().union(*faults)
    if "output" in wrong:
        return "the output is not the dense block's: what is inside g is added up, so it must be there once in all"
    if "x" in wrong:
        return "the output is right, but the gradient of x is not: each rank knows a part of it, and x + … is no part"
    if wrong & {"ln.weight", "ln.bias"}:
        return "output and x's gradient are right, but the norm's gradients are this rank's part; what sums them?"
    if wrong:
        return f"the gradient of {sorted(wrong)[0]} is not the dense block's"
    calls = run.comm[run.comm["rank"] == 0]
    said = f"{len(calls)} collectives"
    if len(calls) > LEAST:
        return f"right, but {said}; {LEAST} will do: one f and one g, and nothing is summed twice"
    return Solved(f"{said}, as few as possible")


def compare_block(block: type[nn.Module]) -> list[str]:
    """What differs from the dense block in float64: `output`, or the name of a gradient."""
    torch.manual_seed(0)
    dense = DenseBlock().to(device(), torch.float64)
    group = dist.group.WORLD
    mine: Any = DenseBlock().to(device(), torch.float64)
    mine.load_state_dict(dense.state_dict())
    mine = block(mine, group)
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64, device=device())
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))

    def f(x: torch.Tensor) -> torch.Tensor:
        return copy_to_region(x, group)

    def g(x: torch.Tensor) -> torch.Tensor:
        return reduce_from_region(x, group)

    with measure(mine):
        output = mine(ours, f, g)
        output.square().sum().backward()
    wanted = dense(theirs)
    wanted.square().sum().backward()
    rank, size = group.rank(), group.size()
    pairs = {
        "output": (output.detach(), wanted.detach()),
        "x": (ours.grad, theirs.grad),
        "ln.weight": (mine.ln.weight.grad, dense.ln.weight.grad),
        "ln.bias": (mine.ln.bias.grad, dense.ln.bias.grad),
        "w1": (mine.w1.grad, dense.fc1.weight.grad.chunk(size, 0)[rank]),
        "b1": (mine.b1.grad, dense.fc1.bias.grad.chunk(size, 0)[rank]),
        "w2": (mine.w2.grad, dense.fc2.weight.grad.chunk(size, 1)[rank]),
        "bias": (mine.bias.grad, dense.fc2.bias.grad),
    }
    table = parity({name: a for name, (a, _) in pairs.items()}, {name: b for name, (_, b) in pairs.items()})
    return table.loc[~table["close"], "name"].tolist()


EXERCISES: dict[str, Callable[[Any], str | None]] = {"six-curves": six_curves, "mend-the-block": mend_the_block}
