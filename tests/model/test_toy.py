"""The toy transformer, against its formula written with torch's functions."""

import pytest
import torch
from torch.nn import functional as F

import tp_teach as tp
from tp_teach.model.toy import MLPBlock, ToyTransformer

CONFIG = tp.TrainConfig(vocab_size=11, seq_len=5, d_model=7, hidden_dim=12, num_layers=3, num_classes=4)


def toy() -> ToyTransformer:
    torch.manual_seed(0)
    return ToyTransformer(CONFIG)


def test_block_formula_and_gradients():
    torch.manual_seed(0)
    block = MLPBlock(6, 10)
    torch.nn.init.normal_(block.ln.weight)
    torch.nn.init.normal_(block.ln.bias)
    x = torch.randn(2, 3, 6, requires_grad=True)
    norm = F.layer_norm(x, (6,), block.ln.weight, block.ln.bias)
    wanted = x + F.gelu(norm @ block.fc1.weight.T) @ block.fc2.weight.T
    out = block(x)
    torch.testing.assert_close(out, wanted)  # float32's usual 1.3e-6: the same sums, perhaps in another order
    leaves = [x, *block.parameters()]
    for got, want in zip(
        torch.autograd.grad(out.square().sum(), leaves),
        torch.autograd.grad(wanted.square().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)  # sums of up to 36 products of order 1


def test_block_has_no_biases():
    assert {name for name, _ in MLPBlock(6, 10).named_parameters()} == {
        "ln.weight",
        "ln.bias",
        "fc1.weight",
        "fc2.weight",
    }


@pytest.mark.parametrize("batch", [1, 3])
def test_logits_have_one_row_a_sample(batch):
    logits = toy()(torch.randint(11, (batch, 5)))
    assert logits.shape == (batch, 4)
    assert logits.dtype == torch.float32


def test_the_head_reads_the_first_token_alone():
    model = toy()
    tokens = torch.randint(11, (2, 5))
    others, first = tokens.clone(), tokens.clone()
    others[:, 1:] = (others[:, 1:] + 1) % 11
    first[:, 0] = (first[:, 0] + 1) % 11
    assert torch.equal(model(others), model(tokens))
    assert not torch.allclose(model(first), model(tokens))


def test_positions_are_added():
    model = toy()
    tokens = torch.randint(11, (2, 5))
    before = model(tokens)
    with torch.no_grad():
        model.pos_emb.weight[0] += torch.randn(7)
    assert not torch.allclose(model(tokens), before)


def test_the_same_seed_gives_the_same_weights():
    for (name, one), two in zip(toy().named_parameters(), toy().parameters(), strict=True):
        assert torch.equal(one, two), name
