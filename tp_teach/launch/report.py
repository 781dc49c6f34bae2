"""What an exception on a rank means, in few words and the learner's own lines."""

from __future__ import annotations

import re
import traceback
from typing import Literal

import torch.distributed as dist

from tp_teach.launch.state import LAUNCH, NOT_THE_LEARNER, TORCH

_WAITED_TOO_LONG = re.compile(r"timed? ?out|monitoredBarrier|watchdog", re.IGNORECASE)
_PEER_IS_GONE = re.compile(
    r"connection (closed|reset|refused)|closed by peer|broken pipe|socket|remote process", re.IGNORECASE
)
_NATIVE = re.compile(r"gloo/|ProcessGroup|Timed out waiting \d+ms")
# Python 3.10 draws no carets, and later versions draw them differently.
_NOT_SHOWN = re.compile(r"[ |+-]*(Exception Group )?Traceback \(most recent call last\):|[ |]*[~^]+\s*")
_FINGERPRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=\d+(?:, )?OpType=(\w+)"
    r"(?:, TensorShape=\[([^\]]*)\])?(?:, TensorDtypes=(\w+))?"
)
MOST_FRAMES = 12
"""Own lines shown of one traceback, half from its beginning and half from its end."""


def kind(error: BaseException) -> Literal["error", "timeout", "peer"]:
    """Whether a rank failed by itself, waited too long for others, or lost a peer that is gone."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    text = text_of(error)
    in_torch = bool(frames) and frames[-1].f_code.co_filename.startswith(TORCH)
    if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and (in_torch or _NATIVE.search(text))):
        if _WAITED_TOO_LONG.search(text):
            return "timeout"
        if _PEER_IS_GONE.search(text):
            return "peer"
    return "error"


def text_of(error: BaseException) -> str:
    """The exception's text, or a word in its place if it cannot say it."""
    try:
        return str(error).strip()
    except Exception:
        return "(its text cannot be shown)"


def reason(error: BaseException) -> str:
    """The exception's text; torch's report of collectives that differ, in short."""
    text = text_of(error)
    return different_calls(dict(_sides(text))) if _sides(text) else text


def own_call(error: BaseException) -> str:
    """The collective of the rank itself, in words, where the error is torch's report of collectives that differ.

    torch 2.13 misreads the name of the other side's when one of the two has no tensor, as a barrier has none.
    """
    return _sides(text_of(error))[0][1] if _sides(text_of(error)) else ""


def different_calls(calls: dict[int, str]) -> str:
    """`calls[r]` is the collective of rank r in words, as far as it is known."""
    said = ", ".join(f"rank {rank} calls {call}" for rank, call in sorted(calls.items()))
    return f"the ranks call different collectives: {said}"


def _sides(text: str) -> list[tuple[int, str]]:
    if not text.startswith("Detected mismatch between collectives"):
        return []
    return [(int(rank), _in_words(op, shape, dtype)) for rank, op, shape, dtype in _FINGERPRINT.findall(text)]


def _in_words(op: str, shape: str, dtype: str) -> str:
    """torch's `ALLREDUCE`, `3, 4` and `Float` as `all_reduce of (3, 4) float32`."""
    name = op.lower().strip("_").removesuffix("_base")
    for run_together, apart in (("allreduce", "all_reduce"), ("allgather", "all_gather"), ("alltoall", "all_to_all")):
        name = name.replace(run_together, apart)
    if not shape:
        return name
    sizes = shape if "," in shape else f"{shape},"
    dtypes = {"Float": "float32", "Double": "float64", "Half": "float16", "Long": "int64", "Int": "int32"}
    return f"{name} of ({sizes}) {dtypes.get(dtype, dtype.lower())}"


def own_lines(error: BaseException) -> str:
    """The traceback of an exception, cut to the learner's own lines, with chained exceptions and notes."""
    report = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = report
    while part is not None:
        part.stack = _cut(part.stack)
        part = part.__cause__ or part.__context__
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    lines = "".join(report.format()).rstrip().splitlines()
    # The first line of the message has said what was raised.
    said = len("".join(report.format_exception_only()).rstrip().splitlines())
    lines = lines[: max(0, len(lines) - said)]
    return "\n".join([line.rstrip() for line in lines if not _NOT_SHOWN.fullmatch(line)] + notes)


def _cut(stack: traceback.StackSummary) -> traceback.StackSummary:
    mine = [frame for frame in stack if not frame.filename.startswith(NOT_THE_LEARNER)]
    mine = mine or [frame for frame in stack if not frame.filename.startswith(LAUNCH)]
    if len(mine) > MOST_FRAMES:
        half = MOST_FRAMES // 2
        left_out = traceback.FrameSummary("…", 0, f"{len(mine) - MOST_FRAMES} calls left out", line="")
        mine = [*mine[:half], left_out, *mine[-half:]]
    return traceback.StackSummary.from_list(mine)
