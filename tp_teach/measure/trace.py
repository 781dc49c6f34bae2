"""`timeline`: when a rank computes and when it communicates, from torch.profiler."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from tp_teach.tables import record

COMMUNICATION = ("c10d::", "_c10d_functional::", "_dtensor::", "gloo:", "nccl:", "record_param_comms")
NOISE = ("autograd::engine::evaluate_function: ", "torch::autograd::", "aten::", "torch::")
NCCL_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Z]\w*?)_")

Span = tuple[int, int]
"""Start and end, in nanoseconds since the epoch."""


@contextmanager
def timeline() -> Iterator[None]:
    """Trace what this rank does while the block runs; its rows come home in `Run.timeline`.

    Every rank enters the block: they wait for each other, then begin. A row is one operation as the program calls it
    (a matrix product, one node of the backward, the optimizer's step), not each of the small ones inside. `start` is in
    seconds since the epoch by the machine's clock, which all its ranks share; ranks on several machines are as far
    apart as their clocks, usually some milliseconds under NTP.

    A collective lasts from its start to its end on this rank, waiting for the others included, and takes no time from
    the operation that it was called in. Its row may lie beside compute that went on meanwhile. Gloo runs a
    reduce_scatter as an all_reduce, and so it is named; `launch(…, check=True)` adds collectives of torch's own checks.
    On a GPU the rows are its kernels, named after the operations that launched them.

    The profiler adds some microseconds to each operation: small models look slower than they are.
    """
    # Read when the first profiler starts: without it each trace prints two lines with its date.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    cuda = [ProfilerActivity.CUDA] if torch.cuda.is_initialized() else []
    profiler = profile(activities=[ProfilerActivity.CPU, *cuda])
    profiler.prepare_trace()
    if dist.is_initialized():
        dist.barrier()
    profiler.start_trace()
    try:
        yield
    finally:
        if cuda:
            torch.cuda.synchronize()
        profiler.stop_trace()
    record("timeline", _rows(profiler.profiler.kineto_results.events()))


def _rows(events: Sequence[Any]) -> list[dict]:
    """Rows of the table `timeline` from Kineto's events, in order of their start."""
    cpu = [event for event in events if event.device_type() == torch.autograd.DeviceType.CPU]
    gpu = [event for event in events if event.device_type() == torch.autograd.DeviceType.CUDA]
    kernels = [event for event in gpu if not event.is_user_annotation()]
    rows = [_row(event.name().removeprefix("gloo:"), "collective", _span(event)) for event in cpu if _is_gloo(event)]
    rows += _kernel_rows(kernels, cpu) if kernels else _operation_rows(cpu)
    return sorted(rows, key=lambda row: row["start"])


def _operation_rows(cpu: Sequence[Any]) -> list[dict]:
    """The outermost operations of each thread, without the time that they spent in communication."""
    threads: dict[int, list[Any]] = {}
    for event in cpu:
        if not event.is_async() and not _is_gloo(event):
            threads.setdefault(event.start_thread_id(), []).append(event)
    rows = []
    for events in threads.values():
        talk = _outermost([event for event in events if event.name().startswith(COMMUNICATION)])
        for event in _outermost(events):
            if not event.name().startswith(COMMUNICATION):
                rows += [_row(_short(event.name()), "compute", part) for part in _without(_span(event), talk)]
    return rows


def _kernel_rows(kernels: Sequence[Any], cpu: Sequence[Any]) -> list[dict]:
    """What ran on the GPU, named after the operation of the program that launched it."""
    names = {event.correlation_id(): event.name() for event in cpu}
    rows = []
    for kernel in kernels:
        found = NCCL_KERNEL.search(kernel.name())
        if found:
            name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[1]).lower()
        else:
            name = _short(names.get(kernel.linked_correlation_id(), kernel.name()))
        rows.append(_row(name, "collective" if found else "compute", _span(kernel)))
    return rows


def _outermost(events: Sequence[Any]) -> list[Any]:
    """Events of one thread that lie in no other of them, in order."""
    found: list[Any] = []
    for event in sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns())):
        if not found or _span(event)[1] > _span(found[-1])[1]:
            found.append(event)
    return found


def _without(span: Span, talk: Sequence[Any]) -> list[Span]:
    """The parts of a span outside the communication of its thread."""
    parts, (at, end) = [], span
    first = bisect_right([event.start_ns() for event in talk], at)
    for event in talk[first:]:
        begins, ends = _span(event)
        if begins >= end:
            break
        parts += [(at, begins)] if begins > at else []
        at = ends
    return [*parts, (at, end)] if end > at or not parts else parts


def _row(name: str, kind: str, span: Span) -> dict:
    return {"name": name, "kind": kind, "start": span[0] / 1e9, "seconds": (span[1] - span[0]) / 1e9}


def _span(event: Any) -> Span:
    return event.start_ns(), event.start_ns() + event.duration_ns()


def _is_gloo(event: Any) -> bool:
    return event.name().startswith("gloo:")


def _short(name: str) -> str:
    for noise in NOISE:
        name = name.removeprefix(noise)
    return re.sub(r"^Optimizer\.\w+#", "", name)
