"""The decoder, against its formula written out slowly, and against published parameter counts."""

import math

import pytest
import torch
from torch.nn import functional as F

import tp_teach as tp
from tp_teach.model.attention import KVCache, rotary, rotate
from tp_teach.model.generate import generate
from tp_teach.model.transformer import Decoder

SMALL = dict(vocab_size=13, seq_len=9, d_model=24, hidden_dim=20, num_layers=2, num_heads=6, num_kv_heads=6)
FORMS = {
    "llama": dict(block="llama"),
    "llama, grouped": dict(block="llama", num_kv_heads=2),
    "llama, one kv head, tied": dict(block="llama", num_kv_heads=1, tied=True),
    "llama, qkv biases": dict(block="llama", num_kv_heads=3, qkv_bias=True),
    "gpt": dict(block="gpt"),
    "gpt, grouped, tied": dict(block="gpt", num_kv_heads=2, tied=True),
}


def decoder(dtype=torch.float64, **changes) -> tuple[Decoder, torch.Tensor]:
    """A small decoder whose every parameter is drawn anew, norms and biases too, and tokens for it."""
    config = tp.TrainConfig.preset("decoder", **{**SMALL, **changes})
    torch.manual_seed(0)
    model = Decoder(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.to(dtype), torch.randint(13, (2, 7))


def slow_logits(model: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    """The decoder one sample, head and token at a time; rotary positions as a product of complex numbers."""
    config, p = model.config, dict(model.named_parameters())
    p.setdefault("head.weight", p["token_emb.weight"])
    gpt = config.block == "gpt"

    def linear(x, name):
        return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)

    def norm(x, name):
        x = x - x.mean(-1, keepdim=True) if gpt else x
        scale = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return x * scale * p[f"{name}.weight"] + p.get(f"{name}.bias", 0)

    def turned(x, position):
        if gpt:
            return x
        half = len(x) // 2
        angles = position / 10000.0 ** (torch.arange(half, dtype=torch.float64) * 2 / len(x))
        z = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones(half, dtype=torch.float64), angles)
        return torch.cat([z.real, z.imag])

    def attention(x, name):
        q, k, v = (linear(x, f"{name}.{w}") for w in ("wq", "wk", "wv"))
        d, group = config.head_dim, config.num_heads // config.num_kv_heads
        rows = []
        for i in range(len(x)):
            heads = []
            for h in range(config.num_heads):
                mine, theirs = slice(h * d, h * d + d), slice(h // group * d, h // group * d + d)
                scores = [turned(q[i, mine], i) @ turned(k[j, theirs], j) / math.sqrt(d) for j in range(i + 1)]
                heads.append(torch.stack(scores).softmax(0) @ v[: i + 1, theirs])
            rows.append(torch.cat(heads))
        return linear(torch.stack(rows), f"{name}.wo")

    def mlp(x, name):
        if gpt:
            inner = linear(x, f"{name}.fc1")
            return linear(inner * (1 + torch.erf(inner / math.sqrt(2))) / 2, f"{name}.fc2")
        gate = linear(x, f"{name}.gate")
        return linear(gate * torch.sigmoid(gate) * linear(x, f"{name}.up"), f"{name}.down")

    samples = []
    for row in tokens:
        x = p["token_emb.weight"][row]
        if gpt:
            x = x + p["pos_emb.weight"][: len(row)]
        for number in range(config.num_layers):
            layer = f"layers.{number}"
            x = x + attention(norm(x, f"{layer}.attn_norm"), f"{layer}.attn")
            x = x + mlp(norm(x, f"{layer}.mlp_norm"), f"{layer}.mlp")
        samples.append(linear(norm(x, "final_norm"), "head"))
    return torch.stack(samples)


@pytest.mark.parametrize("form", FORMS)
def test_logits_and_gradients_are_those_of_the_formula(form):
    model, tokens = decoder(**FORMS[form])
    labels = torch.randint(13, tokens.shape)
    found = []
    for logits in (model(tokens), slow_logits(model, tokens)):
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        found.append([logits, loss, *torch.autograd.grad(loss, list(model.parameters()))])
    for got, wanted in zip(*found, strict=True):
        # The same float64 sums in another order; numbers of order 1.
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        # (d_model, hidden_dim, num_layers, num_heads, num_kv_heads, vocab_size), published parameter count
        (dict(zip_of=(4096, 11008, 32, 32, 32, 32000)), 6738415616),  # Llama-2-7B
        (dict(zip_of=(4096, 14336, 32, 32, 8, 128256)), 8030261248),  # Llama-3-8B
        (dict(zip_of=(8192, 28672, 80, 64, 8, 128256)), 70553706496),  # Llama-3-70B
        (dict(zip_of=(8192, 29568, 80, 64, 8, 152064), qkv_bias=True), 72706203648),  # Qwen2.5-72B
        (dict(zip_of=(12288, 49152, 96, 96, 96, 50257), block="gpt", tied=True, seq_len=2048), 174604259328),  # GPT-3
        (dict(zip_of=(3072, 12288, 72, 32, 32, 51200), block="gpt", tied=True, seq_len=1024), 8317040640),  # Megatron
    ],
    ids=["Llama-2-7B", "Llama-3-8B", "Llama-3-70B", "Qwen2.5-72B", "GPT-3", "Megatron-8.3B"],
)
def test_parameters_of_published_models(changes, wanted):
    names = ("d_model", "hidden_dim", "num_layers", "num_heads", "num_kv_heads", "vocab_size")
    sizes = dict(zip(names, changes.pop("zip_of"), strict=True))
    with torch.device("meta"):
        model = Decoder(tp.TrainConfig.preset("decoder", **sizes, **changes))
    assert sum(parameter.numel() for parameter in model.parameters()) == wanted


