"""Figures from a `Run`: who holds which shard, which bytes moved, how much memory, how the loss fell.

Each function takes a `Run` and returns one matplotlib Figure with alt text. Nothing here imports torch
or pyplot.
"""

from tp_teach.plot.comm_bars import comm
from tp_teach.plot.loss_curve import loss
from tp_teach.plot.memory_bars import memory
from tp_teach.plot.shard_map import shards

__all__ = ["comm", "loss", "memory", "shards"]
