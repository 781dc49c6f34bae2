"""Measuring changes nothing, and leaves nothing behind."""

import itertools
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import tp_teach as tp
from tests.measure.alone import hooks_on, logged, memory_of
from tp_teach.train.loop import build, grad_norm

CONFIG = tp.TrainConfig(
    vocab_size=11, seq_len=5, d_model=8, hidden_dim=12, num_layers=2, num_classes=3, num_samples=9, batch_size=3
)


def toy() -> tuple[nn.Module, torch.optim.Optimizer]:
    return build(CONFIG, torch.device("cpu"), init_device_mesh("cpu", (dist.get_world_size(),)))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(11, (3, 5), generator=generator), torch.randint(3, (3,), generator=generator)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def four_steps(measured: bool) -> list[torch.Tensor]:
    """All losses, gradients and weights of four steps, each measured or none."""
    model, optimizer = toy()
    seen = []
    for step in range(4):
        tokens, labels = batch(step)
        with tp.measure(model, optimizer, step=step) if measured else nullcontext():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens), labels)
            loss.backward()
            optimizer.step()
        seen.append(loss.detach())
        seen += [whole(tensor) for p in model.parameters() for tensor in (p, p.grad)]
    return seen


def test_loss_gradients_and_weights_are_bitwise_those_of_an_unmeasured_run():
    runs = [tp.launch(four_steps, measured, world_size=2) for measured in (True, False)]
    assert len(runs[0].comm) > 0 and len(runs[1].comm) == 0
    for rank in range(2):
        measured, plain = (run[rank] for run in runs)
        assert len(measured) == len(plain) > 4
        assert all(torch.equal(a, b) for a, b in zip(measured, plain, strict=True))


class Broken(nn.Module):
    """Fails in the forward or in the backward, if told to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.fails_in = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.fails_in == "forward":
            raise RuntimeError("broken forward")
        if self.fails_in == "backward":
            y.register_hook(self._fail)
        return y

    def _fail(self, grad: torch.Tensor) -> None:
        raise RuntimeError("broken backward")


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with tp.measure(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        if getattr(model, "fails_in", "") == "block":
            raise RuntimeError("broken block")
        optimizer.step()


@pytest.mark.parametrize("place", ["forward", "backward", "block"])
def test_an_error_leaves_no_hook_behind_and_the_next_measurement_is_right(place):
    torch.manual_seed(0)
    model = Broken()
    optimizer = torch.optim.AdamW(model.parameters())
    one_step(model, optimizer)
    wanted = logged(lambda: one_step(model, optimizer)).rows
    model.fails_in = place

    def broken_step() -> None:
        with pytest.raises(RuntimeError, match=f"broken {place}"):
            one_step(model, optimizer)

    assert not any(logged(broken_step).rows.values()), "half a step was recorded"
    assert hooks_on(model) == 0
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    model.fails_in = ""
    one_step(model, optimizer)  # the broken step may have left the model without gradients
    assert logged(lambda: one_step(model, optimizer)).rows == wanted


def test_an_error_in_an_inner_measurement_leaves_the_outer_one_right():
    torch.manual_seed(0)
    model = Broken()
    optimizer = torch.optim.AdamW(model.parameters())
    one_step(model, optimizer)
    wanted = logged(lambda: one_step(model, optimizer)).rows

    def broken_inside() -> None:
        with tp.measure(model, optimizer):
            with pytest.raises(RuntimeError, match="broken inner"), tp.measure(model, step=1):
                raise RuntimeError("broken inner")
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()

    found = logged(broken_inside).rows
    assert found["flops"] == wanted["flops"] and found["memory"] == wanted["memory"]
    assert hooks_on(model) == 0


def test_no_hook_stays_after_a_measured_step():
    model = Broken()
    optimizer = torch.optim.AdamW(model.parameters())
    one_step(model, optimizer)
    assert hooks_on(model) == 0
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_own_hooks_stay():
    model = Broken()
    called = []
    model.linear.register_forward_hook(lambda *_: called.append("forward"))
    model.linear.weight.register_post_accumulate_grad_hook(lambda _: called.append("grad"))
    optimizer = torch.optim.AdamW(model.parameters())
    one_step(model, optimizer)
    model(torch.ones(2, 3)).sum().backward()
    assert called == ["forward", "grad"] * 2


def test_outside_a_rank_measuring_records_nothing_and_does_no_harm():
    model = Broken()
    one_step(model, torch.optim.AdamW(model.parameters()))
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_evaluation_without_gradients():
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2))

    def evaluate() -> None:
        with torch.no_grad(), tp.measure(model):
            model(torch.ones(3, 4))

    memory = memory_of(logged(evaluate))
    assert set(memory) == {"init", "forward", "peak"}
    for moment in memory.values():
        assert moment["parameters"] == 4 * (4 * 6 + 6 + 6 * 2 + 2)
        assert moment["gradients"] == moment["optimizer"] == moment["activations"] == 0


def norms() -> list[float]:
    """The norm that `grad_norm` finds for the cut model, and that of its dense twin, for three batches."""
    cut, _ = toy()
    dense, _ = build(CONFIG, torch.device("cpu"), None)
    found = []
    for step, model in itertools.product(range(3), (cut, dense)):
        tokens, labels = batch(step)
        model.zero_grad()
        nn.functional.cross_entropy(model(tokens), labels).backward()
        if model is cut:
            found.append(grad_norm(model))
        else:
            found.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_grad_norm_is_that_of_the_dense_model(world_size):
    run = tp.launch(norms, world_size=world_size)
    for found in run:
        # Sums of squares of about 500 float32 numbers, in another order.
        assert found[0::2] == pytest.approx(found[1::2], rel=1e-5)
        assert min(found) > 0.1
    assert all(found[0::2] == run[0][0::2] for found in run), "the ranks disagree"
