"""Data, the training loop, and `python -m tp_teach.train`."""

from tp_teach.train.loop import train

__all__ = ["train"]
