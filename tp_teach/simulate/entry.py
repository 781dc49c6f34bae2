"""`simulate`: what one rank of any world would hold, send and compute, found by playing it in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tp_teach.launch.launcher import check_call, launch_alone
from tp_teach.launch.output import Show
from tp_teach.run import Run, world_of
from tp_teach.simulate.play import play


def simulate(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int,
    rank: int = 0,
    every_layer: bool = False,
    show: Show = "all",
) -> Run:
    """Run `fn(*args)` as rank `rank` of `world_size` ranks that do not exist: the call of `tp.launch`, no hardware.

    One process of its own plays the rank. Its process group sends nothing, and its tensors are torch's fake ones: they
    have shapes, dtypes and storages, and no numbers. So any model and any number of ranks fit on a laptop. What
    `tp.measure` sees comes home as in a launch: `shards`, `comm`, `memory` and `flops` of this rank are those that a
    launch on the CPU measures. `run[rank]` is what the function returned, with tensors on the device "meta"; the other
    ranks' values are None. Times mean nothing, and a measured loss is NaN.

    A function that reads a number (`.item()`, `if loss > 2:`, `tensor.tolist()`, objects sent between ranks) cannot be
    played; `RankFailed` names the line. `tp.train` can: it knows that it is simulated.

    Layers that are alike need not all be played. If an argument is a TrainConfig with more than 4 layers, the
    function runs with 2, 3 and 4 layers instead. What it wrote down with 2 and 3 must foretell exactly what it wrote
    down with 4, and it must return and print the same; then the 3 and 4 foretell the rest, to the byte. Otherwise, or
    with `every_layer=True`, all layers are played. A function that treats some layer beyond the fourth as no other
    layer, such as every eighth, needs `every_layer=True`.

    `show` is that of `tp.launch`.

    Raises TypeError or ValueError, before a process starts, for arguments that cannot work, and `RankFailed` for what
    the function raises.
    """
    __tracebackhide__ = True
    for name, value in (("world_size", world_size), ("rank", rank)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}={value!r} is not a whole number")
    if world_size < 1:
        raise ValueError(f"world_size={world_size} has no rank; use 1 or more")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} is not in a world of {world_size}; use 0 to {world_size - 1}")
    if show not in ("all", "rank0", "none"):
        raise ValueError(f"show={show!r} is not known; use 'all', 'rank0' or 'none'")
    check_call(fn, args, world_size)
    run = launch_alone(play, fn, args, world_size, rank, every_layer, rank=rank, show=show)
    reason = f"rank {rank} of {world_size} simulated in one process, without numbers"
    run.world = world_of("simulated", ["none"] * world_size, reason)
    for field in ("values", "output"):
        nothing: list[Any] = [None if field == "values" else ""] * world_size
        nothing[rank] = getattr(run, field)[0]
        setattr(run, field, nothing)
    return run
