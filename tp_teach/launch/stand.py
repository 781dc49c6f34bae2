"""Where a rank stands: its line of the learner's code, and the collective that it waits in."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
import traceback
from dataclasses import dataclass
from types import FrameType

import torch
import torch.distributed as dist

_TORCH = os.path.dirname(torch.__file__)
_OURS = os.path.dirname(os.path.dirname(__file__))
# Frames in these folders are never the learner's own line.
_NOT_THE_LEARNER = (
    _TORCH,
    os.path.join(_OURS, "launch"),
    os.path.join(_OURS, "measure"),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
)
_WAITED_TOO_LONG = re.compile(r"timed? ?out|monitoredBarrier|watchdog", re.IGNORECASE)
_PEER_IS_GONE = re.compile(
    r"connection (closed|reset|refused)|closed by peer|broken pipe|socket|remote process", re.IGNORECASE
)
_NOT_SHOWN = re.compile(r"Traceback \(most recent call last\):|\s*[~^]+\s*")
_FINGERPRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=\d+, OpType=(\w+)"
    r"(?:, TensorShape=\[([^\]]*)\])?(?:, TensorDtypes=(\w+))?"
)


@dataclass(frozen=True)
class Stand:
    """`waits_in` is a collective with its tensor, or None; `returned` says that the function is over."""

    rank: int
    line: str
    waits_in: str | None = None
    returned: bool = False

    @property
    def doing(self) -> str:
        if self.returned:
            return "has returned"
        return f"waits in {self.waits_in}" if self.waits_in else "is elsewhere"


def of_frames(rank: int, frames: list[FrameType], linenos: list[int]) -> Stand:
    """Read a stack, outermost frame first, with the line each frame is at."""
    line = ""
    for frame, lineno in zip(frames, linenos, strict=True):
        if not frame.f_code.co_filename.startswith(_NOT_THE_LEARNER):
            line = _line(frame.f_code.co_filename, lineno)
    return Stand(rank, line, _collective(frames))


def of_thread(rank: int, frame: FrameType | None) -> Stand:
    """Where a running thread stands, given its innermost frame."""
    pairs = list(traceback.walk_stack(frame))[::-1]
    return of_frames(rank, [f for f, _ in pairs], [n for _, n in pairs])


def of_exception(rank: int, error: BaseException) -> Stand:
    """Where an exception was raised."""
    pairs = list(traceback.walk_tb(error.__traceback__))
    return of_frames(rank, [f for f, _ in pairs], [n for _, n in pairs])


def waited_too_long(error: BaseException) -> bool:
    """Whether this is torch.distributed's own report of a timeout."""
    return _from_distributed(error) and bool(_WAITED_TOO_LONG.search(str(error)))


def lost_a_peer(error: BaseException) -> bool:
    """Whether this is torch.distributed's report that another rank is gone: noise, not a cause."""
    return _from_distributed(error) and bool(_PEER_IS_GONE.search(str(error)))


def own_lines(error: BaseException) -> str:
    """The traceback of an exception, cut to the learner's own lines, chained exceptions included."""
    report = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = report
    while part is not None:
        mine = [frame for frame in part.stack if not frame.filename.startswith(_NOT_THE_LEARNER)]
        part.stack = traceback.StackSummary.from_list(mine or part.stack)
        part = part.__cause__ or part.__context__
    lines = "".join(report.format()).rstrip().splitlines()
    # The launcher's first line has said what was raised.
    said = len("".join(report.format_exception_only()).rstrip().splitlines())
    lines = lines[: len(lines) - said]
    # Python 3.10 draws no carets, and later versions draw them differently.
    return "\n".join(line.rstrip() for line in lines if not _NOT_SHOWN.fullmatch(line))


def reason(error: BaseException) -> str:
    """The exception's text; torch's report of collectives that differ, in short."""
    text = str(error).strip()
    if text.startswith("Detected mismatch between collectives"):
        sides = _FINGERPRINT.findall(text)
        said = ", ".join(
            f"rank {rank} calls {op.lower()} of [{shape}] {dtype}".rstrip() for rank, op, shape, dtype in sides
        )
        return f"the ranks call different collectives: {said}" if said else text
    return text


def _from_distributed(error: BaseException) -> bool:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and bool(frames) and frames[-1].f_code.co_filename.startswith(_TORCH)
    )


def _line(filename: str, lineno: int) -> str:
    source = linecache.getline(filename, lineno).strip()
    return f"{os.path.basename(filename)}, line {lineno}: {source}".rstrip(": ")


def _collective(frames: list[FrameType]) -> str | None:
    for frame in frames:
        name, folder = frame.f_code.co_name, frame.f_code.co_filename
        if folder.startswith(os.path.join(_TORCH, "distributed")) and name in _COLLECTIVES:
            return f"{name}{_tensor_of(frame)}"
    return None


_COLLECTIVES = frozenset(
    "all_gather all_gather_into_tensor all_gather_object all_gather_single all_reduce all_to_all all_to_all_single "
    "barrier broadcast broadcast_object_list gather gather_object init_process_group monitored_barrier recv reduce "
    "reduce_scatter reduce_scatter_tensor scatter scatter_object_list send wait_tensor full_tensor redistribute".split()
)


def _tensor_of(frame: FrameType) -> str:
    for value in list(frame.f_locals.values()):
        if isinstance(value, torch.Tensor):
            return f" of {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return ""
