"""Layers cut by hand are their dense twins: outputs, every gradient, and the collectives that this takes."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import tp_teach as tp
from tp_teach.model.toy import MLPBlock
from tp_teach.parallel.by_hand import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from tp_teach.parallel.by_hand_blocks import cut_mlp_block_by_hand
from tp_teach.parallel.by_hand_loss import vocab_parallel_cross_entropy

Pairs = list[tuple[torch.Tensor, torch.Tensor]]
D, HIDDEN, VOCAB = 5, 12, 24


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(request):
    with tp.ranks(world_size=request.param, check=False, show="none") as these:
        yield these


def own(whole: torch.Tensor, dim: int) -> torch.Tensor:
    return whole.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def assert_equal(pairs: Pairs) -> None:
    for got, wanted in pairs:
        # Sums of 12 to 240 numbers of order one, taken in another order.
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


class Two(nn.Module):
    """Two linears with GELU between them, or their cut twins."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.first(x)))


# Options of the column- and the row-parallel linear; where the sequence of input and output is cut.
LINEARS = {
    "plain": ({}, {}, None),
    "gathered": ({"gather_output": True}, {"input_is_parallel": False}, None),
    "sequence": ({"sequence_dim": 1}, {"sequence_dim": 1}, 1),
    "sequence first": ({"sequence_dim": 0}, {"sequence_dim": 0}, 0),
}


def linears(kind: str, bias: bool) -> Pairs:
    torch.manual_seed(0)
    group, (column, row, sequence) = dist.group.WORLD, LINEARS[kind]
    dense = Two(nn.Linear(D, HIDDEN, bias), nn.Linear(HIDDEN, D, bias)).double()
    cut = Two(ColumnParallelLinear(dense.first, group, **column), RowParallelLinear(dense.second, group, **row))
    whole, factor = torch.randn(2, 12, 12, D, dtype=torch.float64)
    whole.requires_grad_()
    out = dense(whole)
    (out * factor).sum().backward()

    part = (lambda t: t) if sequence is None else (lambda t: own(t, sequence))
    mine = part(whole.detach()).transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    got = cut(mine)
    (got * part(factor)).sum().backward()
    pairs = [(got, part(out)), (mine.grad, part(whole.grad))]
    pairs += [(cut.first.weight.grad, own(dense.first.weight.grad, 0))]
    pairs += [(cut.second.weight.grad, own(dense.second.weight.grad, 1))]
    if bias:
        pairs += [(cut.first.bias.grad, own(dense.first.bias.grad, 0)), (cut.second.bias.grad, dense.second.bias.grad)]
    return [(a.detach(), b.detach()) for a, b in pairs]


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("kind", LINEARS)
def test_linears_equal_their_dense_twins(ranks, kind, bias):
    for pairs in ranks.launch(linears, kind, bias):
        assert len(pairs) == (6 if bias else 4)
        assert_equal(pairs)


def under_autocast() -> list[tuple[torch.dtype, torch.dtype, float]]:
    """Dtypes of output and bias gradient, and the largest difference from the dense output."""
    torch.manual_seed(0)
    group, dense, x = dist.group.WORLD, nn.Linear(HIDDEN, D), torch.randn(1, 12, HIDDEN)
    found = []
    for dim in (None, 1):
        cut = RowParallelLinear(dense, group, input_is_parallel=False, sequence_dim=dim)
        with torch.autocast("cpu", torch.bfloat16):
            out, wanted = cut(x), dense(x)
        out.sum().backward()
        wanted = wanted if dim is None else own(wanted, dim)
        found.append((out.dtype, cut.bias.grad.dtype, (out - wanted).abs().max().item()))
    return found


def test_autocast_lowers_what_it_lowers_in_the_dense_layer(ranks):
    for found in ranks.launch(under_autocast):
        for out, grad, difference in found:
            assert (out, grad) == (torch.bfloat16, torch.float32)
            assert difference < 2**-5  # numbers below 2, of which each of the ranks' terms is rounded to 8 bits


def embedding(padding: int | None, sequence: bool) -> tuple[bool, Pairs]:
    torch.manual_seed(0)
    dense = nn.Embedding(VOCAB, D, padding_idx=padding).double()
    nn.init.normal_(dense.weight)  # the row of the padding too: it is looked up like the others
    cut = VocabParallelEmbedding(dense, dist.group.WORLD, sequence_dim=1 if sequence else None)
    tokens = torch.randint(VOCAB, (2, 12))
    tokens[0, :2] = torch.tensor([padding or 0, 0])
    part = (lambda t: own(t, 1)) if sequence else (lambda t: t)
    factor = torch.randn(2, 12, D, dtype=torch.float64)
    wanted, got = dense(tokens), cut(tokens)
    (wanted * factor).sum().backward()
    (got * part(factor)).sum().backward()
    # One rank adds its row to the others' zeros: not even rounding.
    return torch.equal(got, part(wanted)), [(cut.weight.grad, own(dense.weight.grad, 0))]


@pytest.mark.parametrize("sequence", [False, True], ids=["plain", "sequence"])
@pytest.mark.parametrize("padding", [None, 0, VOCAB - 1])
def test_embedding_equals_its_dense_twin(ranks, padding, sequence):
    for equal, pairs in ranks.launch(embedding, padding, sequence):
        assert equal
        assert_equal(pairs)


