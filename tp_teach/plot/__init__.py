"""Figures: who holds which shard, which bytes moved, how much memory, how the loss fell, and what the words mean.

Most take a `Run`; `ring` and `matmul` are drawn from arithmetic alone, `wire`, `grid` and `curves` from small tables,
`plan` and `scaling` from what `tp.plan` predicts.
Each returns one matplotlib Figure with alt text. Nothing here imports torch or pyplot.
"""

from tp_teach.plot.comm_bars import comm
from tp_teach.plot.curves_draw import curves
from tp_teach.plot.flow_draw import flow
from tp_teach.plot.heat_map import grid
from tp_teach.plot.loss_curve import loss
from tp_teach.plot.matmul_draw import matmul
from tp_teach.plot.memory_bars import memory
from tp_teach.plot.parity_curves import parity
from tp_teach.plot.plan_bars import plan
from tp_teach.plot.ring_draw import ring
from tp_teach.plot.scaling_draw import scaling
from tp_teach.plot.shard_map import shards
from tp_teach.plot.timeline_lanes import timeline
from tp_teach.plot.wire_bars import wire

__all__ = [
    "comm",
    "curves",
    "flow",
    "grid",
    "loss",
    "matmul",
    "memory",
    "parity",
    "plan",
    "ring",
    "scaling",
    "shards",
    "timeline",
    "wire",
]
