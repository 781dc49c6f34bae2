"""The training program of one rank. Start it with `tp.launch(tp.train, config, world_size=3)` or under torchrun."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from tp_teach.launch import device as this_device
from tp_teach.launch import progress
from tp_teach.measure import measure
from tp_teach.measure.simulated import simulated
from tp_teach.model.config import TrainConfig
from tp_teach.tables import record_config
from tp_teach.train.build import build, data_mesh, make_mesh
from tp_teach.train.checkpoint import load, newest, save
from tp_teach.train.checks import check_compiler, check_model
from tp_teach.train.data import Batch, broadcast_batches, endless_batches, share
from tp_teach.train.gradients import clip, grad_norm
from tp_teach.train.log import log_summary, record_step


def train(
    config: TrainConfig, batches: Iterable[Batch] | None = None, checkpoint: str | os.PathLike | None = None
) -> float:
    """Train the configuration's model, cut over all ranks; what one rank does. Returns the last loss.

    `batches` replaces the configuration's own data: pairs of int64 tokens (batch_size, seq_len) and labels, which are
    (batch_size,) for the toy and (batch_size, seq_len) for the decoder, at least `max_steps` of them; only rank 0's are
    used. Step 1 (step 0 when it is the only one) is measured, so that the optimizer's state is there. Every `log_every`
    steps, and at the last, the loss of the whole batch, the gradient norm (before it is clipped), memory and elapsed
    seconds are recorded; rank 0 logs them too (logger `tp_teach.train`, level INFO).

    In a simulation (`tp.simulate`) there are no numbers: training ends after the measured step, and losses are NaN.

    `checkpoint` is a folder that all ranks can reach. Whenever a step is recorded, model and optimizer are saved there;
    if it holds some already, from any number of ranks, training goes on after them, with the batches that follow.

    Raises ValueError for sizes that do not divide by the ranks, for a checkpoint that does not fit, and for a model
    that is wrong before its first step; TypeError for another configuration; RuntimeError where `compile` finds no
    compiler.
    """
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config={config!r} is not a TrainConfig; make one with TrainConfig.preset('classroom')")
    device = this_device()
    if simulated() and checkpoint is not None:
        raise ValueError(f"checkpoint={os.fspath(checkpoint)!r}: a simulation has no numbers to save; leave it out")
    if not simulated():
        check_compiler(config, device)
    start = first_step(config, checkpoint)
    mesh = make_mesh(config, device)
    record_config(asdict(config))
    model, optimizer = build(config, device, mesh)
    if start:
        load(checkpoint, config, model, optimizer)
    if not simulated():
        check_model(model, optimizer)
    log_summary(config, model)
    if dist.get_rank() == 0 and not simulated():
        batches = batches if batches is not None else endless_batches(config, pin_memory=device.type == "cuda")
    else:
        batches = None
    loss = fit(config, model, optimizer, broadcast_batches(config, batches, device, start), mesh, start, checkpoint)
    dist.barrier()
    return loss


def fit(
    config: TrainConfig,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Batch],
    mesh: DeviceMesh | None = None,
    start: int = 0,
    checkpoint: str | os.PathLike | None = None,
) -> float:
    """Forward, loss, backward, step, from step `start` to `max_steps`. Returns the last loss."""
    dp = data_mesh(mesh)
    model.train()
    began = time.perf_counter()
    to_measure = max(start, config.measured_step)
    stop = to_measure + 1 if simulated() else config.max_steps
    steps = progress(range(start, stop))
    for step in steps:
        measured = step == to_measure
        with _watch(config, model, optimizer, step) if measured else nullcontext():
            batch = next(batches)
            optimizer.zero_grad(set_to_none=True)
            mine = share(config, batch, group=dp.get_local_rank() if dp is not None else 0)
            losses = [forward_backward(config, model, tokens, labels) for tokens, labels in mine]
            norm = clip(model, config.clip) if config.clip is not None else None
            optimizer.step()
        if step % config.log_every == 0 or step == stop - 1:
            loss = _mean(losses, dp)
            norm = norm if norm is not None else grad_norm(model)
            seconds, tokens = time.perf_counter() - began, (step + 1) * config.batch_size * config.seq_len
            row = {"step": step, "loss": loss, "grad_norm": _number(norm), "seconds": seconds, "tokens": tokens}
            record_step(row, norm.device, measured)
            steps.note = f"loss {loss:.3f}"
            if checkpoint is not None:
                save(checkpoint, config, model, optimizer, step + 1)
    return loss


def forward_backward(config: TrainConfig, model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Add the gradients of one micro-batch. Returns its share of the loss.

    The loss is the cross entropy, mean over the samples (toy) or over all their tokens (decoder).
    """
    # The loss of logits that are cut along the vocabulary needs this for its backward too.
    with loss_parallel() if config.loss_parallel else nullcontext():
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=config.autocast):
            logits = model(tokens)
            if logits.dtype == torch.bfloat16:
                logits = logits.float()
            loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
            if config.accumulate > 1:
                loss = loss / config.accumulate
        loss.backward()
    loss = loss.detach()
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


@contextmanager
def _watch(config: TrainConfig, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Iterator[None]:
    """`measure`, with compiled blocks run as they are written: a measurement looks at each operation in turn."""
    eager = torch.compiler.set_stance("force_eager") if config.compile else nullcontext()
    with eager, measure(model, optimizer, step=step):
        yield


def first_step(config: TrainConfig, checkpoint: str | os.PathLike | None) -> int:
    """The step that training begins with: 0, or how many the newest checkpoint has behind it.

    Raises ValueError when that leaves nothing to train, and when the folder holds something else.
    """
    start = newest(checkpoint) or 0 if checkpoint is not None else 0
    if start >= config.max_steps:
        raise ValueError(
            f"checkpoint={os.fspath(checkpoint)!r} has {start} steps behind it; use max_steps={start + 1} or more"
        )
    return start


def _mean(losses: list[torch.Tensor], dp: DeviceMesh | None) -> float:
    """The loss of the whole batch: micro-batches are summed, data-parallel groups averaged."""
    loss = torch.stack(losses).sum()
    if dp is not None:
        dist.all_reduce(loss, group=dp.get_group())
        loss = loss / dp.size()
    return _number(loss)


def _number(tensor: torch.Tensor) -> float:
    return float("nan") if simulated() else tensor.item()
