"""Exercises of notebook 05, DTensor: say where, not how."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from tp_teach.launch import device, launch
from tp_teach.lesson.check import Solved
from tp_teach.measure import measure, parity, verify
from tp_teach.run import Run

WIDTH, HIDDEN, BATCH, TOKENS = 8, 16, 2, 4
LEAST = 2
"""Collectives of the cheapest plan."""


class MLP(nn.Module):
    """fc2(gelu(fc1(x)))."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def five_plans(answer: tuple[dict, dict]) -> str | None:
    """Tell for each plan, before it runs on two ranks, how many collectives it issues forward and backward."""
    if not (isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(part, dict) for part in answer)):
        return "the answer is a pair: the plans, and what you say about each"
    plans, told = answer
    if set(told) != set(plans):
        return f"say one pair for each of the plans {', '.join(plans)}"
    if all(pair is None for pair in told.values()):
        return "there is no answer so far; fill in my_calls"
    for name, pair in told.items():
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(n, int) for n in pair)):
            return f"for plan {name} write two whole numbers, (forward, backward), and not {pair!r}"
    return judge_calls(told, list(plans), launch(run_plans, plans, world_size=2, timeout=20, check=False))


def judge_calls(told: dict[str, tuple[int, int]], plans: list[str], run: Run) -> str | None:
    """What is wrong with the counts that were told, beside those of a run of the plans."""
    for name, pair in told.items():
        calls = run.comm[(run.comm["rank"] == 0) & (run.comm["step"] == plans.index(name))]
        for phase, count in zip(("forward", "backward"), pair, strict=True):
            there = int((calls["phase"] == phase).sum())
            if there != count:
                few = "more" if there > count else "fewer"
                return f"plan {name} issues {few} than {count} {phase}: {_advice(phase, few)}"
    return None


def _advice(phase: str, few: str) -> str:
    if phase == "forward":
        return "go through the placements, and count where the next module wants another one than there is"
    if few == "more":
        return (
            "each module whose input is whole, and whose work is a part, gives a gradient that is a part or a summand"
        )
    return "what a forward gives away without a collective comes back with one, but a sum that is there stays there"


def run_plans(plans: dict[str, dict]) -> None:
    """Measure one step of each plan as its own step."""
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    for number, plan in enumerate(plans.values()):
        block = (SwiGLU() if "gate" in plan else MLP()).to(device())
        tokens_cut = isinstance(plan.get("fc1"), ColwiseParallel) and plan["fc1"].input_layouts == (Shard(1),)
        x = torch.ones(BATCH, TOKENS // (2 if tokens_cut else 1), WIDTH, device=device(), requires_grad=True)
        parallelize_module(block, mesh, plan)
        with measure(block, step=number):
            block(x).sum().backward()


def cheapest_plan(answer: dict) -> str | None:
    """Cut a SwiGLU block with every matrix cut, results that are right, and as few collectives as possible."""
    if not isinstance(answer, dict):
        return "a plan is a dictionary from module names to styles"
    names = {"mlp", "mlp.gate", "mlp.up", "mlp.down"}
    if unknown := [key for key in answer if key not in names]:
        return f"{unknown[0]!r} is no module of this model, and torch would only warn; the names are {sorted(names)}"
    run = launch(run_swiglu, answer, world_size=2, timeout=20)
    return _judge_cut(run) or _judge_cost(run)


def _judge_cut(run: Run) -> str | None:
    rows = run.shards[run.shards["rank"] == 0].set_index("parameter")
    for linear in ("gate", "up", "down"):
        name = f"mlp.{linear}.weight"
        if rows.loc[name, "local_bytes"] == rows.loc[name, "global_bytes"]:
            return f"{name} is whole on every rank; the plan is to cut all three"
    output, *grads = run[0]
    if output.item() > 1e-5:
        return "the output is not the dense block's; which of its summands is still missing, or there twice?"
    if max(grad.item() for grad in grads) > 1e-5:
        return "the output is right, but a gradient is not that of the dense block"
    return None


def _judge_cost(run: Run) -> str:
    rows = run.comm[run.comm["rank"] == 0]
    count, sent = len(rows), int(rows["wire_bytes"].sum())
    least = 2 * BATCH * TOKENS * WIDTH * 4  # two all-reduces of the block's output, over two ranks
    said = f"{count} collectives, {sent} bytes sent by a rank"
    if count <= LEAST and sent <= least:
        return Solved(f"{said}: none can be saved")
    behind = rows[rows["phase"] == "backward"]
    if count == LEAST + 1 and len(behind) == 2:
        return f"right, but {said}; {LEAST} will do: gate and up each reduce the gradient of one input"
    return f"right, but {said}; {LEAST} will do: between gate, up and down nothing has to be gathered"


def run_swiglu(plan: dict) -> list[torch.Tensor]:
    """Largest difference of output and gradients from the dense block: numbers as tensors."""
    torch.manual_seed(0)
    dense = nn.Sequential(OrderedDict(emb=nn.Embedding(16, WIDTH), mlp=SwiGLU())).to(device())
    cut = nn.Sequential(OrderedDict(emb=nn.Embedding(16, WIDTH), mlp=SwiGLU())).to(device())
    cut.load_state_dict(dense.state_dict())
    parallelize_module(cut, init_device_mesh(device().type, (dist.get_world_size(),)), plan)
    tokens = torch.arange(BATCH * TOKENS, device=device()).view(BATCH, TOKENS)
    wanted = dense(tokens)
    wanted.square().sum().backward()
    with measure(cut):
        output = cut(tokens)
        if isinstance(output, DTensor) or output.shape != wanted.shape:
            raise ValueError(f"the block's output should be the whole, plain tensor of shape {tuple(wanted.shape)}")
        output.square().sum().backward()
    pairs = [(output, wanted)]
    pairs += [(p.grad, q.grad) for p, q in zip(cut.parameters(), dense.parameters(), strict=True)]
    return [torch.tensor(float(parity(a.detach(), b.detach())["max_rel"].iloc[0])) for a, b in pairs]


def right_order(answer: Callable[[], tuple]) -> str | None:
    """Build a cut model and an optimizer that moves it."""
    if not callable(answer):
        return "pass the function itself, `build`"
    said = launch(one_move, answer, world_size=2, timeout=20)[0]
    return said or None


def one_move(build: Callable[[], tuple]) -> str:
    """One step of what `build` made; what is wrong with it in words, or nothing."""
    torch.manual_seed(0)
    made: Any = build()
    if not (isinstance(made, tuple) and len(made) == 2):
        return "return two things: model, optimizer"
    model, optimizer = made
    if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        return "return the model first and the optimizer second"
    weights = [model.fc1.weight, model.fc2.weight]
    if not all(isinstance(weight, DTensor) and weight.to_local().numel() < weight.numel() for weight in weights):
        return "a matrix is not cut; keep the call of parallelize_module"
    if not (answer := verify.optimizer(model, optimizer)):
        return f"{answer}. Which line must come first?"
    before = [p.to_local().clone() for p in model.parameters()]
    model(torch.ones(BATCH, WIDTH, device=device())).square().sum().backward()
    optimizer.step()
    still = [
        name for (name, p), old in zip(model.named_parameters(), before, strict=True) if torch.equal(p.to_local(), old)
    ]
    return f"after one step {', '.join(still)} has not moved; is the learning rate above 0?" if still else ""


EXERCISES = {"five-plans": five_plans, "cheapest-plan": cheapest_plan, "right-order": right_order}
