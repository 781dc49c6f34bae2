"""One rank: set up, run what it is sent, answer, and end with the launcher."""

from __future__ import annotations

import gc
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pickle import PickleBuffer
from typing import Any

import torch.distributed as dist

from tp_teach.launch import pickling, report
from tp_teach.launch.bar import report_to
from tp_teach.launch.group import RankInfo, process_group
from tp_teach.launch.state import RankState, of_exception, of_thread
from tp_teach.tables import Log, current_log


@dataclass(frozen=True)
class LaunchOptions:
    """What every rank is told at its start."""

    world_size: int
    devices: tuple[str, ...]
    backend: str
    timeout: float
    check: bool
    folder: str
    environment: dict[str, str]


@dataclass(frozen=True)
class Returned:
    """The function is over: its packed value, the sizes of the buffers that follow, and what the rank wrote down."""

    value: bytes
    sizes: list[int]
    log: Log
    state: RankState


@dataclass(frozen=True)
class Raised:
    """The function raised; `kind` is error, timeout or peer (another rank is gone).

    `call` is this rank's collective, if the ranks call different ones.
    """

    kind: str
    error: str
    reason: str
    traceback: str
    state: RankState
    call: str = ""


class RankConnection:
    """This rank's end of the line to the launcher. Its thread answers while the function runs or hangs."""

    def __init__(self, rank: int, line: Connection) -> None:
        self.rank, self.line = rank, line
        self.lock = threading.Lock()
        self.calls: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.main_thread = threading.main_thread().ident
        threading.Thread(target=self._listen, daemon=True, name="tp_teach-connection").start()

    def send(self, message: Any, buffers: Sequence[PickleBuffer] = ()) -> None:
        with self.lock:
            self.line.send(message)
            for numbers in (buffer.raw() for buffer in buffers):
                for start in range(0, numbers.nbytes, pickling.PIECE):
                    self.line.send_bytes(numbers[start : start + pickling.PIECE])

    def _listen(self) -> None:
        try:
            while (message := self.line.recv()) is not None:
                if message == "where":
                    self.send(of_thread(self.rank, sys._current_frames().get(self.main_thread)))
                else:
                    self.calls.put(message)
            self.calls.put(None)
        except (EOFError, OSError):
            # The launcher is gone. Nobody is left to end this rank and what it started.
            end_group()


def main(rank: int, line: Connection, lifeline: Connection, options: LaunchOptions) -> None:
    """The body of a rank's process: calls come over the line until the launcher has no more."""
    if not os.path.isdir(options.folder):
        return  # the launch was given up while this process started
    _prepare(rank, lifeline, options)
    connection = RankConnection(rank, line)
    if rank == 0:
        report_to.set(connection.send)
    connection.send("here")
    connection.calls.get()
    info = RankInfo(
        rank,
        options.world_size,
        options.world_size,
        options.backend,
        options.devices[rank],
        options.timeout,
        options.check,
    )
    try:
        store = dist.FileStore(os.path.join(options.folder, "rendezvous"), options.world_size)
        with process_group(info, store):
            while (call := connection.calls.get()) is not None:
                _answer(connection, *_run(rank, call))
    except Exception as error:  # the process group itself could not be joined
        _answer(connection, _raised(rank, error))
        connection.calls.get()
    end_group()


def _run(rank: int, call: bytes) -> tuple[Returned | Raised, list[PickleBuffer]]:
    log = Log(rank)
    current_log.set(log)
    try:
        fn, args, classes = pickling.unpack_call(call)
        began = time.time()
        value = fn(*args)
        row = {"name": getattr(fn, "__name__", "call"), "kind": "compute", "start": began}
        log.add("timeline", [{**row, "seconds": time.time() - began}])
        packed, buffers = pickling.pack_value(value, classes)
    except BaseException as error:  # SystemExit and KeyboardInterrupt of the function included
        return _raised(rank, error), []
    sizes = [buffer.raw().nbytes for buffer in buffers]
    return Returned(packed, sizes, log, RankState(rank, "", over="returned")), buffers


def _answer(connection: RankConnection, answer: Returned | Raised, buffers: Sequence[PickleBuffer] = ()) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError, AttributeError):  # the function may have closed or replaced them
            stream.flush()
    connection.send(answer, buffers)


def _raised(rank: int, error: BaseException) -> Raised:
    kind = report.kind(error)
    where = of_exception(rank, error, waited=kind == "timeout")
    return Raised(
        kind, type(error).__name__, report.reason(error), report.own_lines(error), where, report.own_call(error)
    )


def _prepare(rank: int, lifeline: Connection, options: LaunchOptions) -> None:
    """Make this copy of the fork server a process of its own."""
    gc.freeze()  # what the fork server loaded stays shared, and is not searched for tensors
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the launcher alone, and the rank's own children end with it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        _end_when_closed(lifeline)
    _capture_output(options.folder, rank)
    # A fork server keeps the environment of its own start, and what a launcher around us has set is not ours.
    os.environ.clear()
    os.environ.update(options.environment)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    size = str(options.world_size)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
    # What the function starts, such as a DataLoader's workers, starts as usual: a fork server of the rank's own
    # would import torch for each.
    multiprocessing.set_start_method(None, force=True)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # NumPy took its seed when the server started


def _end_when_closed(lifeline: Connection) -> None:
    """End this process group when the launcher is gone, even while native code lets no Python thread run."""
    import fcntl

    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline.fileno(), fcntl.F_SETOWN, -os.getpgid(0))
    flags = fcntl.fcntl(lifeline.fileno(), fcntl.F_GETFL)
    fcntl.fcntl(lifeline.fileno(), fcntl.F_SETFL, flags | os.O_ASYNC)


def _capture_output(folder: str, rank: int) -> None:
    """Send what the rank and its native code print to files that the launcher reads."""
    for number, name in ((1, "out"), (2, "err")):
        descriptor = os.open(os.path.join(folder, f"{rank}.{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


def end_group() -> None:
    """End this process and all that it started, at once."""
    if hasattr(os, "killpg"):
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os._exit(1)
