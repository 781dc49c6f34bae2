"""Learn tensor parallelism by running it: `import tp_teach as tp`."""

from importlib import import_module
from typing import Any

from tp_teach.launch import RankFailed, RanksStuck, device, launch
from tp_teach.lesson import check
from tp_teach.measure import measure
from tp_teach.model.config import TrainConfig
from tp_teach.predict import predict
from tp_teach.train import train

__all__ = [
    "RankFailed",
    "RanksStuck",
    "Run",
    "TrainConfig",
    "check",
    "device",
    "launch",
    "load",
    "measure",
    "plot",
    "predict",
    "train",
]


def __getattr__(name: str) -> Any:
    # pandas and matplotlib wait until a table or a figure is wanted; a rank never wants them.
    if name in ("Run", "load"):
        return getattr(import_module("tp_teach.run"), name)
    if name == "plot":
        return import_module("tp_teach.plot")
    raise AttributeError(f"module 'tp_teach' has no attribute {name!r}")
