"""What one rank really did: shards, collectives, memory, time; and whether what it holds is right."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tp_teach.measure import verify as verify
    from tp_teach.measure.differences import parity
    from tp_teach.measure.loopback import wire
    from tp_teach.measure.step import measure
    from tp_teach.measure.trace import timeline

__all__ = ["measure", "parity", "timeline", "verify", "wire"]

# A rank starts sooner if it loads only what its function needs: parity brings pandas, timeline the profiler.
_HOMES = {"measure": "step", "parity": "differences", "timeline": "trace", "wire": "loopback"}


def __getattr__(name: str) -> Any:
    if name == "verify":
        return import_module("tp_teach.measure.verify")
    if name in _HOMES:
        return getattr(import_module(f"tp_teach.measure.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
