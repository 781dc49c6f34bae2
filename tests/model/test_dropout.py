"""Dropout: how much, which masks, and what is kept for the backward."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tp_teach.model.dropout import Dropout


def dropped(stream: int = 0, seed: int = 0, p: float = 0.5, count: int = 1) -> list[torch.Tensor]:
    """The masks of `count` calls."""
    torch.manual_seed(seed)
    layer = Dropout(p)
    layer.stream = stream
    return [layer(torch.ones(64, 64)) == 0 for _ in range(count)]


def test_the_share_that_is_dropped_and_the_scale_of_the_rest():
    torch.manual_seed(0)
    out = Dropout(0.2)(torch.ones(1000, 1000, dtype=torch.float64))
    assert set(out.unique().tolist()) == {0.0, 1.25}
    # 10^6 draws: a standard deviation of 0.0004.
    assert (out == 0).double().mean().item() == pytest.approx(0.2, abs=0.002)
    assert out.mean().item() == pytest.approx(1, abs=0.0025)


def test_nothing_is_dropped_without_training_or_chance():
    x = torch.randn(3)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_masks_depend_on_the_default_generator_and_the_stream():
    first, second = dropped(count=2)
    assert not torch.equal(first, second)
    assert torch.equal(first, dropped()[0]) and not torch.equal(first, dropped(seed=1)[0])
    for other in range(1, 5):
        # Unrelated masks agree in half of 4096 places: a standard deviation of 0.008.
        assert (first == dropped(stream=other)[0]).double().mean().item() == pytest.approx(0.5, abs=0.04)


def test_streams_leave_the_default_generator_in_step():
    states = []
    for stream in (0, 3):
        dropped(stream=stream, count=3)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_the_gradient_is_that_of_the_mask(checkpointed):
    torch.manual_seed(0)
    layer, x = Dropout(0.25), torch.randn(50, requires_grad=True)
    out = checkpoint(layer, x, use_reentrant=False) if checkpointed else layer(x)
    torch.manual_seed(99)  # what comes between forward and backward does not matter
    out.sum().backward()
    assert torch.equal(x.grad, (out != 0) / torch.tensor(0.75))


def test_one_byte_an_element_is_kept():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        Dropout(0.5)(torch.ones(10, 10, requires_grad=True))
    assert [(tensor.dtype, tensor.nbytes) for tensor in kept] == [(torch.bool, 100)]
