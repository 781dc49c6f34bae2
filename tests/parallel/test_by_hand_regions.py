"""Each region's call changes only where a tensor lives: value and derivatives are those of the whole tensor."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tp_teach as tp
from tp_teach.parallel.regions import (
    copy_to_region,
    gather_from_region,
    gather_sequence,
    reduce_from_region,
    reduce_scatter_sequence,
    scatter_to_region,
)

# What a call takes and gives. "same": equal on all ranks. "copies": equal, and each rank uses its own differently.
# "parts": cut along a dimension. "terms": the whole is their sum.
CALLS = {
    "copy_to_region": (copy_to_region, (), "same", "copies"),
    "reduce_from_region": (reduce_from_region, (), "terms", "same"),
    "scatter_to_region": (scatter_to_region, (-1,), "same", "parts"),
    "gather_from_region": (gather_from_region, (-1,), "parts", "same"),
    "scatter_to_region, first": (scatter_to_region, (0,), "same", "parts"),
    "gather_from_region, first": (gather_from_region, (0,), "parts", "same"),
    "gather_sequence": (gather_sequence, (1,), "parts", "copies"),
    "reduce_scatter_sequence": (reduce_scatter_sequence, (1,), "terms", "parts"),
    "gather_sequence, first": (gather_sequence, (0,), "parts", "copies"),
    "reduce_scatter_sequence, first": (reduce_scatter_sequence, (0,), "terms", "parts"),
}
# Collectives forward and backward; each has the whole tensor as its payload.
COLLECTIVES = {
    "copy_to_region": [("backward", "all_reduce")],
    "reduce_from_region": [("forward", "all_reduce")],
    "scatter_to_region": [("backward", "all_gather")],
    "gather_from_region": [("forward", "all_gather")],
    "gather_sequence": [("forward", "all_gather"), ("backward", "reduce_scatter")],
    "reduce_scatter_sequence": [("forward", "reduce_scatter"), ("backward", "all_gather")],
}


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(request):
    with tp.ranks(world_size=request.param, check=False, show="none") as these:
        yield these


def derive(name: str, strided: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Value, first and second derivatives on this rank, each beside the same from the whole tensor on one process."""
    call, dims, given, taken = CALLS[name]
    n, rank = dist.get_world_size(), dist.get_rank()
    random = torch.Generator().manual_seed(0)

    def numbers() -> torch.Tensor:
        return torch.randn(2 * n, 3 * n, 4 * n, generator=random, dtype=torch.float64)

    def own(whole: torch.Tensor) -> torch.Tensor:
        return whole.chunk(n, dims[0])[rank]

    wholes = [numbers().requires_grad_() for _ in range(n if given == "terms" else 1)]
    factors = [numbers() for _ in range(n if taken == "copies" else 1)]

    x = wholes[rank if given == "terms" else 0].detach()
    x = own(x) if given == "parts" else x
    x = (x.mT.contiguous().mT if strided else x.clone()).requires_grad_()
    assert not strided or not x.is_contiguous()
    before = x.detach().clone()
    y = call(x, dist.group.WORLD, *dims)
    factor = factors[rank if taken == "copies" else 0]
    factor = own(factor) if taken == "parts" else factor
    cubed = (y.mT**3 * factor.mT).sum() if strided else (y**3 * factor).sum()
    (first,) = torch.autograd.grad(cubed, x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert torch.equal(x, before), "the input was changed in place"

    whole_y = torch.stack(wholes).sum(0)
    loss = sum((whole_y**3 * factor).sum() for factor in factors)
    firsts = torch.autograd.grad(loss, wholes, create_graph=True)
    seconds = torch.autograd.grad(sum(grad.square().sum() for grad in firsts), wholes)
    mine = rank if given == "terms" else 0
    wanted = [own(whole_y) if taken == "parts" else whole_y]
    wanted += [own(grads[mine]) if given == "parts" else grads[mine] for grads in (firsts, seconds)]
    return [(a.detach(), b.detach()) for a, b in zip((y, first, second), wanted, strict=True)]


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("name", CALLS)
def test_value_and_derivatives_are_those_of_the_whole(ranks, name, strided):
    for pairs in ranks.launch(derive, name, strided):
        for got, wanted in pairs:
            # Sums of up to 4 x 4 terms in another order; second derivatives reach 1e4.
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


class Call(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.call, self.dims, *_ = CALLS[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x, dist.group.WORLD, *self.dims)


def measure_each() -> None:
    n = dist.get_world_size()
    for step, name in enumerate(COLLECTIVES):
        dim = (*CALLS[name][1], 0)[0]
        shape = [2, 12, 12]
        shape[dim] //= n if CALLS[name][2] == "parts" else 1
        model, x = Call(name), torch.ones(shape, requires_grad=True)
        with tp.measure(model, step=step):
            model(x).sum().backward()


def test_collectives_and_bytes(ranks):
    comm = ranks.launch(measure_each).comm
    n = ranks.choice.world_size
    wanted = [
        [rank, step, phase, op, n, 4 * 2 * 12 * 12]
        for rank in range(n)
        for step, name in enumerate(COLLECTIVES)
        for phase, op in COLLECTIVES[name]
    ]
    columns = ["rank", "step", "phase", "op", "group_size", "payload_bytes"]
    assert comm[columns].values.tolist() == (wanted if n > 1 else [])


def after_relu() -> list[list[float]]:
    """A collective in place on ReLU's output would rewrite what ReLU's backward reads."""
    start = [-1.0, 2.0, -3.0, 4.0] if dist.get_rank() else [5.0, -6.0, -7.0, 8.0]
    x = torch.tensor(start, requires_grad=True)
    hidden = torch.relu(x)
    y = reduce_from_region(hidden, dist.group.WORLD)
    y.sum().backward()  # the gradient of a sum is one number with strides of zero
    grads = [x.grad.tolist()]
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    copy_to_region(x, dist.group.WORLD).sum().backward()
    return [y.tolist(), hidden.tolist(), *grads, x.grad.tolist()]


def test_what_autograd_saved_is_not_rewritten():
    values = tp.launch(after_relu, world_size=2).values
    assert values[0] == [[5, 2, 0, 12], [5, 0, 0, 8], [1, 0, 0, 1], [2, 2]]
    assert values[1] == [[5, 2, 0, 12], [0, 2, 0, 4], [0, 1, 0, 1], [2, 2]]


def refuse() -> list[str]:
    errors = []
    for call in (scatter_to_region, reduce_scatter_sequence):
        for size in (7, 1):
            try:
                call(torch.ones(size, size), dist.group.WORLD, 1)
            except ValueError as error:
                errors.append(str(error))
    return errors


def test_a_size_that_does_not_divide_is_refused():
    wanted = [
        f"dimension 1 of a tensor of shape ({size}, {size}) does not divide over 2 ranks; use a size of {sizes}"
        for size, sizes in [(7, "6 or 8"), (1, "2")]
    ]
    assert tp.launch(refuse, world_size=2).values == [wanted * 2] * 2
