"""The exercises of notebook 03: the solution passes, and typical wrong answers get the hint that helps."""

import pytest
import torch
import torch.distributed as dist

from tp_teach.lesson.check import verdict


def summed(x):
    total = x.detach().clone()
    dist.all_reduce(total)
    return total


def nothing(x):
    return x


def hook_f(x):
    y = x.view_as(x)
    y.register_hook(summed)
    return y


def straight_through_g(x):
    return x + (summed(x) - x.detach())


def forward_f(x):
    return straight_through_g(x)


def hook_on_x(x):
    x.register_hook(summed)
    return x


class InPlaceF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        dist.all_reduce(grad)
        return grad


class InPlaceG(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class DirtyG(InPlaceG):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        ctx.mark_dirty(x)
        return x


class LateCopy(InPlaceG):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x.clone()


class CopyG(InPlaceG):
    @staticmethod
    def forward(ctx, x):
        return summed(x)


class SumsTwice(CopyG):
    @staticmethod
    def backward(ctx, grad):
        return summed(grad)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((hook_f, straight_through_g), "ok: f costs 1 all-reduce, g 1 all-reduce; the target is one each"),
        ((nothing, straight_through_g), "this rank's own gradient"),
        ((forward_f, straight_through_g), "f changes its input in the forward pass"),
        ((hook_on_x, straight_through_g), "residual branch"),
        ((InPlaceF.apply, straight_through_g), "sum a copy"),
        ((hook_f, nothing), "where the sum of the ranks is [10.0, 6.0, 10.0, 2.0]"),
        ((hook_f, SumsTwice.apply), "3 copies of one gradient"),
        ((hook_f, InPlaceG.apply), "g writes the sum into its input"),
        ((hook_f, summed), "does not require grad"),
        (hook_f, "a pair of functions"),
    ],
)
def test_f_and_g(answer, says):
    said = verdict("f-and-g", answer)
    assert says in said and said.startswith("ok") == says.startswith("ok")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (CopyG.apply, "ok: right after ReLU too"),
        (DirtyG.apply, "ok: no copy"),
        (InPlaceG.apply, "g writes the sum into its input"),
        (LateCopy.apply, "g writes the sum into its input"),
        (SumsTwice.apply, "after a linear it gives"),
        (CopyG, "pass `.apply`"),
    ],
)
def test_safe_g(answer, says):
    said = verdict("safe-g", answer)
    assert says in said and said.startswith("ok") == says.startswith("ok")