def both_ends() -> tuple[bool, Pairs]:
    """Embedding, head and loss of a language model, the head tied to the embedding."""
    torch.manual_seed(0)
    group = dist.group.WORLD
    table, head = nn.Embedding(VOCAB, D).double(), nn.Linear(D, VOCAB, bias=False).double()
    head.weight = table.weight
    tokens, targets = torch.randint(VOCAB, (2, 2, 6))
    loss = F.cross_entropy(head(torch.tanh(table(tokens))).flatten(0, 1), targets.flatten())
    loss.backward()
    cut_table, cut_head = VocabParallelEmbedding(table, group), ColumnParallelLinear(head, group)
    cut_head.weight = cut_table.weight
    got = vocab_parallel_cross_entropy(cut_head(torch.tanh(cut_table(tokens))), targets, group)
    got.backward()
    return [(got.detach(), loss.detach()), (cut_table.weight.grad, own(table.weight.grad, 0))]


def test_both_ends_of_the_vocabulary(ranks):
    for pairs in ranks.launch(both_ends):
        assert_equal(pairs)


def state() -> list:
    """A cut layer's own part is a copy, exactly the dense layer's numbers, and as trainable as those."""
    dense = nn.Linear(HIDDEN, HIDDEN)
    dense.bias.requires_grad_(False)
    found = []
    for kind, dim in ((ColumnParallelLinear, 0), (RowParallelLinear, 1)):
        layer = kind(dense, dist.group.WORLD)
        bias = own(dense.bias, 0) if dim == 0 else dense.bias
        found += [torch.equal(layer.weight, own(dense.weight, dim)), torch.equal(layer.bias, bias)]
        found += [layer.weight.requires_grad, not layer.bias.requires_grad, layer.weight.is_contiguous()]
        found += [layer.weight.untyped_storage().nbytes() == layer.weight.nbytes]
        found += [set(layer.state_dict()) == {"weight", "bias"}]
        with torch.no_grad():
            kept = dense.weight.clone()
            layer.weight.zero_(), layer.bias.zero_()
            found += [torch.equal(dense.weight, kept)]
    return found


def test_parts_are_copies_of_the_dense_layer(ranks):
    for found in ranks.launch(state):
        assert found == [True] * 16


def in_pairs() -> tuple[float, Pairs]:
    """Two groups of two ranks, each with its own batch."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    number = dist.get_rank() // 2
    torch.manual_seed(0)
    dense = MLPBlock(D, HIDDEN).double()
    cut = MLPBlock(D, HIDDEN).double()
    cut.load_state_dict(dense.state_dict())
    cut_mlp_block_by_hand(cut, groups[number])
    x = torch.randn(3, D, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
    with tp.measure(cut):
        cut(x.clone().requires_grad_()).square().sum().backward()
    dense(x).square().sum().backward()
    mine = dense.fc1.weight.grad.chunk(2)[dist.get_rank() % 2]
    return [(cut.fc1.weight.grad, mine), (cut.ln.weight.grad, dense.ln.weight.grad)]


def test_the_group_given_is_the_group_used():
    run = tp.launch(in_pairs, world_size=4, show="none")
    for pairs in run:
        assert_equal(pairs)
    assert run.comm.groupby("rank")["group"].unique().map(list).tolist() == [["0,1"], ["0,1"], ["2,3"], ["2,3"]]


def refuse() -> list[str]:
    group = dist.group.WORLD
    tries = [
        lambda: ColumnParallelLinear(nn.Linear(4, 7), group),
        lambda: RowParallelLinear(nn.Linear(1, 4), group),
        lambda: VocabParallelEmbedding(nn.Embedding(9, 4), group),
        lambda: cut_mlp_block_by_hand(MLPBlock(4, 5), group),
        lambda: VocabParallelEmbedding(nn.Embedding(8, 4, max_norm=1.0), group),
        lambda: VocabParallelEmbedding(nn.Embedding(8, 4, scale_grad_by_freq=True), group),
        lambda: VocabParallelEmbedding(nn.Embedding(8, 4, sparse=True), group),
        lambda: VocabParallelEmbedding(nn.Embedding(8, 4), group)(torch.tensor([8])),
        lambda: VocabParallelEmbedding(nn.Embedding(8, 4), group)(torch.tensor([-1])),
    ]
    errors = []
    for attempt in tries:
        try:
            attempt()
        except (ValueError, IndexError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    return errors


def test_refusals_on_every_rank():
    for errors in tp.launch(refuse, world_size=2):
        assert errors == [
            "ValueError: ColumnParallelLinear: out_features=7 does not divide over 2 ranks; use out_features=6 or 8",
            "ValueError: RowParallelLinear: in_features=1 does not divide over 2 ranks; use in_features=2",
            "ValueError: VocabParallelEmbedding: num_embeddings=9 does not divide over 2 ranks; "
            "use num_embeddings=8 or 10",
            "ValueError: ColumnParallelLinear: out_features=5 does not divide over 2 ranks; use out_features=4 or 6",
            "ValueError: max_norm=1.0 is not done by VocabParallelEmbedding; leave it out",
            "ValueError: scale_grad_by_freq=True is not done by VocabParallelEmbedding; leave it out",
            "ValueError: sparse=True is not done by VocabParallelEmbedding; leave it out",
            "IndexError: index out of range in self",
            "IndexError: index out of range in self",
        ]
