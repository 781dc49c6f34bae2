"""Data, the training loop, and `python -m tp_teach.train`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tp_teach.train.loop import train

__all__ = ["train"]


def __getattr__(name: str) -> Any:
    # The command answers sooner if the loop is loaded by the ranks alone.
    if name == "train":
        from tp_teach.train.loop import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
