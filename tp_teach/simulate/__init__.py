"""The same rank function as in a launch, in a world of any size, with no hardware and no numbers."""

from tp_teach.simulate.entry import simulate

__all__ = ["simulate"]
