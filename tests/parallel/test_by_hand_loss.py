"""The loss from logits that are cut along the vocabulary, against torch's own from whole ones."""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional as F

import tp_teach as tp
from tp_teach.parallel.by_hand_loss import vocab_parallel_cross_entropy

VOCAB = 12


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(request):
    with tp.ranks(world_size=request.param, check=False, show="none") as these:
        yield these


def own(whole: torch.Tensor) -> torch.Tensor:
    return whole.chunk(dist.get_world_size(), -1)[dist.get_rank()]


def sample(shape: tuple[int, ...], size: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, targets and class weights. Tokens 0 and 3 are among the targets."""
    random = torch.Generator().manual_seed(1)
    logits = size * torch.randn(*shape, VOCAB, generator=random, dtype=torch.float64)
    targets = torch.randint(VOCAB, shape, generator=random)
    targets.view(-1)[:2] = torch.tensor([0, 3])
    return logits, targets, torch.rand(VOCAB, generator=random, dtype=torch.float64) + 0.5


OPTIONS = [
    dict(reduction=reduction, label_smoothing=smoothing, weight=weighted, ignore_index=ignored)
    for reduction in ("mean", "sum", "none")
    for smoothing in (0.0, 0.1)
    for weighted in (False, True)
    for ignored in (-100, 3, "every target")
]


def compare(size: float) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Loss and this rank's gradient of it, cut and whole, for every combination of options."""
    logits, targets, weight = sample((2, 5), size)
    found = []
    for chosen in OPTIONS:
        options = chosen | {"weight": weight if chosen["weight"] else None}
        aims = targets
        if options["ignore_index"] == "every target":
            aims, options["ignore_index"] = torch.full_like(targets, 5), 5
        whole, mine = logits.clone().requires_grad_(), own(logits).clone().requires_grad_()
        wanted = F.cross_entropy(whole.view(-1, VOCAB), aims.view(-1), **options)
        got = vocab_parallel_cross_entropy(mine, aims, dist.group.WORLD, **options)
        assert got.shape == ((2, 5) if options["reduction"] == "none" else ())
        upstream = torch.linspace(1, 2, wanted.numel(), dtype=torch.float64).view(wanted.shape)
        wanted.backward(upstream)
        got.backward(upstream.view(got.shape))
        assert torch.equal(mine, own(logits)), "the logits were changed in place"
        found += [(f"loss, {chosen}", got.detach().view(-1), wanted.detach().view(-1))]
        found += [(f"gradient, {chosen}", mine.grad, own(whole.grad))]
    return found


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_loss_and_gradient_are_those_of_whole_logits(ranks, size):
    for found in ranks.launch(compare, size):
        assert len(found) == 2 * len(OPTIONS)
        for name, got, wanted in found:
            # The mean over no token is not a number, in torch as here.
            assert not wanted.isnan().any() or "mean" in name and "every target" in name, name
            torch.testing.assert_close(
                got, wanted, rtol=1e-12, atol=1e-12, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
            )


def other_numbers() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Strided logits, logits of minus infinity, and low precision."""
    logits, targets, _ = sample((2, 5), 1.0)
    banned = logits.clone()
    banned[..., 7] = -torch.inf
    found = []
    for whole, mine in [
        (logits, own(logits).transpose(0, 1).contiguous().transpose(0, 1)),
        (banned, own(banned)),
        (logits.bfloat16(), own(logits.bfloat16())),
    ]:
        aims = targets.masked_fill(targets == 7, 8)
        whole, mine = whole.clone().requires_grad_(), mine.detach().requires_grad_()
        wanted = F.cross_entropy(whole.view(-1, VOCAB), aims.view(-1))
        got = vocab_parallel_cross_entropy(mine, aims, dist.group.WORLD)
        wanted.backward(), got.backward()
        found += [(got.detach(), wanted.detach()), (mine.grad, own(whole.grad))]
    return found


def test_strides_infinities_and_low_precision(ranks):
    for *found, low, low_grad in ranks.launch(other_numbers):
        for got, wanted in found:
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
        assert low[0].dtype == torch.float32
        # torch rounds the loss to bfloat16 at the end, and its gradient from a bfloat16 log-softmax: 8 bits.
        torch.testing.assert_close(low[0], low[1].float(), rtol=2**-8, atol=0)
        assert low_grad[0].dtype == torch.bfloat16
        torch.testing.assert_close(*low_grad, rtol=2**-6, atol=2**-10)


class Loss(nn.Module):
    def __init__(self, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return vocab_parallel_cross_entropy(logits, targets, dist.group.WORLD, label_smoothing=self.smoothing)


def count() -> None:
    logits, targets, _ = sample((2, 5), 1.0)
    for step, smoothing in enumerate((0.0, 0.1)):
        model = Loss(smoothing)
        with tp.measure(model, step=step):
            model(own(logits).clone().requires_grad_(), targets).backward()
    cut = distribute_tensor(logits, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(2)]).requires_grad_()
    with tp.measure(nn.Identity(), step=2), loss_parallel():
        F.cross_entropy(cut.flatten(0, 1), targets.flatten()).backward()


def test_three_small_all_reduces_forward_none_backward_as_dtensor_does():
    comm = tp.launch(count, world_size=2).comm
    for rank, step in itertools.product(range(2), range(3)):
        rows = comm[(comm["rank"] == rank) & (comm["step"] == step)]
        assert rows[["op", "payload_bytes"]].values.tolist() == [["all_reduce", 2 * 5 * 8]] * (4 if step == 1 else 3)
        assert "backward" not in set(rows["phase"])


def refuse() -> list[str]:
    logits, group, errors = torch.zeros(2, 3), dist.group.WORLD, []
    right = torch.tensor([0, 5])
    for targets, options in [
        (torch.zeros(2, 3), {}),
        (torch.zeros(3, dtype=torch.int64), {}),
        (right, {"weight": torch.ones(3)}),
        (right, {"label_smoothing": 1.5}),
        (right, {"reduction": "max"}),
        (torch.tensor([0, 6]), {}),
        (torch.tensor([0, -1]), {}),
    ]:
        try:
            vocab_parallel_cross_entropy(logits, targets, group, **options)
        except (ValueError, RuntimeError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    return errors


def test_refusals_on_every_rank():
    wanted = [
        "ValueError: targets are torch.float32; use class numbers (torch.int64), not probabilities",
        "ValueError: targets of shape (3,) do not fit logits of shape (2, 3); use targets of shape (2,)",
        "ValueError: weight of shape (3,) does not fit 6 classes; use shape (6,)",
        "ValueError: label_smoothing=1.5 does not work; use a number from 0 to 1, such as 0.1",
        "ValueError: reduction='max' is not known; use 'mean', 'sum' or 'none'",
    ]
    for errors in tp.launch(refuse, world_size=2):
        assert errors[:5] == wanted
        assert len(errors) == 7
        assert all("RuntimeError: index" in error and "out of bounds" in error for error in errors[5:])
