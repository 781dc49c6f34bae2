"""Processes: choose devices, start ranks, watch them, bring results home. Knows nothing of models."""

from tp_teach.launch.devices import device
from tp_teach.launch.errors import RankFailed, RanksStuck
from tp_teach.launch.launcher import launch

__all__ = ["RankFailed", "RanksStuck", "device", "launch"]
