"""What training writes down: rows of the tables `steps` and `memory`, and rank 0's lines."""

from __future__ import annotations

import itertools
import logging

import torch
import torch.distributed as dist
from torch import nn

from tp_teach.measure.memory import allocated_rows
from tp_teach.measure.shards import shard_rows
from tp_teach.measure.simulated import simulated
from tp_teach.model.config import TrainConfig
from tp_teach.tables import record

log = logging.getLogger("tp_teach.train")


def record_step(row: dict, device: torch.device, measured: bool) -> None:
    """Write one row of `steps`, and what the allocator holds; rank 0 says it in a line."""
    memory = allocated_rows(device, row["step"], "step")
    record("steps", [row])
    if not (measured and device.type == "cuda"):  # there the measurement has written it
        record("memory", memory)
    if is_rank_0() and not simulated():
        held = ", ".join(f"{part['kind']} {part['bytes'] / 2**20:.1f} MiB" for part in memory)
        log.info("step %d: loss %.4f, %s, %.2f s", row["step"], row["loss"], held, row["seconds"])


def log_summary(config: TrainConfig, model: nn.Module) -> None:
    """What is trained, and who holds which part of it: in rank 0's log."""
    if not is_rank_0() or not log.isEnabledFor(logging.INFO):
        return
    ranks = dist.get_world_size() // config.data_parallel
    if config.data_parallel == 1:
        log.info("Tensor-parallel training on %d ranks, all on the same %d samples a step.", ranks, config.batch_size)
    else:
        words = "%d data-parallel groups (%s) of %d tensor-parallel ranks; each group has %d of the %d samples a step."
        groups, part = config.data_parallel, config.batch_size // config.data_parallel
        log.info(words, groups, config.data_parallel_kind, ranks, part, config.batch_size)
    log.info("hidden_dim %d, of which each rank holds %d.", config.hidden_dim, config.hidden_dim // ranks)
    head = ("parameter", "global shape", "local shape", "placement")
    rows = [(r["parameter"], r["global_shape"], r["local_shape"], r["placement"]) for r in shard_rows(model)]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in itertools.chain([head], rows):
        log.info("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def is_rank_0() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0
