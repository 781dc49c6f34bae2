"""Whether this rank is simulated. Then its tensors are torch's fake ones, and memory is what they would take."""

from __future__ import annotations

import sys

import torch.distributed as dist
from torch.distributed.tensor._sharding_prop import ShardingPropagator


def simulated() -> bool:
    """Whether this rank's world is simulated by `tp.simulate`: nothing is sent, and tensors have no numbers."""
    return dist.is_initialized() and dist.get_backend() == "fake"


def tries_shapes() -> bool:
    """Whether DTensor only tries an operation, on whole fake tensors, to learn the shape of its result."""
    # A simulated model is fake too, so the caller decides.
    frame = sys._getframe()
    while frame is not None and frame.f_code is not _TRIES:
        frame = frame.f_back
    return frame is not None


_TRIES = ShardingPropagator._propagate_tensor_meta_non_cached.__code__
