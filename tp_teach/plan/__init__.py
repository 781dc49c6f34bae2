"""`plan`: what a model needs on a machine; `calibrate`: what this machine can do; `python -m tp_teach.plan`.

A room of its own: calibrating starts ranks and measures them, planning is arithmetic of the room predict, which knows
neither. What passes between them is a `Machine`, plain data.
"""

from typing import TYPE_CHECKING, Any

from tp_teach.predict.planner import plan

if TYPE_CHECKING:
    from tp_teach.plan.calibration import calibrate

__all__ = ["calibrate", "plan"]


def __getattr__(name: str) -> Any:
    # Planning needs no torch.
    if name == "calibrate":
        from tp_teach.plan.calibration import calibrate

        return calibrate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
