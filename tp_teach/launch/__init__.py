"""Processes: choose devices, start ranks, watch them, bring results home. Knows nothing of models."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tp_teach.launch import server

if TYPE_CHECKING:
    from tp_teach.launch.bar import progress
    from tp_teach.launch.devices import device
    from tp_teach.launch.errors import RankFailed, RanksStuck
    from tp_teach.launch.launcher import launch, ranks

__all__ = ["RankFailed", "RanksStuck", "device", "launch", "progress", "ranks"]

# In a notebook a launch will come. The server imports torch while the reader reads.
if "ipykernel" in sys.modules:
    server.warm()


def __getattr__(name: str) -> Any:
    # A rank needs the worker alone: it starts sooner if the launcher is not loaded with it.
    homes = {"device": "devices", "RankFailed": "errors", "RanksStuck": "errors", "progress": "bar"}
    if name in __all__:
        return getattr(import_module(f"tp_teach.launch.{homes.get(name, 'launcher')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
