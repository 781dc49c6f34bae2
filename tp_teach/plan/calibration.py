"""`calibrate`: latency, bandwidth and rates of the reader's own machine, measured on real ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import psutil
import torch
import torch.distributed as dist
from torch import nn

from tp_teach.launch import device as this_device
from tp_teach.launch import ranks
from tp_teach.model.config import TrainConfig
from tp_teach.predict.planner_machines import Link, Machine
from tp_teach.predict.planner_time import BACKWARD, FORWARD, update_bytes
from tp_teach.predict.recipes import RECIPES
from tp_teach.tables import wire_bytes
from tp_teach.train.build import build, make_mesh
from tp_teach.train.loop import forward_backward

TOKENS, WIDTHS = 1024, (64, 128, 256, 512, 1024)
"""Products of TOKENS x width and width x width matrices are timed: 8 million to 2 billion operations."""
SMALL, LARGE = 256, 2**22
"""Numbers in the all-reduces that are timed, 4 bytes each: 1 KiB tells the latency, 16 MiB the bandwidth."""
FIELDS = 8
"""d_model and hidden_dim of each rank in the model so small that its time is Python's."""
ROUNDS, LEAST = 5, 0.02
"""Repetitions of each measurement, of which the median counts, and the seconds that one lasts at least."""


def calibrate(world_size: int = 2, device: str | None = None) -> Machine:
    """Measure this machine with `world_size` ranks at work at once: what `tp.plan` takes for its `hardware`.

    A few seconds: products of several sizes, layer norm, GELU and AdamW as a training step runs them, all-reduces of
    1 KiB and 16 MiB, and what a layer and a step of the toy model cost in Python when its arrays are tiny. All are
    float32. Each is measured in five rounds, a round takes as long as its slowest rank, and the middle one counts.
    `device` is that of `tp.launch`. A plan for another number of ranks takes the same rates, so calibrate with as many
    as you plan for, while the machine does nothing else: other work makes it look slower.

    Raises what `tp.launch` raises, and ValueError for fewer than 2 ranks, which have nobody to talk to.
    """
    if isinstance(world_size, int) and world_size == 1:
        raise ValueError("world_size=1 has no link to measure; use 2 or more")
    with ranks(world_size=world_size, device=device, check=False, show="none") as these:
        run = these.launch(_measure)
    return _machine(run.values, run.world["reason"])


def _machine(answers: list[dict[str, list[float]]], reason: str) -> Machine:
    """What the ranks measured, as a machine: a round takes as long as its slowest rank, and the middle round counts."""
    world_size = len(answers)
    rounds = {name: zip(*(answer[name] for answer in answers), strict=True) for name in answers[0]}
    slowest = {name: statistics.median(map(max, each)) for name, each in rounds.items()}
    products = tuple((2.0 * TOKENS * width**2, 2.0 * TOKENS * width**2 / slowest[f"{width}"]) for width in WIDTHS)
    start = slowest["small"]
    sent = wire_bytes("all_reduce", 4 * LARGE, world_size)
    # Each layer of the tiny model makes two all-reduces, which the plan counts by themselves.
    layer = max(0.0, slowest["five layers"] - slowest["one layer"]) / 4
    return Machine(
        name=f"this machine, {reason}",
        dtype="float32",
        matmul=products,
        memory=slowest["memory"],
        memory_speed=slowest["kept"] / slowest["between"],
        node=world_size,
        link=Link(start, 0.0, sent / max(slowest["large"] - start, 1e-9)),
        update_speed=slowest["updated"] / slowest["update"],
        layer_seconds=max(0.0, layer - 2 * start),
        step_seconds=max(0.0, slowest["one layer"] - layer),
        sources=(f"measured here by tp.calibrate({world_size}): {reason}",),
    )


