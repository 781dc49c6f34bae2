"""Where a rank states: its line of the learner's code, and the call in which it waits for others."""

from __future__ import annotations

import linecache
import os
import sysconfig
import traceback
from dataclasses import dataclass
from types import FrameType
from typing import Literal

import torch

TORCH = os.path.dirname(torch.__file__)
LAUNCH = os.path.dirname(__file__)
# Frames in these folders are never the learner's own line.
NOT_THE_LEARNER = (
    TORCH,
    LAUNCH,
    os.path.join(os.path.dirname(LAUNCH), "measure"),
    os.path.join(os.path.dirname(LAUNCH), "simulate"),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
)
_CALLS = frozenset(
    "all_gather all_gather_into_tensor all_gather_object all_gather_single all_reduce all_to_all all_to_all_single "
    "barrier broadcast broadcast_object_list full_tensor gather gather_object init_device_mesh init_process_group "
    "monitored_barrier new_group new_subgroups recv redistribute reduce reduce_scatter reduce_scatter_tensor scatter "
    "scatter_object_list send split_group wait_tensor".split()
)


@dataclass(frozen=True)
class RankState:
    """`waits_in` is a call with its tensor, or None; `over` says how the function came to its end."""

    rank: int
    line: str
    waits_in: str | None = None
    over: Literal["", "returned", "raised", "ended"] = ""

    @property
    def doing(self) -> str:
        if self.over:
            return f"has {self.over}"
        return f"waits in {self.waits_in}" if self.waits_in else "is elsewhere"

    @property
    def did(self) -> str:
        """The same, looking back."""
        if self.over:
            return "had returned" if self.over == "returned" else f"{self.over} too"
        return f"waited in {self.waits_in}" if self.waits_in else "worked on"


def of_thread(rank: int, frame: FrameType | None) -> RankState:
    """Where a running thread stands, given its innermost frame."""
    return _read(rank, list(traceback.walk_stack(frame))[::-1])


def of_exception(rank: int, error: BaseException, waited: bool) -> RankState:
    """Where an exception was raised; `waited` says that it reports a wait, in whatever call."""
    state = _read(rank, list(traceback.walk_tb(error.__traceback__)))
    if waited and state.waits_in is None:
        # A request that is awaited later, such as `dist.irecv(…).wait()`, has no Python frame of torch's.
        return RankState(rank, state.line, "wait()")
    return state


def _read(rank: int, stack: list[tuple[FrameType, int]]) -> RankState:
    """Read a stack, outermost frame first, with the line that each frame is at."""
    line = ""
    for frame, number in stack:
        filename = frame.f_code.co_filename
        if not filename.startswith(NOT_THE_LEARNER):
            source = linecache.getline(filename, number).strip()
            line = f"{os.path.basename(filename)}, line {number}" + (f": {source}" if source else "")
    return RankState(rank, line, next(filter(None, (_call(frame) for frame, _ in stack)), None))


def _call(frame: FrameType) -> str | None:
    """The call of torch.distributed that this frame is, with the tensor it was given."""
    in_distributed = frame.f_code.co_filename.startswith(os.path.join(TORCH, "distributed"))
    if not in_distributed or frame.f_code.co_name not in _CALLS:
        return None
    tensors = (value for value in list(frame.f_locals.values()) if isinstance(value, torch.Tensor))
    given = next((f" of {tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in tensors), "")
    return frame.f_code.co_name + given
