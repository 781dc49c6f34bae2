"""Cross-entropy from logits that are cut along the vocabulary: no rank ever holds a whole row of them."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from tp_teach.parallel.by_hand import owned_elsewhere
from tp_teach.parallel.regions import all_reduced, own_part


def vocab_parallel_cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    group: dist.ProcessGroup,
    *,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> torch.Tensor:
    """`torch.nn.functional.cross_entropy` over the last dimension (Shoeybi et al. 2019, section 3, "output embedding").

        logits (…, vocab)
        ┌───┬───┬───┐
        │ 0 │ 1 │ 2 │ rank        each rank holds (…, vocab / ranks)
        └───┴───┴───┘

    `targets` (…), class numbers of the whole vocabulary, and `weight` (vocab) are the same on all ranks. Forward: the
    largest logit is found and subtracted, then the sum of exponentials and the target's logit are added up: three
    all-reduces of one number a token, four with label smoothing. Backward: no collective, because each rank knows the
    softmax of its own part. The loss is the same on all ranks; it is in float32 for logits of lower precision.

    A target outside the vocabulary that is not `ignore_index` raises RuntimeError on every rank. Raises ValueError
    for targets of another shape or of probabilities, for a weight of another size, and for options out of range.
    """
    vocab = logits.shape[-1] * group.size()
    _check(logits, targets, weight, vocab, label_smoothing, reduction)
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    kept = targets != ignore_index
    targets = targets.masked_fill(~kept, 0)  # any class will do: its loss is set to zero
    if weight is not None:
        weight = weight.detach().to(logits.dtype)
    losses = _CrossEntropy.apply(logits, targets, kept, weight, label_smoothing, group)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / _scale(targets, kept, weight, logits.dtype).sum()


class _CrossEntropy(torch.autograd.Function):
    """One loss a token; zero where a token is not kept."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        targets: torch.Tensor,
        kept: torch.Tensor,
        weight: torch.Tensor | None,
        smoothing: float,
        group: dist.ProcessGroup,
    ) -> torch.Tensor:
        count = logits.shape[-1]
        start, vocab = group.rank() * count, count * group.size()
        elsewhere = owned_elsewhere(targets, start, count, vocab)
        index = (targets - start).masked_fill(elsewhere, 0).unsqueeze(-1)

        top = all_reduced(logits.amax(-1), group, dist.ReduceOp.MAX)
        softmax = logits - top.unsqueeze(-1)
        target = all_reduced(softmax.gather(-1, index).squeeze(-1).masked_fill(elsewhere, 0), group)
        own = None if weight is None else own_part(weight, group, 0)
        if smoothing:
            everywhere = all_reduced((softmax if own is None else softmax * own).sum(-1), group)
        total = all_reduced(softmax.exp_().sum(-1), group)
        softmax /= total.unsqueeze(-1)

        # loss = a (log total - target) + b sum over classes of weight (log total - logit)
        a = (1 - smoothing) * _scale(targets, kept, weight, logits.dtype)
        loss = a * (total.log() - target)
        b, weights = smoothing / vocab * kept.to(logits.dtype), vocab if weight is None else weight.sum()
        if smoothing:
            loss += b * (weights * total.log() - everywhere)
        ctx.save_for_backward(softmax, index, elsewhere, kept, a, b, own)
        ctx.weights = weights
        return loss.masked_fill(~kept, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        softmax, index, elsewhere, kept, a, b, own = ctx.saved_tensors
        # The mean over no token at all hands down an infinite gradient, which times zero would be no number.
        grad = grad.masked_fill(~kept, 0)
        a, b = (grad * a).unsqueeze(-1), (grad * b).unsqueeze(-1)
        of_logits = (a + b * ctx.weights) * softmax
        of_logits -= b if own is None else b * own
        of_logits.scatter_add_(-1, index, -a.masked_fill(elsewhere.unsqueeze(-1), 0))
        return of_logits, None, None, None, None, None


def _scale(targets: torch.Tensor, kept: torch.Tensor, weight: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """The weight of each token's class, zero where a token is not kept."""
    return kept.to(dtype) if weight is None else kept * weight[targets]


def _check(
    logits: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor | None,
    vocab: int,
    smoothing: float,
    reduction: str,
) -> None:
    if targets.dtype.is_floating_point:
        raise ValueError(f"targets are {targets.dtype}; use class numbers (torch.int64), not probabilities")
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit logits of shape {tuple(logits.shape)}; "
            f"use targets of shape {tuple(logits.shape[:-1])}"
        )
    if weight is not None and weight.shape != (vocab,):
        raise ValueError(f"weight of shape {tuple(weight.shape)} does not fit {vocab} classes; use shape ({vocab},)")
    if not 0 <= smoothing <= 1:
        raise ValueError(f"label_smoothing={smoothing} does not work; use a number from 0 to 1, such as 0.1")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction={reduction!r} is not known; use 'mean', 'sum' or 'none'")
