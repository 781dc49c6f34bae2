"""One rank: set up, run the function, answer, and end with the launcher."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tp_teach.launch import parcel, stand
from tp_teach.launch.group import process_group
from tp_teach.tables import Log, current_log


@dataclass(frozen=True)
class Orders:
    """What every rank of one launch is told."""

    world_size: int
    devices: tuple[str, ...]
    backend: str
    timeout: float
    check: bool
    folder: str
    environment: dict[str, str]


@dataclass(frozen=True)
class Returned:
    """The function is over: its packed value, and what the rank wrote down."""

    value: bytes
    log: Log
    stand: stand.Stand


@dataclass(frozen=True)
class Raised:
    """The function raised; `kind` is error, timeout or peer (another rank is gone)."""

    kind: str
    error: str
    reason: str
    traceback: str
    stand: stand.Stand


class Desk:
    """This rank's end of the line to the launcher. Its thread answers while the function runs or hangs."""

    def __init__(self, rank: int, line: Connection) -> None:
        self.rank, self.line = rank, line
        self.lock = threading.Lock()
        self.dismissed = threading.Event()
        self.main_thread = threading.main_thread().ident
        threading.Thread(target=self._answer, daemon=True, name="tp_teach-desk").start()

    def send(self, message: Any) -> None:
        with self.lock:
            self.line.send(message)

    def _answer(self) -> None:
        try:
            while self.line.recv() == "where":
                self.send(stand.of_thread(self.rank, sys._current_frames().get(self.main_thread)))
            self.dismissed.set()
        except (EOFError, OSError):
            # The launcher is gone. Nobody is left to end this rank and what it started.
            _end_group()


def main(rank: int, line: Connection, orders: Orders, call: bytes) -> None:
    """The body of a rank's process."""
    gc.freeze()  # what the fork server loaded stays shared, and is not searched for tensors
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the launcher alone, and the rank's own children end with it
    _capture_output(orders.folder, rank)
    desk = Desk(rank, line)
    log = Log(rank)
    current_log.set(log)
    _set_environment(rank, orders)
    # What the function starts, such as a DataLoader's workers, starts as usual: a fork server of the rank's own
    # would import torch for each.
    multiprocessing.set_start_method(None, force=True)
    try:
        with process_group(
            orders.backend,
            orders.devices[rank],
            f"file://{orders.folder}/rendezvous",
            rank,
            orders.world_size,
            orders.world_size,
            orders.timeout,
            orders.check,
        ):
            _run(desk, log, call)
            if orders.backend == "gloo":
                _end_group()  # the system closes a process's connections in a tenth of the time that Gloo takes
    except Exception as error:  # the process group itself could not be joined
        _answer(desk, _report(rank, error))
    _end_group()


def _run(desk: Desk, log: Log, call: bytes) -> None:
    """Run the function and answer, before anything is torn down that peers still use."""
    try:
        fn, args = parcel.unpack_call(call)
        began = time.time()
        value = parcel.pack_value(fn(*args))
        name = getattr(fn, "__name__", "call")
        log.add("timeline", [{"name": name, "kind": "compute", "start": began, "seconds": time.time() - began}])
        answer = Returned(value, log, stand.Stand(desk.rank, "", returned=True))
    except BaseException as error:  # SystemExit and KeyboardInterrupt of the function included
        answer = _report(desk.rank, error)
    _answer(desk, answer)


def _answer(desk: Desk, answer: Returned | Raised) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    desk.send(answer)
    desk.dismissed.wait()


def _set_environment(rank: int, orders: Orders) -> None:
    # A fork server keeps the environment of its own start, and what a launcher around us has set is not ours.
    os.environ.clear()
    os.environ.update(orders.environment)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    size = str(orders.world_size)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)


def _capture_output(folder: str, rank: int) -> None:
    """Send what the rank and its native code print to files that the launcher reads."""
    for number, name in ((1, "out"), (2, "err")):
        descriptor = os.open(os.path.join(folder, f"{rank}.{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _report(rank: int, error: BaseException) -> Raised:
    kind = "timeout" if stand.waited_too_long(error) else "peer" if stand.lost_a_peer(error) else "error"
    return Raised(
        kind, type(error).__name__, stand.reason(error), stand.own_lines(error), stand.of_exception(rank, error)
    )


def _end_group() -> None:
    """End this process and all that it started, at once."""
    if hasattr(os, "killpg"):
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os._exit(1)
