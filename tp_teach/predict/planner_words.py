"""A plan in words: its table, one sentence of advice, and what the numbers leave out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING

from tp_teach.model.config import TrainConfig
from tp_teach.predict.parameters import count
from tp_teach.predict.planner_machines import Machine
from tp_teach.predict.recipes import Recipe

if TYPE_CHECKING:
    from tp_teach.predict.planner import Candidate, Plan

UNKNOWN = (
    "Not known here: communication that overlaps with compute, kernels better or worse than the rate assumed, "
    "temporary memory and fragmentation, congestion of the fabric, fp8, pipeline and context parallelism."
)
GIB = 2**30
ACROSS = 6  # candidates side by side: 100 characters
ROWS: tuple[tuple[str, Callable[[Candidate], str]], ...] = (
    ("tensor-parallel ranks (TP)", lambda c: str(c.tp)),
    ("sequence parallelism", lambda c: "yes" if c.sequence_parallel else "no"),
    ("data-parallel groups (DP)", lambda c: str(c.data_parallel)),
    ("batch x sequence", lambda c: f"{c.batch_size} x {c.seq_len}"),
    ("parameters", lambda c: f"{c.parameters:,}"),
    ("weights", lambda c: size(c.parameters_bytes)),
    ("gradients", lambda c: size(c.gradients_bytes)),
    ("optimizer", lambda c: size(c.optimizer_bytes)),
    ("activations", lambda c: size(c.activations_bytes)),
    ("memory together", lambda c: size(c.memory_bytes)),
    ("fits", lambda c: "yes" if c.fits else "no"),
    ("sent in collectives", lambda c: size(c.wire_bytes)),
    ("operations", lambda c: f"{c.flops:.3e}"),
    ("compute", lambda c: seconds(c.compute_seconds)),
    ("communication", lambda c: seconds(c.communication_seconds)),
    ("step", lambda c: seconds(c.step_seconds)),
    ("share of communication", lambda c: f"{c.communication_share:.0%}"),
    ("tokens a second", lambda c: f"{c.tokens_per_second:,.0f}"),
    ("break-even width (d_model)", lambda c: "-" if c.break_even_width is None else f"{c.break_even_width:,.0f}"),
)


def text(plan: Plan) -> str:
    """The whole answer, line by line."""
    where, recipe = plan.machine, plan.recipe
    held = f"{size(int(where.memory))} ({where.memory / 1e9:.3g} GB) a rank"
    lines = [
        f"{plan.model}: {count(plan.config):,} parameters, on {where.name}, {held}, {where.node} ranks a machine.",
        f"{recipe.total} bytes a parameter: {recipe.assumes} ({recipe.source}). One step, one rank, {where.dtype}:",
        "",
        *_table(plan.candidates),
        "",
        plan.advice,
        *plan.notes,
    ]
    if plan.compute_bound_up_to is not None:
        lines.append(
            f"At the vendor's peaks an MLP of hidden_dim {plan.config.hidden_dim} computes longer than it sends up to "
            f"TP={plan.compute_bound_up_to:.1f} (scaling book, training chapter)."
        )
    return "\n".join([*lines, UNKNOWN, "Numbers:", *(f"- {source}" for source in where.sources)])


def advice(candidates: Sequence[Candidate], where: Machine, recipe: Recipe, config: TrainConfig) -> str:
    """One sentence: which candidate, and why."""
    fitting = [candidate for candidate in candidates if candidate.fits]
    if not fitting:
        return _nothing_fits(candidates, where, recipe, config)
    best = max(fitting, key=lambda candidate: candidate.tokens_per_second)
    if len(candidates) == 1:
        return (
            f"{_way(best)} fits, with {size(int(where.memory) - best.memory_bytes)} to spare, and spends "
            f"{best.communication_share:.0%} of its step on communication."
        )
    narrowest = all(best.tp <= candidate.tp for candidate in fitting)
    why = "the narrowest cut that fits, and " if narrowest and best.tp > 1 else ""
    why += f"each rank trains most tokens a second ({best.tokens_per_second:,.0f})"
    wider = [candidate for candidate in fitting if candidate.tp > best.tp]
    if not wider:
        return f"Use {_way(best)}: {why}, with {best.communication_share:.0%} of the step spent on communication."
    quick = min(wider, key=lambda candidate: candidate.step_seconds)
    change = "shorten" if quick.step_seconds < best.step_seconds else "lengthen"
    return (
        f"Use {_way(best)}: {why}; {_way(quick)} would {change} the step from {seconds(best.step_seconds)} to "
        f"{seconds(quick.step_seconds)}, of which {quick.communication_share:.0%} is communication."
    )


def _nothing_fits(candidates: Sequence[Candidate], where: Machine, recipe: Recipe, config: TrainConfig) -> str:
    least = min(candidates, key=lambda candidate: candidate.memory_bytes)
    state = least.memory_bytes - least.activations_bytes
    has = f"a rank has {size(int(where.memory))}"
    if state > where.memory:
        alone = ceil(count(config) * recipe.total / where.memory)
        return (
            f"Nothing fits: {has}, and {_way(least)} needs {size(state)} for weights, gradients and optimizer alone; "
            f"{recipe.total} bytes for each of {count(config):,} parameters fill {alone} such ranks, so cut further, "
            "with pipeline stages or fsdp over data-parallel ranks."
        )
    return (
        f"Nothing fits: {has}, and {_way(least)} needs {size(least.memory_bytes)}, of which {size(state)} are weights, "
        "gradients and optimizer; the rest are activations, so use checkpointing, sequence parallelism or fewer tokens."
    )


def _way(candidate: Candidate) -> str:
    words = f"TP={candidate.tp}"
    words += " with sequence parallelism" if candidate.sequence_parallel else ""
    return words + (f" and DP={candidate.data_parallel}" if candidate.data_parallel > 1 else "")


def _table(candidates: Sequence[Candidate]) -> list[str]:
    """One column a candidate, a few of them side by side."""
    lines: list[str] = []
    for first in range(0, len(candidates), ACROSS):
        cells = [[name, *map(show, candidates[first : first + ACROSS])] for name, show in ROWS]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += [""] if lines else []
        for name, *values in cells:
            shown = [value.rjust(width) for value, width in zip(values, widths[1:], strict=True)]
            lines.append("  ".join([name.ljust(widths[0]), *shown]))
    return lines


def size(count: int) -> str:
    """Bytes in a binary unit: `147.9 GiB`."""
    for unit, each in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= each:
            return f"{count / each:.1f} {unit}"
    return f"{count} B"


def seconds(value: float) -> str:
    """Seconds with three digits: `1.23 s`, `12.3 ms`."""
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} us"
