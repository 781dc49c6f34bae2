"""What is really running, asked of the operating system."""

import time
from collections.abc import Callable

import psutil


def gone(pid: int) -> bool:
    """Whether this process has ended; a zombie has, even where nobody collects it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ranks_of(pid: int) -> list[int]:
    """The ranks that this process has launched and that still run: the children of its fork server."""
    servers = [child for child in psutil.Process(pid).children() if "multiprocessing.forkserver" in _command(child)]
    return [rank.pid for server in servers for rank in server.children() if not gone(rank.pid)]


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Poll until the condition holds. Fails the test when it does not hold in time."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"still not so after {seconds:g} s"
        time.sleep(0.02)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
