"""How long one training step takes: products at a rate, memory traffic at another, collectives by latency and size.

Nothing overlaps: the three are added. What arithmetic between the products reads and writes is counted by what autograd
keeps (Korthikanti et al. 2022, section 4.1, lists it): each of those bytes is written and read once in the forward, and
read once in the backward, where a gradient of its size is written and read. That is 2 and 3 times the kept bytes. It is
this project's own rule, held against table 4 of that paper.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from tp_teach.model.config import TrainConfig
from tp_teach.predict import decoder, toy
from tp_teach.predict.activations import Activations
from tp_teach.predict.data_parallel import weave
from tp_teach.predict.flops import flops
from tp_teach.predict.planner_machines import Machine
from tp_teach.predict.recipes import Recipe
from tp_teach.tables import wire_bytes

FORWARD, BACKWARD = 2, 3
"""Times that the kept bytes cross the memory's bus."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step by cause, and what one rank computes (operations) and sends (bytes, as a ring).

    `layers` are the products of the layers' linears, `other_products` attention and head; `traffic` is memory traffic
    of the arithmetic between them, `update` that of the optimizer, `python` what does not depend on any size. `latency`
    and `transfer` are the tensor-parallel collectives, `data_parallel` those of the other dimension.
    """

    flops: int
    wire_bytes: int
    layers: float
    other_products: float
    traffic: float
    update: float
    python: float
    latency: float
    transfer: float
    data_parallel: float

    @property
    def compute(self) -> float:
        """All but communication."""
        return self.layers + self.other_products + self.traffic + self.update + self.python

    @property
    def communication(self) -> float:
        """All collectives."""
        return self.latency + self.transfer + self.data_parallel

    @property
    def total(self) -> float:
        """The step."""
        return self.compute + self.communication


def step_time(config: TrainConfig, ranks: int, machine: Machine, recipe: Recipe, held: int) -> StepTime:
    """One step of a configuration on `ranks` tensor-parallel ranks, each of which holds `held` parameters."""
    layers = other = 0.0
    work = 0
    for row in flops(config, ranks * config.data_parallel):
        products = 2 if row["phase"] == "backward" else 1
        seconds = row["flops"] / machine.rate(row["flops"] / config.accumulate / products)
        work += row["flops"]
        # A linear's product goes with the square of the width; the head's and the attention's with the width.
        if row["module"] == "head" or row["module"].endswith(".attn"):
            other += seconds
        else:
            layers += seconds
    kept = kept_bytes(replace(config, checkpointing=False), ranks)
    crossings = FORWARD + BACKWARD + (FORWARD if config.checkpointing else 0)
    steps = config.accumulate
    sent, latency, transfer, data_parallel = _communication(config, ranks, machine)
    return StepTime(
        work,
        steps * sent,
        layers,
        other,
        traffic=steps * crossings * kept / machine.memory_speed,
        update=held * update_bytes(recipe) / (machine.update_speed or machine.memory_speed),
        python=machine.step_seconds + steps * config.num_layers * machine.layer_seconds,
        latency=steps * latency,
        transfer=steps * transfer,
        data_parallel=steps * data_parallel,
    )


def update_bytes(recipe: Recipe) -> int:
    """Bytes a parameter that AdamW reads and writes: gradient read, master and moments both, weights written.

    Weights without a master copy are read as well.
    """
    weights = recipe.weights if recipe.master else 2 * recipe.weights
    return recipe.gradients + 2 * (recipe.master + recipe.moments) + weights


def kept_bytes(config: TrainConfig, ranks: int) -> int:
    """Bytes that autograd keeps of one micro-batch on one rank."""
    return toy.activations(config, ranks) if config.model == "toy" else Activations(config, ranks).total


def break_even_width(config: TrainConfig, one: StepTime, cut: StepTime) -> float | None:
    """The d_model at which a step on several ranks (`cut`) takes as long as on one (`one`).

    The layers' products and the update go with the square of the width, other products, traffic and transfer with the
    width, latency with nothing; layers, heads, tokens and hidden_dim / d_model stay as they are. With x the width in
    units of this one, A x^2 + B x = C: what the cut saves equals what it costs. None where no width is wide enough.
    """
    square = one.layers + one.update - cut.layers - cut.update
    linear = one.other_products + one.traffic - cut.other_products - cut.traffic - cut.transfer
    if square <= 0:
        return None
    root = (linear**2 + 4 * square * cut.latency) ** 0.5
    return config.d_model * (root - linear) / (2 * square)


def _communication(config: TrainConfig, ranks: int, machine: Machine) -> tuple[int, float, float, float]:
    """Of one micro-batch: bytes sent, latency and transfer of the tensor-parallel calls, seconds of the others."""
    model = toy if config.model == "toy" else decoder
    calls = Counter(
        (call.op, call.payload_bytes, call.over) for call in weave(config, ranks, model.calls(config, ranks))
    )
    groups = {"tp": (ranks, machine.joins(ranks))}
    if config.data_parallel > 1:
        groups["dp"] = config.data_parallel, machine.joins(ranks * config.data_parallel)
    sent, latency, transfer, data_parallel = 0, 0.0, 0.0, 0.0
    for (op, payload, over), times in calls.items():
        size, link = groups[over]
        start = link.latency(op, size)
        whole = link.seconds(op, payload, size)
        sent += times * wire_bytes(op, payload, size)
        if over == "tp":
            latency, transfer = latency + times * start, transfer + times * (whole - start)
        else:
            data_parallel += times * whole
    return sent, latency, transfer, data_parallel
