"""`plan`: what a model needs on a machine, cut this way and that: memory, bytes, operations, seconds, and advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tp_teach.model.config import TrainConfig, published_models
from tp_teach.predict import planner_words
from tp_teach.predict.parameters import count, parameters
from tp_teach.predict.planner_machines import Machine, data, machine
from tp_teach.predict.planner_time import break_even_width, kept_bytes, step_time
from tp_teach.predict.planner_ways import config_of, recipe_of, ways_of
from tp_teach.predict.recipes import Recipe

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Candidate:
    """One way to cut, for one rank and one step. Sizes in bytes, times in seconds, shares from 0 to 1.

    `wire_bytes` is what a rank sends in its model's collectives when each runs as a ring. `tokens_per_second` counts
    one rank's share, so that ways with different numbers of ranks compare. `break_even_width` is the d_model at which
    this many tensor-parallel ranks take as long as one, None for one rank or where there is none.
    """

    tp: int
    sequence_parallel: bool
    data_parallel: int
    ranks: int
    batch_size: int
    seq_len: int
    parameters: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    memory_bytes: int
    fits: bool
    wire_bytes: int
    flops: int
    compute_seconds: float
    communication_seconds: float
    step_seconds: float
    communication_share: float
    tokens_per_second: float
    break_even_width: float | None


@dataclass(frozen=True)
class Plan:
    """What `tp.plan` found. `table` has one row a candidate; printed, it says the same in words.

    `advice` is one sentence with its reason, `notes` what else is worth knowing, `unknown` what the numbers leave out.
    `compute_bound_up_to` is the scaling book's bound: tensor-parallel ranks beyond which an MLP waits for the cable, at
    the vendor's peaks (None for a machine that was measured).
    """

    model: str
    config: TrainConfig
    machine: Machine
    recipe: Recipe
    candidates: tuple[Candidate, ...]
    compute_bound_up_to: float | None
    advice: str
    notes: tuple[str, ...]
    unknown: str

    @property
    def table(self) -> pd.DataFrame:
        """One row a candidate, columns as the fields of `Candidate`."""
        import pandas as pd

        frame = pd.DataFrame([asdict(candidate) for candidate in self.candidates])
        return frame.astype({"break_even_width": "float64"})

    def data(self) -> dict[str, Any]:
        """All of it as plain data, for JSON."""
        return {
            "model": self.model,
            "parameters": count(self.config),
            "hardware": self.machine.name,
            "dtype": self.machine.dtype,
            "memory_of_a_rank_bytes": int(self.machine.memory),
            "bytes_per_parameter": self.recipe.total,
            "bytes_per_parameter_assume": self.recipe.assumes,
            "compute_bound_up_to_tp": self.compute_bound_up_to,
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "advice": self.advice,
            "notes": list(self.notes),
            "not_known": self.unknown,
            "sources": list(self.machine.sources),
        }

    def __repr__(self) -> str:
        return planner_words.text(self)

    __str__ = __repr__


def plan(
    model: str | TrainConfig,
    hardware: str | Machine,
    *,
    tp: int | Sequence[int] | None = None,
    bytes_per_parameter: int | None = None,
    **options: Any,
) -> Plan:
    """What a model needs on a machine for one training step: memory by kind, bytes, operations and seconds a rank.

    `model` is a published name such as "llama3-70b", a preset, or a TrainConfig. `hardware` is "a100", "h100", "h200",
    "b200", "a100-pcie", or what `tp.calibrate` returns. `tp` is one number of tensor-parallel ranks or several; left
    out, all powers of two that a machine holds and the model divides by. `bytes_per_parameter` (10, 12, 16, 18 or 20)
    is what weights, gradients and optimizer take together: 18 by default, and 16 (all in float32) on a float32 machine.
    Further options are fields of TrainConfig, one value or a list of them: sequence_parallel, vocab_parallel,
    loss_parallel, data_parallel, data_parallel_kind, batch_size, seq_len, accumulate, checkpointing. Every combination
    is one candidate. A batch_size that is left out grows with data_parallel and accumulate.

    Sizes are those of `tp.predict`, with bytes a parameter by the recipe; the vocabulary of a published model is cut
    too where it divides. Seconds: products at a measured rate, memory traffic and collectives (alpha and beta) after
    each other, as tp_teach.predict.planner_time says. Bandwidths, rates and sources are in machines.json.

    Raises ValueError for an unknown name, with the known ones; for another option; for a way to cut that
    does not divide; TypeError for a model or hardware of another type.
    """
    config, name = config_of(model)
    where = hardware if isinstance(hardware, Machine) else machine(_named(hardware))
    recipe = recipe_of(bytes_per_parameter, where.dtype)
    config = replace(config, dtype=where.dtype)
    ways = dict.fromkeys(ways_of(config, where, tp, options, cut_vocabulary=name in published_models()))
    config = next(iter(ways))[0]
    candidates = tuple(_candidate(way, ranks, where, recipe) for way, ranks in ways)
    bound = None if where.peak is None else config.hidden_dim * where.cable / where.peak
    notes = [row["says"] + f" Source: {row['source']}." for row in data()["vendor_recipes"] if _about(row, name, where)]
    advice = planner_words.advice(candidates, where, recipe, config)
    return Plan(name, config, where, recipe, candidates, bound, advice, tuple(notes), planner_words.UNKNOWN)


def _named(hardware: Any) -> str:
    if not isinstance(hardware, str):
        raise TypeError(f"hardware={hardware!r} is no machine; use a name such as 'h100', or what tp.calibrate returns")
    return hardware


def _candidate(config: TrainConfig, ranks: int, where: Machine, recipe: Recipe) -> Candidate:
    held = sum(parameter.held(config, ranks) for parameter in parameters(config).values())
    kept = kept_bytes(config, ranks)
    sizes = [held * each for each in (recipe.weights, recipe.gradients, recipe.master + recipe.moments)]
    time = step_time(config, ranks, where, recipe, held)
    world = ranks * config.data_parallel
    width = None
    if ranks > 1:
        alone = replace(config, sequence_parallel=False, vocab_parallel=False, loss_parallel=False)
        width = break_even_width(config, step_time(alone, 1, where, recipe, held * ranks), time)
    return Candidate(
        ranks,
        config.sequence_parallel,
        config.data_parallel,
        world,
        config.batch_size,
        config.seq_len,
        held,
        *sizes,
        activations_bytes=kept,
        memory_bytes=sum(sizes) + kept,
        fits=sum(sizes) + kept <= where.memory,
        wire_bytes=time.wire_bytes,
        flops=time.flops,
        compute_seconds=time.compute,
        communication_seconds=time.communication,
        step_seconds=time.total,
        communication_share=time.communication / time.total,
        tokens_per_second=config.batch_size * config.seq_len / time.total / world,
        break_even_width=width,
    )


def _about(row: dict[str, str], model: str, where: Machine) -> bool:
    return row["model"] == model and data()["machines"][row["hardware"]]["gpu"] == where.name
