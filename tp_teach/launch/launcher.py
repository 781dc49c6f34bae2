"""`launch`: start the ranks, watch them, bring their answers home, leave nothing behind."""

from __future__ import annotations

import inspect
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any

import torch.multiprocessing as mp

from tp_teach.launch import parcel, server, worker
from tp_teach.launch.devices import choose_here
from tp_teach.launch.errors import RankFailed, RanksStuck
from tp_teach.launch.output import Output
from tp_teach.launch.stand import Stand
from tp_teach.run import Run, world_of

# After a first failure, the time in which other ranks may report theirs, in seconds.
GRACE = 0.25
_start_lock = threading.Lock()


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int,
    device: str | None = None,
    backend: str | None = None,
    timeout: float = 60.0,
    check: bool = True,
) -> Run:
    """Run `fn(*args)` on `world_size` real processes and bring what they return and measure home as one `Run`.

    `fn` is ordinary torch.distributed code and may be defined in a notebook cell. Each rank starts clean, with the
    default process group joined; `tp.device()` is its device. Anything that pickles may be returned; CUDA tensors
    come home on the CPU. What ranks print is shown here, rank by rank.

    Devices: as many GPUs as ranks give NCCL with rank r on `cuda:r`, anything else the CPU with Gloo. `device="cuda"`
    with fewer GPUs than ranks lets the ranks share them, with Gloo: real memory, meaningless speed. With NCCL a
    collective returns when the work is queued and the GPU has yet to do it; with Gloo it returns when it is done.

    `timeout` is how long, in seconds, one collective may wait for the other ranks; a long computation is not ended.
    `check` lets torch compare the collectives of all ranks before each one (its DETAIL debug level): a mismatch then
    raises with both sides named instead of crashing. Turn it off where speed is measured.

    Raises, before a process starts, TypeError or ValueError for arguments that cannot work. An argument with a method
    `check_ranks(world_size)` is asked too. Then `RankFailed` when a rank raises or dies, and `RanksStuck` when ranks
    wait longer than the timeout. No process is left behind, whichever way it ends.
    """
    _check_arguments(fn, args, world_size, timeout)
    choice = choose_here(world_size, device, backend)
    for arg in args:
        if callable(ask := getattr(arg, "check_ranks", None)) and not isinstance(arg, type):
            ask(world_size)
    call = parcel.pack_call(fn, args)
    server.warm()
    with tempfile.TemporaryDirectory(prefix="tp_teach-", ignore_cleanup_errors=True) as folder:
        orders = worker.Orders(
            world_size, choice.devices, choice.backend, float(timeout), check, folder, dict(os.environ)
        )
        output = Output(folder, world_size)
        ranks = _Ranks(orders)
        answers = None
        try:
            ranks.start(call)
            answers = ranks.watch(output)
            ranks.dismiss()
        finally:
            ranks.end()
            printed = output.show_rest(failed=answers is None)
    world = world_of(choice.backend, choice.devices, choice.reason)
    values = [parcel.unpack_value(answer.value) for answer in answers]
    return Run.from_logs(world, [answer.log for answer in answers], values, printed)


