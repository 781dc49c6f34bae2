"""`launch` and `ranks`: run a function on real processes, bring what it says home, leave nothing behind."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tp_teach.launch import folders, pickling, server, worker
from tp_teach.launch.devices import Choice, choose_here
from tp_teach.launch.errors import LaunchError, RankFailed
from tp_teach.launch.interrupts import held
from tp_teach.launch.output import Output, Show
from tp_teach.launch.processes import Ranks
from tp_teach.run import Run, world_of

LONGEST_TIMEOUT = 1e6
"""Seconds, about twelve days: torch counts in milliseconds of limited size."""


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int,
    device: str | None = None,
    backend: str | None = None,
    timeout: float = 60.0,
    check: bool = True,
    show: Show = "all",
) -> Run:
    """Run `fn(*args)` on `world_size` real processes and bring what they return and measure home as one `Run`.

    `fn` is ordinary torch.distributed code and may be defined in a notebook cell. Each rank starts clean, with the
    default process group joined; `tp.device()` is its device. Tensors, plain data and your own objects may be
    returned; CUDA tensors come home on the CPU, and a DTensor, a module or a process group is refused with what to
    return instead.

    Devices: as many GPUs as ranks give NCCL with rank r on `cuda:r`, anything else the CPU with Gloo. `device="cuda"`
    with fewer GPUs than ranks lets the ranks share them, with Gloo: real memory, meaningless speed. With Gloo a
    collective is done when the call returns. With NCCL it is queued on the GPU; here each call waits for it, so that a
    rank that is stuck can say where.

    `timeout` is how long, in seconds, one collective may wait for the other ranks; a long computation is not ended.
    `check` lets torch compare the collectives of all ranks before each one (its DETAIL debug level): a mismatch then
    raises with both sides named instead of crashing. Turn it off where speed is measured, and for
    DistributedDataParallel, which crashes torch 2.13 under these checks. `show` says whose output is shown here: that
    of all ranks, rank 0 live and then the others in order, of rank 0 alone, or none; `Run.output` keeps it all.

    Raises, before a process starts, TypeError or ValueError for arguments that cannot work, and RuntimeError where the
    loopback interface is down. An argument with a method `check_ranks(world_size)` is asked too. Then `RankFailed`
    when a rank raises or dies, and `RanksStuck` when ranks wait longer than the timeout. No process is left behind,
    whichever way it ends.
    """
    __tracebackhide__ = True
    _check_options(world_size, timeout, show)
    call = _pack(fn, args, world_size)
    with ranks(world_size=world_size, device=device, backend=backend, timeout=timeout, check=check, show=show) as these:
        return these.run(call)


@contextmanager
def ranks(
    world_size: int,
    *,
    device: str | None = None,
    backend: str | None = None,
    timeout: float = 60.0,
    check: bool = True,
    show: Show = "all",
) -> Iterator[WarmRanks]:
    """Keep the same processes for several launches: `with tp.ranks(world_size=4) as ranks: ranks.launch(fn)`.

    A launch inside the block is quick, because processes, process group and, on GPUs, CUDA contexts are there already.
    It says what `tp.launch` says, and fails as it fails; after a failure the block is over. What one call leaves in a
    process, such as the state of random numbers, the next one finds.

    Options and errors are those of `tp.launch`.
    """
    __tracebackhide__ = True
    _check_options(world_size, timeout, show)
    choice = choose_here(world_size, device, backend)
    with _started(choice, timeout, check, show) as these:
        yield these


def launch_alone(fn: Callable[..., Any], *args: Any, rank: int, show: Show) -> Run:
    """Run `fn(*args)` in one process without peers, which is called `rank` in what it prints and in its failure.

    `tp.simulate` plays a rank there. The `Run` is that of one rank.
    """
    __tracebackhide__ = True
    call = pickling.pack_call(fn, args)
    with _started(Choice("gloo", ("cpu",), "one process"), LONGEST_TIMEOUT, False, show, first=rank) as these:
        try:
            return these.run(call)
        except RankFailed as error:
            raise RankFailed(rank, error.reason, error.error, error.traceback) from None


@contextmanager
def _started(choice: Choice, timeout: float, check: bool, show: Show, first: int = 0) -> Iterator[WarmRanks]:
    """Processes for the ranks of `choice`; the first of them prints as rank `first`."""
    __tracebackhide__ = True
    world_size = choice.world_size
    _check_loopback()
    server.warm()
    folders.sweep()
    with folders.folder() as folder:
        options = worker.LaunchOptions(
            world_size, choice.devices, choice.backend, float(timeout), check, folder, dict(os.environ)
        )
        these = WarmRanks(Ranks(options), choice, Output(folder, world_size, show, first))
        try:
            these.processes.start()
            yield these
            these.processes.dismiss()
        finally:
            with held():
                these.over = these.over or "its block has ended"
                these.processes.end()
                these.output.show_rest(failed=False)


class WarmRanks:
    """What `tp.ranks` gives: processes that wait for calls."""

    def __init__(self, processes: Ranks, choice: Choice, output: Output) -> None:
        self.processes, self.choice, self.output = processes, choice, output
        self.over = ""

    def launch(self, fn: Callable[..., Any], *args: Any) -> Run:
        """`tp.launch(fn, *args)` on these processes. Raises RuntimeError when they are over."""
        __tracebackhide__ = True
        if self.over:
            raise RuntimeError(f"these ranks are over: {self.over}; open a new `with tp.ranks(…)`")
        return self.run(_pack(fn, args, self.choice.world_size))

    def run(self, call: bytes) -> Run:
        """Have all ranks run a packed call."""
        __tracebackhide__ = True
        failed = True
        try:
            answers = self.processes.call(call, self.output)
            failed = False
        except BaseException as error:
            self.over = f"an earlier launch ended with {type(error).__name__}"
            if isinstance(error, LaunchError):
                self.processes.end()  # before its output is read: nothing more is printed then
            if isinstance(error, KeyboardInterrupt):
                raise error.with_traceback(None) from None  # where this process waited says nothing to the learner
            raise
        finally:
            printed = self.output.show_rest(failed)
        values = [pickling.unpack_value(answer.value, buffers) for answer, buffers in answers]
        world = world_of(self.choice.backend, self.choice.devices, self.choice.reason)
        return Run.from_logs(world, [answer.log for answer, _ in answers], values, printed)


def _pack(fn: Any, args: tuple, world_size: int) -> bytes:
    """Check a function and its arguments, and pack them, all before a process starts."""
    __tracebackhide__ = True
    check_call(fn, args, world_size)
    return pickling.pack_call(fn, args)


def check_call(fn: Any, args: tuple, world_size: int) -> None:
    """Raise TypeError or ValueError for a function and arguments that cannot work on so many ranks."""
    __tracebackhide__ = True
    if not callable(fn):
        raise TypeError(f"fn={fn!r} is not callable; pass the function that every rank runs")
    try:
        inspect.signature(fn).bind(*args)
    except TypeError as error:
        name = getattr(fn, "__name__", repr(fn))
        given = "1 argument does" if len(args) == 1 else f"{len(args)} arguments do"
        raise TypeError(f"{given} not fit {name}{inspect.signature(fn)}: {error}") from None
    except ValueError:
        pass  # a builtin that does not tell its signature
    for arg in args:
        if callable(ask := getattr(arg, "check_ranks", None)) and not isinstance(arg, type):
            ask(world_size)


def _check_loopback() -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing; the system looks for a way
            return
    raise RuntimeError(
        "ranks talk through the loopback interface, which has no address here: neither 127.0.0.1 nor ::1 works; "
        "bring it up, on Linux with `ip link set lo up`"
    )


def _check_options(world_size: Any, timeout: Any, show: Any) -> None:
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise TypeError(f"world_size={world_size!r} is not a whole number; pass how many ranks to start, such as 4")
    if world_size < 1:
        raise ValueError(f"world_size={world_size} starts no rank; use 1 or more")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0.1 <= timeout <= LONGEST_TIMEOUT:
        raise ValueError(f"timeout={timeout!r} does not work; use 0.1 to {LONGEST_TIMEOUT:,.0f} seconds, such as 60")
    if show not in ("all", "rank0", "none"):
        raise ValueError(f"show={show!r} is not known; use 'all', 'rank0' or 'none'")
