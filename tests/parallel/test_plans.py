"""The cut of the MLP block: what each rank holds, and that nothing else changes."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import tp_teach as tp
from tp_teach.model.toy import MLPBlock
from tp_teach.parallel.plans import cut_mlp_blocks


def twins(d_model: int, hidden: int, shape: tuple[int, ...]):
    """A dense block and a cut one, built under a seed of the rank's own; then output and gradients of both.

    Rank 0's dense block is the truth: the cut sends its weights to the others.
    """
    torch.manual_seed(dist.get_rank())
    dense = MLPBlock(d_model, hidden)
    cut = MLPBlock(d_model, hidden)
    cut.load_state_dict(dense.state_dict())
    cut_mlp_blocks(nn.ModuleList([cut]), init_device_mesh("cpu", (dist.get_world_size(),)))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(7))
    found = []
    for block in (dense, cut):
        mine = x.clone().requires_grad_()
        out = block(mine)
        out.square().sum().backward()
        weights = [whole(p) for p in (block.fc1.weight, block.fc2.weight)]
        grads = [whole(p.grad) for p in (block.fc1.weight, block.fc2.weight, block.ln.weight, block.ln.bias)]
        found.append({"out": [out.detach()], "weights": weights, "grads": [*grads, mine.grad]})
    parts = {n: (str(p.placements), tuple(p.to_local().shape)) for n, p in cut.named_parameters() if is_cut(p)}
    return found, parts


def is_cut(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, DTensor)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor().detach() if is_cut(tensor) else tensor.detach()


@pytest.mark.parametrize(
    ("world_size", "d_model", "hidden", "shape"),
    [(1, 5, 6, (2, 3, 5)), (2, 5, 6, (2, 3, 5)), (3, 8, 12, (1, 1, 8)), (3, 7, 3, (4, 7)), (4, 1, 8, (2, 2, 1))],
)
def test_a_cut_block_equals_its_dense_twin(world_size, d_model, hidden, shape):
    run = tp.launch(twins, d_model, hidden, shape, world_size=world_size)
    (dense, _), parts = run[0]
    assert parts == {
        "fc1.weight": ("(Shard(dim=0),)", (hidden // world_size, d_model)),
        "fc2.weight": ("(Shard(dim=1),)", (d_model, hidden // world_size)),
    }
    assert all(torch.equal(a, b) for a, b in zip(run[0][0][1]["weights"], dense["weights"], strict=True))
    for what in ("out", "grads"):
        for a, b in zip(run[0][0][1][what], dense[what], strict=True):
            # The sum over hidden features is taken in `world_size` parts: float32 rounding, no more.
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    for rank in range(1, world_size):
        theirs = run[rank][0][1]
        for a, b in zip(theirs["weights"] + theirs["out"], run[0][0][1]["weights"] + run[0][0][1]["out"], strict=True):
            assert torch.equal(a, b), f"rank {rank} differs from rank 0"


def uncut_parts() -> tuple[torch.Tensor, torch.Tensor]:
    """A norm, beside the cut linears, drawn differently on each rank, before and after the cut."""
    torch.manual_seed(dist.get_rank())
    block = MLPBlock(4, 6)
    nn.init.normal_(block.ln.weight)
    before = block.ln.weight.detach().clone()
    block.fc1.requires_grad_(False)
    cut_mlp_blocks(nn.ModuleList([block]), init_device_mesh("cpu", (2,)))
    assert not block.fc1.weight.requires_grad and block.fc2.weight.requires_grad
    assert not is_cut(block.ln.weight)
    return before, block.ln.weight.detach()


def test_what_is_not_cut_is_rank_0s_too():
    (first, after_first), (second, after_second) = tp.launch(uncut_parts, world_size=2)
    assert not torch.equal(first, second)
    assert torch.equal(after_first, first) and torch.equal(after_second, first)


def cut_blocks_of(hidden: int) -> None:
    cut_mlp_blocks(nn.ModuleList([MLPBlock(4, 6), MLPBlock(4, hidden)]), init_device_mesh("cpu", (2,)))


def test_a_hidden_size_that_does_not_divide_is_named_with_its_layer():
    with pytest.raises(tp.RankFailed, match="layers.1: hidden size 7 does not divide over 2 ranks") as failed:
        tp.launch(cut_blocks_of, 7, world_size=2)
    assert failed.value.error == "ValueError"
