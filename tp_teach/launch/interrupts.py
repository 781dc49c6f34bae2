"""Interrupts, held back where a half-done step would leave something behind."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held() -> Iterator[None]:
    """Hold an interrupt back until the block is done. It is dropped where another one is being raised already.

    Only the main thread is ever interrupted. A signal mask would not do: the system would give the signal to another
    thread, and Python would hand it on to the main one.
    """
    mine = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if mine else None
    if before is None:  # set by native code, which alone may change it
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came and not isinstance(sys.exc_info()[1], KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
