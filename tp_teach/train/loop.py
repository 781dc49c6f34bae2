"""The training program of one rank. Start it with `tp.launch(tp.train, config, world_size=3)` or under torchrun."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from tp_teach.launch import device as this_device
from tp_teach.launch import progress
from tp_teach.measure import measure
from tp_teach.measure.memory import allocated_rows
from tp_teach.measure.shards import shard_rows
from tp_teach.model.config import TrainConfig
from tp_teach.model.toy import ToyTransformer
from tp_teach.parallel.plans import cut_mlp_blocks
from tp_teach.tables import record, record_config
from tp_teach.train.data import Batch, broadcast_batches, endless_batches

log = logging.getLogger("tp_teach.train")


def train(config: TrainConfig, batches: Iterable[Batch] | None = None) -> float:
    """Train the toy transformer, cut over all ranks; what one rank does. Returns the last loss.

    `batches` replaces the configuration's own data: pairs of int64 tokens (batch_size, seq_len) and labels
    (batch_size,), at least `max_steps` of them; only rank 0's are used. Step 1 (step 0 when it is the only one) is
    measured, so that the optimizer's state is there. Every `log_every` steps, and at the last, loss, gradient norm,
    memory and elapsed seconds are recorded; rank 0 logs them too (logger `tp_teach.train`, level INFO).

    Raises ValueError when `hidden_dim` does not divide by the ranks, TypeError for another configuration.
    """
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config={config!r} is not a TrainConfig; make one with TrainConfig.preset('classroom')")
    world_size, device = dist.get_world_size(), this_device()
    config.check_ranks(world_size)
    record_config(asdict(config))
    model, optimizer = build(config, device, init_device_mesh(device.type, (world_size,), mesh_dim_names=("tp",)))
    _log_summary(config, model)
    if dist.get_rank() == 0:
        batches = batches if batches is not None else endless_batches(config, pin_memory=device.type == "cuda")
    else:
        batches = None
    loss = fit(config, model, optimizer, broadcast_batches(config, batches, device))
    dist.barrier()
    return loss


def build(
    config: TrainConfig, device: torch.device, mesh: DeviceMesh | None
) -> tuple[ToyTransformer, torch.optim.Optimizer]:
    """The model, cut over the mesh (whole if `mesh` is None), and its optimizer."""
    # The same seed on every rank: what is not cut must be equal everywhere.
    torch.manual_seed(config.seed)
    model = ToyTransformer(config).to(device)
    if mesh is not None:
        cut_mlp_blocks(model.layers, mesh)
    # After the cut: an optimizer over the old, whole parameters would train nothing. Without foreach, because a
    # list of plain tensors and DTensors cannot be updated at once.
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, foreach=False)
    return model, optimizer


def fit(config: TrainConfig, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Batch]) -> float:
    """Forward, loss, backward, step, `max_steps` times. Returns the last loss."""
    criterion = nn.CrossEntropyLoss()
    model.train()
    began = time.perf_counter()
    steps = progress(range(config.max_steps))
    for step in steps:
        measured = step == config.measured_step
        with measure(model, optimizer, step=step) if measured else nullcontext():
            tokens, labels = next(batches)
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(tokens), labels)
            loss.backward()
            optimizer.step()
        if step % config.log_every == 0 or step == config.max_steps - 1:
            _record(config, model, step, loss, began, measured)
            steps.note = f"loss {loss.item():.3f}"
    return loss.item()


def grad_norm(model: nn.Module) -> float:
    """The norm of the whole model's gradient, the same number on every rank.

    Cut gradients are summed over the ranks; gradients that every rank holds whole count once.
    """
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    cut = [grad for grad in grads if isinstance(grad, DTensor)]
    whole = [grad for grad in grads if not isinstance(grad, DTensor)]
    norms = [torch.nn.utils.get_total_norm(part, foreach=False) for part in (cut, whole) if part]
    norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    return torch.linalg.vector_norm(torch.stack(norms)).item()


def _record(config: TrainConfig, model: nn.Module, step: int, loss: torch.Tensor, began: float, measured: bool) -> None:
    row = {
        "step": step,
        "loss": loss.item(),
        "grad_norm": grad_norm(model),
        "seconds": time.perf_counter() - began,
        "tokens": (step + 1) * config.batch_size * config.seq_len,
    }
    device = next(model.parameters()).device
    memory = allocated_rows(device, step, "step")
    record("steps", [row])
    if not (measured and device.type == "cuda"):  # there the measurement has written it
        record("memory", memory)
    if _is_rank_0():
        held = ", ".join(f"{row['kind']} {row['bytes'] / 2**20:.1f} MiB" for row in memory)
        log.info("step %d: loss %.4f, %s, %.2f s", step, row["loss"], held, row["seconds"])


def _log_summary(config: TrainConfig, model: nn.Module) -> None:
    if not _is_rank_0() or not log.isEnabledFor(logging.INFO):
        return
    ranks = dist.get_world_size()
    log.info("Tensor-parallel training on %d ranks, all on the same %d samples a step.", ranks, config.batch_size)
    log.info("hidden_dim %d, of which each rank holds %d.", config.hidden_dim, config.hidden_dim // ranks)
    head = ("parameter", "global shape", "local shape", "placement")
    rows = [(r["parameter"], r["global_shape"], r["local_shape"], r["placement"]) for r in shard_rows(model)]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in itertools.chain([head], rows):
        log.info("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _is_rank_0() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0
