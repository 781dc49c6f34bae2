"""`progress`: one bar where the launch was called, driven by rank 0."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
PAUSE = 0.1
"""Seconds between two reports of a rank."""


@dataclass(frozen=True)
class Report:
    """`done` of `total` steps (None: unknown) after `seconds`, with a note such as `loss 0.731`."""

    done: int
    total: int | None
    seconds: float
    note: str

    def __str__(self) -> str:
        rate = self.done / self.seconds if self.seconds > 0 else 0.0
        words = [f"{self.done} of {self.total}" if self.total is not None else f"{self.done} steps"]
        words += [f"{rate:.1f} a second"] if rate else []
        if rate and self.total is not None:
            words.append(f"{max(0.0, self.total - self.done) / rate:.0f} s left")
        return ", ".join([*words, self.note] if self.note else words)


# Where this rank's reports go; only rank 0 of a launch has such a place.
report_to: ContextVar[Any] = ContextVar("tp_teach_progress", default=None)


class progress(Generic[Item]):
    """A progress bar in the notebook or terminal that called the launch.

    Inside a rank: `for batch in tp.progress(batches): …`, or, to show a number beside the bar,
    `bar = tp.progress(range(100))`, `for step in bar: …`, `bar.note = f"loss {loss:.3f}"`. Rank 0 drives the bar; on
    the other ranks, and outside a launch, this only iterates. `total` is asked of the iterable if it has a length.
    """

    def __init__(self, iterable: Iterable[Item], total: int | None = None) -> None:
        self.iterable = iterable
        self.total = total if total is not None or not hasattr(iterable, "__len__") else len(iterable)
        self.note = ""

    def __iter__(self) -> Iterator[Item]:
        send = report_to.get()
        began = said = time.monotonic()
        if send is not None:
            send(Report(0, self.total, 0.0, self.note))  # always, so that a notebook's output does not depend on speed
        for done, item in enumerate(self.iterable, start=1):
            yield item
            now = time.monotonic()
            if send is not None and now - said >= PAUSE:
                said = now
                send(Report(done, self.total, now - began, self.note))


class Bar:
    """The bar, where the launch was called. When it is gone it leaves nothing that differs from run to run."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.width = 0

    def show(self, report: Report) -> None:
        """Draw the bar anew: HTML in a notebook, one line on a terminal, nothing in a file."""
        if type(sys.stdout).__module__.startswith("ipykernel"):
            from IPython.display import display

            self.handle = self.handle or display(_Mark(None), display_id=True)
            self.handle.update(_Mark(report))
        elif sys.stderr.isatty():
            text = str(report)
            sys.stderr.write(f"\r{text:<{self.width}}")
            sys.stderr.flush()
            self.width = len(text)

    def close(self) -> None:
        """Take the bar away."""
        if self.handle is not None:
            self.handle.update(_Mark(None))
        elif self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()
        self.handle, self.width = None, 0


class _Mark:
    """What a notebook shows, and stores, of a bar: the same before it and after it."""

    def __init__(self, report: Report | None) -> None:
        self.report = report

    def _repr_mimebundle_(self, **options: object) -> dict[str, str]:
        if self.report is None:
            return {"text/plain": "", "text/html": ""}
        share = self.report.done / self.report.total if self.report.total else None
        value = f' value="{min(share, 1):.3f}"' if share is not None else ""
        bar = f'<progress{value} style="width: 20em; vertical-align: middle"></progress>'
        return {"text/plain": str(self.report), "text/html": f"{bar} {html.escape(str(self.report))}"}
