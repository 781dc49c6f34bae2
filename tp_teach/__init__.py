"""Learn tensor parallelism by running it: `import tp_teach as tp`."""

import sys as _sys
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from tp_teach import plot as plot
    from tp_teach.launch import RankFailed, RanksStuck, device, launch, progress, ranks
    from tp_teach.lesson import check
    from tp_teach.lesson import explore as explore
    from tp_teach.measure import measure, parity, timeline, verify, wire
    from tp_teach.model.config import TrainConfig
    from tp_teach.plan import calibrate, plan
    from tp_teach.predict import predict
    from tp_teach.run import Run, load
    from tp_teach.simulate import simulate
    from tp_teach.train import train

# Where each public name lives. It is imported when it is first used: a rank starts sooner if it loads only what its
# function needs, and pandas and matplotlib wait for the first table and figure.
_HOMES = {
    "RankFailed": "launch",
    "RanksStuck": "launch",
    "Run": "run",
    "TrainConfig": "model.config",
    "calibrate": "plan",
    "check": "lesson",
    "device": "launch",
    "explore": "lesson.explore",
    "launch": "launch",
    "load": "run",
    "measure": "measure",
    "parity": "measure",
    "plan": "plan",
    "plot": "plot",
    "predict": "predict",
    "progress": "launch",
    "ranks": "launch",
    "simulate": "simulate",
    "timeline": "measure",
    "train": "train",
    "verify": "measure",
    "wire": "measure",
}

__all__ = [
    "RankFailed",
    "RanksStuck",
    "Run",
    "TrainConfig",
    "calibrate",
    "check",
    "device",
    "explore",
    "launch",
    "load",
    "measure",
    "parity",
    "plan",
    "plot",
    "predict",
    "progress",
    "ranks",
    "simulate",
    "timeline",
    "train",
    "verify",
    "wire",
]


class _Package(_ModuleType):
    """Python sets a package's attribute `launch` to the module when it loads `tp_teach.launch`.

    Here `launch`, `train`, `measure`, `plan` and `predict` are the functions of that name: the public names are kept.
    """

    def __getattribute__(self, name: str) -> _Any:
        homes = super().__getattribute__("_HOMES")
        if name not in homes:
            return super().__getattribute__(name)
        home = _import_module(f"tp_teach.{homes[name]}")
        return home if name in ("explore", "plot") else getattr(home, name)

    def __reduce__(self) -> tuple:
        return _import_module, ("tp_teach",)  # functions of a notebook that mention tp travel by this

    def __dir__(self) -> list[str]:
        return sorted(_HOMES)


_sys.modules[__name__].__class__ = _Package

if "ipykernel" in _sys.modules:
    _import_module("tp_teach.launch")  # which starts to warm up