def _measure() -> dict[str, list[float]]:
    """Seconds of each piece of work on one rank, round by round, all ranks at it together; and what fixes its size."""
    device = this_device()
    found: dict[str, list[float]] = {"memory": [_memory(device)]}
    for width in WIDTHS:
        found[f"{width}"] = _product(width, device)
    found["kept"], found["between"] = _between_products(device)
    found["updated"], found["update"] = _update(device)
    for name, numbers in (("small", SMALL), ("large", LARGE)):
        array = torch.ones(numbers, device=device)
        found[name] = _seconds(lambda a=array: dist.all_reduce(a), device, together=True)
    for name, layers in (("one layer", 1), ("five layers", 5)):
        found[name] = _tiny_step(layers, device)
    return found


def _product(width: int, device: torch.device) -> list[float]:
    """Seconds of one product, in the mean over the three of a linear layer: forward and the two of its backward."""
    tokens = torch.randn(TOKENS, width, device=device, requires_grad=True)
    weight = torch.randn(width, width, device=device, requires_grad=True)
    ones = torch.ones(TOKENS, width, device=device)

    def three() -> None:
        tokens.grad = weight.grad = None
        nn.functional.linear(tokens, weight).backward(ones)

    return [seconds / 3 for seconds in _seconds(three, device)]


def _between_products(device: torch.device) -> tuple[list[float], list[float]]:
    """Bytes that cross the memory's bus by the planner's own rule, and the seconds that this takes.

    Layer norm of whole tokens and GELU of this rank's part of the hidden ones, forward and backward, as in an MLP
    block: inputs and outputs of both are kept for the backward, 4 bytes a number.
    """
    width = WIDTHS[-2]
    norm = nn.LayerNorm(width, device=device)
    tokens = torch.randn(TOKENS, width, device=device, requires_grad=True)
    hidden = torch.randn(TOKENS, 4 * width // dist.get_world_size(), device=device, requires_grad=True)
    ones = [torch.ones_like(array) for array in (tokens, hidden)]

    def both() -> None:
        tokens.grad = hidden.grad = norm.weight.grad = norm.bias.grad = None
        torch.autograd.backward([tokens + norm(tokens), nn.functional.gelu(hidden)], ones)

    kept = 2 * 4 * (tokens.numel() + hidden.numel())
    return [float((FORWARD + BACKWARD) * kept)], _seconds(both, device)


def _update(device: torch.device) -> tuple[list[float], list[float]]:
    """Bytes that AdamW reads and writes for one array by the planner's own rule, and the seconds that this takes."""
    array = torch.randn(WIDTHS[-1], WIDTHS[-1], device=device, requires_grad=True)
    array.grad = torch.ones_like(array)
    optimizer = torch.optim.AdamW([array], foreach=False)  # as tp.train makes it for the toy
    return [float(array.numel() * update_bytes(RECIPES["float32"]))], _seconds(optimizer.step, device)


def _tiny_step(layers: int, device: torch.device) -> list[float]:
    """One training step of the toy model with arrays so small that only Python, torch's dispatch and latency count."""
    size = FIELDS * dist.get_world_size()
    config = TrainConfig.preset(
        "classroom", d_model=size, hidden_dim=size, num_layers=layers, batch_size=2, seq_len=2, vocab_size=size
    )
    model, optimizer = build(config, device, make_mesh(config, device))
    tokens = torch.zeros(2, 2, dtype=torch.int64, device=device)
    labels = torch.zeros(2, dtype=torch.int64, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        forward_backward(config, model, tokens, labels)
        optimizer.step()

    return _seconds(step, device, together=True)


def _seconds(call: Callable[[], object], device: torch.device, together: bool = False) -> list[float]:
    """Seconds of one call, in each round. Calls that talk (`together`) are repeated equally often on every rank."""

    def several(times: int) -> float:
        dist.barrier()
        began = time.perf_counter()
        for _ in range(times):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - began) / times

    several(1)  # the first call allocates
    once = torch.tensor([several(1)], dtype=torch.float64, device=device)
    if together:
        dist.all_reduce(once, dist.ReduceOp.MIN)
    times = max(1, min(200, int(LEAST / once.item())))
    return [several(times) for _ in range(ROUNDS)]


def _memory(device: torch.device) -> float:
    """Bytes of a GPU, or this rank's share of the machine's."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(psutil.virtual_memory().total // dist.get_world_size())
