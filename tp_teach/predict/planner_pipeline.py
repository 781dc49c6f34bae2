"""How long an iteration with pipeline stages takes: for the published tables that the planner's time is held against.

The planner itself plans no pipeline. Letters are those of tp_teach.predict.papers.
"""

from __future__ import annotations

from tp_teach.predict.papers import layer_activation_bytes
from tp_teach.predict.planner_machines import Machine
from tp_teach.predict.planner_time import BACKWARD, FORWARD

RECOMPUTED = ("none", "selective", "full")


def layer_seconds(
    L: int, h: int, a: int, s: int, b: int, t: int, machine: Machine, recompute: str, sequence_parallel: bool
) -> tuple[float, float]:
    """Forward and backward of one GPT layer on one of t ranks, in seconds.

    24 b s h^2 (1 + s / 6h) operations forward (Narayanan et al. 2021, appendix) and twice that backward, two
    collectives each; the memory traffic is 2 and 3 times what Korthikanti et al. 2022, table 2, keeps. Recomputing in
    full adds a forward to the backward, selectively the attention's own products, 4 b s^2 h, and its 5 a b s^2 bytes.
    The all-gathers that sequence parallelism repeats in the backward are hidden behind products there (section 4.2.2).
    """
    if recompute not in RECOMPUTED:
        raise ValueError(f"recompute={recompute!r} is not known; use 'none', 'selective' or 'full'")
    products = 24 * b * s * h**2 * (1 + s / (6 * h)) / t
    core, core_kept = 4 * b * s**2 * h / t, 5 * a * s**2 * b / t
    kept = float(layer_activation_bytes("tp_sp" if sequence_parallel else "tp", b, s, h, a, t))
    ops = ("reduce_scatter", "all_gather") if sequence_parallel else ("all_reduce",)
    meet = 2 * sum(machine.joins(t).seconds(op, 2 * b * s * h, t) for op in ops)
    forward = products / machine.rate(products) + FORWARD * kept / machine.memory_speed + meet
    backward = 2 * products / machine.rate(products) + BACKWARD * kept / machine.memory_speed + meet
    if recompute == "full":
        backward += forward
    if recompute == "selective":
        backward += core / machine.rate(core) + FORWARD * core_kept / machine.memory_speed
    return forward, backward


def iteration_seconds(
    L: int,
    h: int,
    a: int,
    V: int,
    s: int,
    B: int,
    b: int,
    t: int,
    p: int,
    m: int,
    machine: Machine,
    recompute: str = "none",
    sequence_parallel: bool = False,
    step_bytes: int = 30,
) -> float:
    """One iteration of a GPT model on t x p GPUs, no data parallelism, in seconds.

    The slowest stage, which holds the head, works B / b micro-batches; filling and draining the pipeline adds
    (p - 1) / m of them (Narayanan et al. 2021, section 2.2). A stage passes each micro-batch on 2 m times, forward and
    backward, 2 b s h / t bytes over the network (section 4.1, scatter and gather). Logits are kept in 2 bytes and
    their log-probabilities in 4. At the end the optimizer moves `step_bytes` for each parameter.
    """
    both = sum(layer_seconds(L, h, a, s, b, t, machine, recompute, sequence_parallel))
    products = 2 * b * s * h * V / t
    logits = (FORWARD + BACKWARD) * (2 * b * s * h + 6 * b * s * V / t)
    head = 3 * products / machine.rate(products) + logits / machine.memory_speed
    passed = 0.0
    if p > 1 and (network := machine.network) is not None:
        passed = 2 * m * (network.hop + 2 * b * s * h / t / network.bus)
    parameters = 12 * L * h**2 / (t * p) + V * h / t
    rounds = B / b + (p - 1) / m
    return rounds * (L / p * both + head + passed) + parameters * step_bytes / machine.memory_speed
