"""Play one rank: run its function under fake tensors, on all layers or on as few as foretell the rest."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from tp_teach.launch.pickling import pack_value
from tp_teach.launch.state import of_exception
from tp_teach.model.config import TrainConfig
from tp_teach.simulate.extend import NotAlike, Rows, counted, foretell, without_places
from tp_teach.simulate.fake import world
from tp_teach.tables import Log, current_log

PLAYED = 4
"""So many layers are played at most, unless all are."""


class NumberNeeded(RuntimeError):
    """The function reads a number of a tensor that has none."""


Played = tuple[Any, Rows, dict]
"""What the function returned, its rows by table, and the configuration that it wrote down."""


def play(fn: Callable[..., Any], args: tuple, world_size: int, rank: int, every_layer: bool) -> Any:
    """What `fn(*args)` returns as rank `rank`; its rows go to this process's log."""
    gc.set_threshold(100_000)  # a step makes many small objects, and hardly a cycle
    log = current_log.get()
    log.rank = rank
    found = None if every_layer else _play_few(fn, args, world_size, rank)
    value, rows, log.config = found or _play(fn, args, world_size, rank)
    log.rows.update(without_places(rows))
    return value


def _play(fn: Callable[..., Any], args: tuple, world_size: int, rank: int) -> Played:
    log = Log(rank)
    token = current_log.set(log)
    try:
        with world(world_size, rank) as tensors:
            value = fn(*tensors.of(args))
    except Exception as error:
        if not _reads_number(error):
            raise
        line = of_exception(rank, error, waited=False).line
        raise NumberNeeded(
            "a simulated tensor has a shape and no numbers, and this line reads one; leave it out, or use tp.launch: "
            f"{line}"
        ).with_traceback(error.__traceback__) from None
    finally:
        current_log.reset(token)
    return value, log.rows, log.config


def _reads_number(error: Exception) -> bool:
    kinds = (DataDependentOutputException, DynamicOutputShapeException)
    return isinstance(error, kinds) or "not supported for tensor subclasses" in str(error)


def _play_few(fn: Callable[..., Any], args: tuple, world_size: int, rank: int) -> Played | None:
    """What all layers would write down, foretold by few of them; None if that is not certain."""
    configs = [arg for arg in args if isinstance(arg, TrainConfig)]
    if len(configs) != 1 or (layers := configs[0].num_layers) <= PLAYED:
        return None
    runs, told = [], set()
    for few in range(PLAYED - 2, PLAYED + 1):
        printed = io.StringIO()
        try:
            fewer = [replace(arg, num_layers=few) if arg is configs[0] else copy.deepcopy(arg) for arg in args]
            with redirect_stdout(printed):
                value, rows, config = _play(fn, tuple(fewer), world_size, rank)
            told.add((pack_value(value, {})[0], printed.getvalue()))
        except Exception:
            return None  # all layers may do without it, and else fail with it
        runs.append(rows)
    first, second, third = runs
    try:
        if len(told) > 1 or counted(foretell(first, second, 1)) != counted(third):
            return None
        rows = foretell(second, third, layers - PLAYED)
    except NotAlike:
        return None
    print(printed.getvalue(), end="")
    return value, rows, config | ({"num_layers": layers} if "num_layers" in config else {})
