"""The processes of one world, seen from the launcher: start, call, watch, end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, NoReturn

import torch.multiprocessing as mp

from tp_teach.launch import pickling, report, server, worker
from tp_teach.launch.bar import Bar, Report
from tp_teach.launch.errors import RankFailed, RanksStuck, meanwhile, why_ended
from tp_teach.launch.output import Output
from tp_teach.launch.start import HOME, enter
from tp_teach.launch.state import RankState

# After a first failure, the time in which other ranks may report theirs, in seconds.
GRACE = 0.25
_start_lock = threading.Lock()


class Ranks:
    """The processes, and the lines to them."""

    def __init__(self, options: worker.LaunchOptions) -> None:
        self.options = options
        self.processes: list[Any] = []
        self.lines: list[Connection] = []
        self.lifelines: list[Connection] = []
        self.answers: dict[int, tuple[worker.Returned, list[bytearray]]] = {}
        self.failures: dict[int, worker.Raised | int] = {}  # a report, or the exit code of a rank that left none
        self.asked: dict[int, RankState] = {}
        self.here: set[int] = set()
        self.bar = Bar()

    def start(self) -> None:
        """Start all ranks. Once all are here they join their process group, and this returns."""
        context = mp.get_context("forkserver" if server.available() else "spawn")
        for rank in range(self.options.world_size):
            ours, theirs = context.Pipe()
            end, lifeline = context.Pipe(duplex=False)
            self.lines.append(ours)
            self.lifelines.append(lifeline)
            arguments = (rank, theirs, end, HOME, vars(self.options))
            process = context.Process(target=enter, args=arguments, name=f"tp_teach rank {rank}")
            with _start_lock, _hidden("__main__"):
                process.start()
            self.processes.append(process)
            theirs.close()
            end.close()
        # The timeout is for ranks that wait in a call, not for processes that are slow to start.
        while len(self.here) < self.options.world_size and not self.failures:
            self._take(timeout=0.1)
        for line in self.lines:
            with suppress(OSError):
                line.send("join")

    def call(self, call: bytes, output: Output) -> list[tuple[worker.Returned, list[bytearray]]]:
        """Have all ranks run a packed call. Raises RankFailed or RanksStuck at the first failure."""
        self.answers, self.asked = {}, {}
        for line in self.lines:
            with suppress(OSError):  # a rank that is gone is found below
                line.send(call)
        try:
            while len(self.answers) < self.options.world_size:
                self._take(timeout=0.1)
                output.show_rank_0()
                if self.failures:
                    self._fail()
        finally:
            self.bar.close()
        return [self.answers[rank] for rank in range(self.options.world_size)]

    def dismiss(self) -> None:
        """Let ranks with NCCL take leave of each other. A rank with Gloo has nothing to say: `end` is sooner done."""
        if self.options.backend == "gloo":
            return
        for line in self.lines:
            with suppress(OSError):
                line.send(None)
        for process in self.processes:
            process.join(timeout=5)

    def end(self) -> None:
        """End what still runs: each rank with the processes that it started. A second call finds nothing to end."""
        for process in self.processes:
            _kill(process)
        for process in self.processes:
            process.join()
            process.close()
        for line in (*self.lines, *self.lifelines):
            line.close()
        self.processes, self.lines, self.lifelines = [], [], []

    def _take(self, timeout: float) -> None:
        """Read what has arrived of ranks that have not ended: answers, failures, and where a rank stands."""
        open_ranks = [rank for rank in range(self.options.world_size) if rank not in self.answers | self.failures]
        lines = {self.lines[rank]: rank for rank in open_ranks}
        ends = {self.processes[rank].sentinel: rank for rank in open_ranks}
        for item in wait([*lines, *ends], timeout):
            rank = lines[item] if item in lines else ends[item]
            with suppress(EOFError, OSError):
                while rank not in self.answers | self.failures and self.lines[rank].poll():
                    message = self.lines[rank].recv()
                    if isinstance(message, worker.Returned):
                        self.answers[rank] = message, [self._buffer(rank, size) for size in message.sizes]
                    elif isinstance(message, worker.Raised):
                        self.failures[rank] = message
                    elif isinstance(message, tuple):
                        reason, traceback = message
                        self.failures[rank] = worker.Raised("error", "", reason, traceback, RankState(rank, ""))
                    elif message == "here":
                        self.here.add(rank)
                    elif isinstance(message, Report):
                        self.bar.show(message)
                    else:
                        self.asked[rank] = message
            if item in ends and rank not in self.answers | self.failures:
                self.processes[rank].join()
                self.failures[rank] = self.processes[rank].exitcode

    def _buffer(self, rank: int, size: int) -> bytearray:
        buffer = bytearray(size)
        for start in range(0, size, pickling.PIECE):
            self.lines[rank].recv_bytes_into(buffer, start)
        return buffer

    def _fail(self) -> NoReturn:
        # All ranks report that they call different collectives, and only a rank itself says for certain which is its.
        grace = 8 * GRACE if self._calls() else GRACE
        until = time.monotonic() + grace
        while time.monotonic() < until and len(self.answers) + len(self.failures) < self.options.world_size:
            self._take(timeout=0.05)
        kinds = {rank: "died" if isinstance(what, int) else what.kind for rank, what in self.failures.items()}
        # What happened to a rank by itself comes before what others suffered from it.
        worst = min(kinds.values(), key=("error", "died", "timeout", "peer").index)
        if worst == "timeout":
            raise RanksStuck(self._states(), self.options.timeout)
        rank = min(rank for rank in kinds if kinds[rank] == worst)
        others = meanwhile([state for state in self._settled() if state.rank != rank])
        failure = self.failures[rank]
        if isinstance(failure, int):
            raise RankFailed(rank, why_ended(failure, self.options.check), others=others)
        reason = report.different_calls(self._calls()) if failure.call and len(self._calls()) > 1 else failure.reason
        raise RankFailed(rank, reason, failure.error or None, failure.traceback, others)

    def _calls(self) -> dict[int, str]:
        return {rank: what.call for rank, what in self.failures.items() if not isinstance(what, int) and what.call}

    def _settled(self) -> list[RankState]:
        """Where the ranks stand once each of them is over or waits; what they do until then is chance."""
        until = time.monotonic() + 2 * GRACE
        states = self._states()
        while not all(state.over or state.waits_in for state in states) and time.monotonic() < until:
            self._take(timeout=0.05)
            states = self._states()
        return states

    def _states(self) -> list[RankState]:
        """Where every rank stands; those that still run are asked."""
        self.asked = {}
        running = [rank for rank in range(self.options.world_size) if rank not in self.answers | self.failures]
        for rank in running:
            with suppress(OSError):
                self.lines[rank].send("where")
        until = time.monotonic() + 2 * GRACE
        while set(running) - set(self.asked | self.answers | self.failures) and time.monotonic() < until:
            self._take(timeout=0.05)
        return [self._state(rank) for rank in range(self.options.world_size)]

    def _state(self, rank: int) -> RankState:
        if rank in self.answers:
            return self.answers[rank][0].state
        if rank in self.failures:
            failure = self.failures[rank]
            if isinstance(failure, int):
                return RankState(rank, "", over="ended")
            return failure.state if failure.kind == "timeout" else RankState(rank, "", over="raised")
        return self.asked.get(rank, RankState(rank, "no answer: it is inside native code"))


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Hide a module while a process starts, so that the rank does not run the caller's script again.

    What a rank needs of `__main__` travels by value.
    """
    module = sys.modules[name]
    try:
        sys.modules[name] = ModuleType(name)
        yield
    finally:
        sys.modules[name] = module


def _kill(process: Any) -> None:
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            # A rank leads a process group of its own, which lives on while anything that it started lives.
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        process.kill()  # it may not have come so far yet