class _Ranks:
    """The processes of one launch and the lines to them."""

    def __init__(self, orders: worker.Orders) -> None:
        self.orders = orders
        self.processes: list[Any] = []
        self.lines: list[Connection] = []

    def start(self, call: bytes) -> None:
        context = mp.get_context("forkserver" if server.available() else "spawn")
        for rank in range(self.orders.world_size):
            ours, theirs = context.Pipe()
            self.lines.append(ours)
            process = context.Process(
                target=worker.main, args=(rank, theirs, self.orders, call), name=f"tp_teach rank {rank}"
            )
            with _start_lock, _Hidden("__main__"):
                process.start()
            self.processes.append(process)
            theirs.close()

    def watch(self, output: Output) -> list[worker.Returned]:
        """Wait for all answers. Raises RankFailed or RanksStuck at the first failure."""
        answers: dict[int, worker.Returned] = {}
        while len(answers) < self.orders.world_size:
            failures = self._take(answers, timeout=0.1)
            output.show_rank_0()
            if failures:
                self._fail(answers, failures)
        return [answers[rank] for rank in range(self.orders.world_size)]

    def dismiss(self) -> None:
        """Let the ranks leave the process group, then wait until they have ended."""
        for line in self.lines:
            line.send("dismissed")
        for process in self.processes:
            process.join(timeout=5)

    def end(self) -> None:
        """End what still runs: each rank with the processes that it started."""
        for process in self.processes:
            _kill(process)
        for process in self.processes:
            process.join()
            process.close()
        for line in self.lines:
            line.close()

    def _take(self, answers: dict[int, worker.Returned], timeout: float) -> dict[int, worker.Raised | int]:
        """Read what has arrived: answers go into `answers`; failures (a report, or an exit code) are returned."""
        failures: dict[int, worker.Raised | int] = {}
        lines = {line: rank for rank, line in enumerate(self.lines) if rank not in answers}
        ends = {process.sentinel: rank for rank, process in enumerate(self.processes) if rank not in answers}
        ready = wait([*lines, *ends], timeout)
        for item in ready:
            rank = lines.get(item, ends.get(item))
            try:
                while rank not in failures and rank not in answers and self.lines[rank].poll():
                    message = self.lines[rank].recv()
                    if isinstance(message, worker.Returned):
                        answers[rank] = message
                    elif isinstance(message, worker.Raised):
                        failures[rank] = message
            except (EOFError, OSError):
                pass
            if item in ends and rank not in answers and rank not in failures:
                self.processes[rank].join()
                failures[rank] = self.processes[rank].exitcode
        return failures

    def _fail(self, answers: dict, failures: dict[int, worker.Raised | int]) -> None:
        until = time.monotonic() + GRACE
        while time.monotonic() < until and len(answers) + len(failures) < self.orders.world_size:
            more = self._take(answers, timeout=0.05)
            failures |= {rank: what for rank, what in more.items() if rank not in failures}
        died = [rank for rank, what in failures.items() if isinstance(what, int)]
        kinds = {rank: what.kind for rank, what in failures.items() if isinstance(what, worker.Raised)}
        for kind in ("died", "error", "timeout", "peer"):
            ranks = sorted(died) if kind == "died" else sorted(rank for rank in kinds if kinds[rank] == kind)
            if not ranks:
                continue
            if kind == "died":
                raise RankFailed(ranks[0], _why_ended(failures[ranks[0]], self.orders.check))
            if kind == "timeout":
                raise RanksStuck(self._stands(answers, failures), self.orders.timeout)
            first = failures[ranks[0]]
            raise RankFailed(ranks[0], first.reason, first.error, first.traceback)

    def _stands(self, answers: dict, failures: dict) -> list[Stand]:
        """Where every rank stands; those that still run are asked."""
        stands = {rank: answer.stand for rank, answer in answers.items()}
        stands |= {rank: what.stand for rank, what in failures.items() if isinstance(what, worker.Raised)}
        asked = [rank for rank in range(self.orders.world_size) if rank not in stands]
        for rank in asked:
            try:
                self.lines[rank].send("where")
            except OSError:
                continue
        until = time.monotonic() + 2 * GRACE
        while (missing := [rank for rank in asked if rank not in stands]) and time.monotonic() < until:
            for line in wait([self.lines[rank] for rank in missing], timeout=0.05):
                try:
                    message = line.recv()
                except (EOFError, OSError):
                    continue
                if isinstance(message, Stand):
                    stands[message.rank] = message
                elif isinstance(message, worker.Raised | worker.Returned):
                    stands[message.stand.rank] = message.stand
        return [stands.get(rank, Stand(rank, "no answer: it is inside native code")) for rank in range(len(self.lines))]


class _Hidden:
    """Hides a module while a process starts, so that the rank does not run the caller's script again.

    What a rank needs of `__main__` travels by value.
    """

    def __init__(self, name: str) -> None:
        self.name, self.module = name, sys.modules[name]

    def __enter__(self) -> None:
        sys.modules[self.name] = ModuleType(self.name)

    def __exit__(self, *exception: object) -> None:
        sys.modules[self.name] = self.module


def _check_arguments(fn: Any, args: tuple, world_size: Any, timeout: Any) -> None:
    if not callable(fn):
        raise TypeError(f"fn={fn!r} is not callable; pass the function that every rank runs")
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise TypeError(f"world_size={world_size!r} is not a whole number; pass how many ranks to start, such as 4")
    if world_size < 1:
        raise ValueError(f"world_size={world_size} starts no rank; use 1 or more")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(f"timeout={timeout!r} is not a number of seconds above 0; 60 is the default")
    try:
        inspect.signature(fn).bind(*args)
    except TypeError as error:
        name = getattr(fn, "__name__", repr(fn))
        raise TypeError(f"the {len(args)} arguments do not fit {name}{inspect.signature(fn)}: {error}") from None
    except ValueError:
        pass  # a builtin that does not tell its signature


def _kill(process: Any) -> None:
    if not process.is_alive():
        return
    try:
        # A rank leads its own process group; it is not yet its leader when it has only just started.
        if hasattr(os, "killpg") and os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    except ProcessLookupError:
        pass


def _why_ended(exitcode: int, check: bool) -> str:
    if exitcode >= 0:
        return f"ended without an answer, with exit code {exitcode}: something in it called exit"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    meaning = {
        "SIGKILL": "someone killed it, or the system did because memory ran out",
        "SIGSEGV": "native code touched memory that is not its own"
        # torch 2.13: DETAIL checks and DistributedDataParallel together, even in one process
        + (
            "; torch's checks of collectives do that under DistributedDataParallel, so try check=False" if check else ""
        ),
        "SIGABRT": "native code gave up; often a collective that did not fit its peers",
        "SIGTERM": "someone asked it to end",
    }.get(name)
    return f"was ended by {name}" + (f": {meaning}" if meaning else "")
