"""What was asked of the planner: which model, which recipe, and every way to cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from tp_teach.model.config import PRESETS, TrainConfig, published_models
from tp_teach.predict.planner_machines import Machine
from tp_teach.predict.recipes import RECIPES, Recipe

BY_TOTAL = {
    recipe.total: recipe
    for recipe in (RECIPES[n] for n in ("no gradients", "bf16, float32 moments", "mixed", "megatron", "both gradients"))
}
"""Bytes a parameter that may be asked for on a bf16 machine, with what each assumes."""
OPTIONS = ("sequence_parallel", "vocab_parallel", "loss_parallel", "data_parallel", "data_parallel_kind")
OPTIONS += ("batch_size", "seq_len", "accumulate", "checkpointing")
"""Fields of TrainConfig that say how a model is cut and trained."""
MIXTURES = ("mixtral-8x7b-v0.1",)


def config_of(model: Any) -> tuple[TrainConfig, str]:
    """The configuration and its name. Raises ValueError for an unknown one, with the known ones."""
    if isinstance(model, TrainConfig):
        return model, f"{model.model} of {model.num_layers} layers, d_model {model.d_model}"
    if not isinstance(model, str):
        raise TypeError(f"model={model!r} is neither a name nor a TrainConfig; use a name such as 'llama3-70b'")
    name = model.lower()
    if name in MIXTURES:
        raise ValueError(
            f"model={model!r} is a mixture of experts, which is counted here but not planned: its experts are cut by "
            "expert parallelism; use a dense model such as 'mistral-7b-v0.1'"
        )
    known = (*published_models(), *PRESETS)
    if name not in known:
        raise ValueError(f"model={model!r} is not known; use {', '.join(map(repr, known))}, or a TrainConfig")
    return TrainConfig.preset(name), name


def recipe_of(total: int | None, dtype: str) -> Recipe:
    """Who keeps so many bytes a parameter, on a machine of this dtype."""
    if dtype == "float32" and total in (None, RECIPES["float32"].total):
        return RECIPES["float32"]
    total = 18 if total is None else total
    if total not in BY_TOTAL:
        raise ValueError(f"bytes_per_parameter={total!r} has no recipe; use {', '.join(map(str, sorted(BY_TOTAL)))}")
    return BY_TOTAL[total]


def ways_of(
    config: TrainConfig, where: Machine, tp: int | Sequence[int] | None, options: dict[str, Any], cut_vocabulary: bool
) -> Iterator[tuple[TrainConfig, int]]:
    """Every combination of what was asked for, as a configuration and its tensor-parallel ranks."""
    for option in options:
        if option not in OPTIONS:
            raise ValueError(f"{option} is no option of plan; use tp, bytes_per_parameter, {', '.join(OPTIONS)}")
    widths = [tp] if isinstance(tp, int) else [2**n for n in range(20) if 2**n <= where.node] if tp is None else [*tp]
    lists = [[*value] if isinstance(value, list | tuple | range) else [value] for value in options.values()]
    found = False
    for width, *values in product(widths, *lists):
        changes = dict(zip(options, values, strict=True))
        try:
            way = _way(config, width, changes, cut_vocabulary)
        except ValueError:
            if tp is not None or width == 1:
                raise
            continue
        found = True
        yield way, width
    if not found:
        raise ValueError("there is nothing to plan: an option is an empty list; give at least one value")


def _way(config: TrainConfig, width: Any, changes: dict[str, Any], cut_vocabulary: bool) -> TrainConfig:
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ValueError(f"tp={width!r} does not work; use a whole number of at least 1, or several")
    if cut_vocabulary:
        cut = width > 1 and config.vocab_size % width == 0
        changes = {"vocab_parallel": cut, "loss_parallel": cut, **changes}
    if width == 1 and "sequence_parallel" in changes:
        changes["sequence_parallel"] = False  # there is nothing to cut
    groups = changes.get("data_parallel", config.data_parallel)
    if "batch_size" not in changes and isinstance(groups, int):
        changes["batch_size"] = config.micro_batch * changes.get("accumulate", config.accumulate) * groups
    if isinstance(size := changes.get("batch_size"), int):
        changes["num_samples"] = max(config.num_samples, size)  # no data is read here
    way = replace(config, **changes)
    way.check_ranks(width * way.data_parallel)
    return way