def test_names_of_parameters():
    def names(**changes):
        model, _ = decoder(num_layers=1, **changes)
        return [name for name, _ in model.named_parameters()]

    attention = [f"layers.0.attn.{w}.weight" for w in ("wq", "wk", "wv", "wo")]
    mlp = [f"layers.0.mlp.{w}.weight" for w in ("gate", "up", "down")]
    norms = ["layers.0.attn_norm.weight", "layers.0.mlp_norm.weight", "final_norm.weight"]
    llama = {"token_emb.weight", *attention, *mlp, *norms}
    assert set(names(tied=True)) == llama
    assert set(names()) == llama | {"head.weight"}
    linears = [*attention, "layers.0.mlp.fc1.weight", "layers.0.mlp.fc2.weight"]
    both = [name.replace("weight", kind) for name in [*linears, *norms] for kind in ("weight", "bias")]
    assert set(names(block="gpt")) == {"token_emb.weight", "pos_emb.weight", *both, "head.weight"}
    assert not list(decoder()[0].buffers()), "rotary positions follow no dtype and are no state"


@pytest.mark.parametrize("block", ["llama", "gpt"])
def test_a_token_sees_none_after_it(block):
    model, tokens = decoder(block=block)
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 13
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4], rtol=0, atol=1e-13)
    assert ((before[:, 4:] - after[:, 4:]).abs().amax(dim=(0, 2)) > 1e-4).all(), "but those after it do see it"


@pytest.mark.parametrize("block", ["llama", "gpt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shorter_numbers_give_near_logits_of_their_own_dtype(block, dtype):
    model, tokens = decoder(block=block)
    for parameter in model.parameters():
        parameter.data *= 0.3  # logits of order 1
    wanted = model(tokens)
    logits = model.to(dtype)(tokens)
    assert logits.dtype == dtype
    # Rounding of 24 bits or of 8 bits, through two layers.
    torch.testing.assert_close(logits.double(), wanted, rtol=0, atol=1e-6 if dtype == torch.float32 else 5e-2)


def test_rotary_positions_turn_and_know_only_distance():
    cos, sin = rotary(torch.arange(50), 8, torch.float64)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    torch.testing.assert_close(rotate(q, cos, sin).norm(dim=-1), q.norm(dim=-1).expand(1, 1, 50))
    assert torch.equal(rotate(q, cos[:1], sin[:1]), q), "position 0 stays"
    scores = rotate(q, cos, sin)[0, 0] @ rotate(k, cos, sin)[0, 0].T
    for distance in (-30, -1, 0, 1, 30):
        same = scores.diagonal(distance)
        torch.testing.assert_close(same, same[0].expand_as(same), rtol=0, atol=1e-12)
    assert (scores[0] - scores[0, 0]).abs()[1:].min() > 1e-6, "other distances give other scores"


@pytest.mark.parametrize("form", FORMS)
def test_a_cache_gives_the_same_logits_and_tokens(form):
    model, tokens = decoder(**FORMS[form])
    caches = [KVCache() for _ in model.layers]
    parts = [model(tokens[:, :4], caches), *(model(tokens[:, i : i + 1], caches) for i in range(4, 7))]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens), rtol=0, atol=1e-12)
    assert caches[1].values.shape == (2, model.config.num_kv_heads, 7, 4), "kept once for each kv head, not query head"
    single = model.float().train()
    generated = generate(single, tokens[:, :2], 7)
    assert torch.equal(generated, generate(single, tokens[:, :2], 7, cached=False))
    assert torch.equal(generated[:, -1], single(generated[:, :-1])[:, -1].argmax(-1))
    assert single.training and len({tuple(row) for row in generated.tolist()}) > 1


def test_generation_drops_nothing():
    model, tokens = decoder(torch.float32, block="gpt", dropout=0.5)
    assert torch.equal(generate(model.train(), tokens[:, :2], 5), generate(model.train(), tokens[:, :2], 5))


def test_what_cannot_be_generated_is_said():
    model, tokens = decoder(block="gpt")
    with pytest.raises(ValueError, match="10 tokens do not fit; this gpt has seq_len=9 positions"):
        generate(model, tokens, 4)
    with pytest.raises(ValueError, match="at least one token"):
        generate(model, tokens[:, :0], 4)
    with pytest.raises(ValueError, match="new_tokens=-1 does not work; use 0 or more"):
        generate(model, tokens, -1)
    caches = [KVCache() for _ in model.layers]
    model(tokens[:, :2], caches)
    with pytest.raises(ValueError, match="3 tokens follow a cache of 2; after the first call pass one token a call"):
        model(tokens[:, 2:5], caches)
