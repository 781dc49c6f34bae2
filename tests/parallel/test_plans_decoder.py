"""The cut of the decoder: the same model, the collectives that it costs, and what no rank may do alone."""

from collections import Counter
from contextlib import nullcontext
from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tp_teach as tp
from tp_teach.model.generate import generate
from tp_teach.model.transformer import Decoder
from tp_teach.parallel.apply import apply_plan
from tp_teach.parallel.plans import cut_decoder, decoder_plan

# Divides over 2, 3 and 4 ranks; two query heads for each head of keys and values.
SMALL = dict(vocab_size=36, seq_len=12, d_model=48, hidden_dim=36, num_layers=2, num_heads=24, num_kv_heads=12)
BATCH, ELEMENT = 2, 8
STREAM = BATCH * SMALL["seq_len"] * SMALL["d_model"] * ELEMENT
LOGITS = BATCH * SMALL["seq_len"] * SMALL["vocab_size"] * ELEMENT
ENDS = {"whole ends": {}, "vocab": dict(vocab_parallel=True), "loss": dict(vocab_parallel=True, loss_parallel=True)}
PLAIN, SEQUENCE = {}, dict(sequence_parallel=True)


@pytest.fixture(scope="module")
def two():
    with tp.ranks(world_size=2, check=False) as ranks:
        yield ranks


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request):
    with tp.ranks(world_size=request.param, check=False) as ranks:
        yield ranks


def config_of(**changes) -> tp.TrainConfig:
    return tp.TrainConfig.preset("decoder", **{**SMALL, **changes})


def twins(config: tp.TrainConfig, plan: dict | None = None) -> tuple[Decoder, Decoder]:
    """A dense float64 model, equal on all ranks, and its cut twin, made from rank 0's copy alone."""
    torch.manual_seed(0)
    dense = Decoder(config).double()
    for parameter in dense.parameters():
        nn.init.normal_(parameter, std=0.3)
    torch.manual_seed(dist.get_rank())
    cut = Decoder(config).double()
    if dist.get_rank() == 0:
        cut.load_state_dict(dense.state_dict())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if plan is None:
        cut_decoder(cut, config, mesh)
    else:
        apply_plan(cut, plan, mesh)
    return dense, cut


def step(model: Decoder, config: tp.TrainConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Forward and backward on the same batch everywhere; logits and loss."""
    tokens, labels = torch.randint(36, (2, BATCH, 12), generator=torch.Generator().manual_seed(5))
    cut = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    with loss_parallel() if cut and config.loss_parallel else nullcontext():
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
    return logits, loss


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def parity(configs: dict[str, tp.TrainConfig]) -> dict[str, dict[str, float]]:
    """The largest differences between each cut model and its dense twin."""
    found = {}
    for name, config in configs.items():
        dense, cut = twins(config)
        results = [step(model, config) for model in (dense, cut)]
        differences = {what: (whole(b) - a).abs().max().item() for what, a, b in zip("ol", *results, strict=True)}
        pairs = zip(dense.named_parameters(), cut.parameters(), strict=True)
        for (parameter, a), b in pairs:
            assert torch.equal(whole(b), a), f"{name}: {parameter} does not start as the dense one"
            assert b.grad.placements == b.placements, f"{name}: {parameter}'s gradient is laid out otherwise"
            assert b.grad.to_local().untyped_storage().nbytes() == b.to_local().nbytes, f"{name}: {parameter}"
            differences[parameter] = (whole(b.grad) - a.grad).abs().max().item()
        found[name] = differences
    return found


@pytest.mark.parametrize("block", ["llama", "gpt"])
def test_logits_loss_and_gradients_are_the_dense_ones(ranks, block):
    # On two ranks two layers, to see that each is cut; on more one, to save time.
    layers = 2 if len(ranks.launch(dist.get_rank).values) == 2 else 1
    configs = {
        f"{ends}, {stream}, {tied=}": config_of(block=block, tied=tied, num_layers=layers, **ENDS[ends], **stream)
        for ends, stream, tied in product(ENDS, (PLAIN, SEQUENCE), (False, True))
    }
    for name, differences in ranks.launch(parity, configs)[0].items():
        # The same float64 sums in another order; logits of order 10, gradients of order 1.
        assert {key: value for key, value in differences.items() if value > 1e-12} == {}, name


def measured(config: tp.TrainConfig, prepared: bool = True) -> None:
    _, cut = twins(config, decoder_plan(config, prepared=prepared))
    with tp.measure(cut):
        step(cut, config)


def collectives(run: tp.Run) -> dict[tuple[str, str, int], int]:
    """How many there were of each phase, name and payload, the same on every rank."""
    counts = [
        Counter(zip(rows.phase, rows.op, rows.payload_bytes, strict=True)) for _, rows in run.comm.groupby("rank")
    ]
    assert all(count == counts[0] for count in counts)
    return dict(counts[0])


LAYERS = SMALL["num_layers"]
NORM = SMALL["d_model"] * ELEMENT
TOKENS = BATCH * SMALL["seq_len"] * ELEMENT
COLLECTIVES = {
    # Shoeybi et al. 2019, section 3: two all-reduces a layer each way.
    "whole ends": {("forward", "all_reduce", STREAM): 2 * LAYERS, ("backward", "all_reduce", STREAM): 2 * LAYERS},
    # One more each way: for the embedding forward, for the head backward. The logits are gathered.
    "vocab": {
        ("forward", "all_reduce", STREAM): 2 * LAYERS + 1,
        ("forward", "all_gather", LOGITS): 1,
        ("backward", "all_reduce", STREAM): 2 * LAYERS + 1,
    },
    # A maximum, a sum and a loss for each token, instead of its logits.
    "loss": {
        ("forward", "all_reduce", STREAM): 2 * LAYERS + 1,
        ("forward", "all_reduce", TOKENS): 3,
        ("backward", "all_reduce", STREAM): 2 * LAYERS + 1,
    },
}


@pytest.mark.parametrize("block", ["llama", "gpt"])
@pytest.mark.parametrize("ends", ENDS)
def test_collectives_of_a_step(two, ends, block):
    run = two.launch(measured, config_of(block=block, **ENDS[ends]))
    assert collectives(run) == COLLECTIVES[ends]


@pytest.mark.parametrize("block", ["llama", "gpt"])
@pytest.mark.parametrize("ends", ENDS)
def test_collectives_of_a_step_under_sequence_parallelism(two, ends, block):
    """Each all-reduce of the stream becomes an all-gather and a reduce-scatter (Korthikanti et al. 2022, 4.2.2)."""
    plain = two.launch(measured, config_of(block=block, **ENDS[ends]))
    run = two.launch(measured, config_of(block=block, **ENDS[ends], **SEQUENCE))
    counts = collectives(run)
    all_reduces = {key: count for key, count in COLLECTIVES[ends].items() if key[2] == STREAM}
    gathers, scatters = (
        sum(counts.pop((p, op, STREAM)) for p in ("forward", "backward")) for op in ("all_gather", "reduce_scatter")
    )
    if ends == "whole ends":
        # The first norm's tokens are split for nothing and gathered in the backward, the last norm's gathered.
        assert (gathers, scatters) == (4 * LAYERS + 2, 4 * LAYERS)
    else:
        assert gathers == scatters == sum(all_reduces.values())
    # Weights of the norms, and a gpt's biases, see a part of the tokens: their gradients are summed once each.
    norms = (2 * LAYERS + 1) * (2 if block == "gpt" else 1)
    assert counts.pop(("backward", "all_reduce", NORM)) == norms
    if block == "gpt":
        assert counts.pop(("backward", "all_gather", SMALL["seq_len"] * NORM)) == 1  # learned positions
    assert counts == {key: count for key, count in COLLECTIVES[ends].items() if key[2] != STREAM}
    if ends != "whole ends":
        wire = [r.comm[(r.comm["rank"] == 0) & (r.comm.payload_bytes == STREAM)].wire_bytes.sum() for r in (plain, run)]
        assert wire[0] == wire[1], "the same bytes by the ring formula"


def test_unprepared_inputs_are_reduced_once_for_each_linear(two):
    run = two.launch(measured, config_of(), False)
    assert collectives(run) == {
        ("forward", "all_reduce", STREAM): 2 * LAYERS,
        ("backward", "all_reduce", STREAM): 5 * LAYERS,  # q, k, v, gate, up
    }
    run = two.launch(measured, config_of(**SEQUENCE), False)
    assert collectives(run)["forward", "all_gather", STREAM] == 5 * LAYERS + 1


def trained(config: tp.TrainConfig) -> dict[str, object]:
    """What two steps with clipping and a fused optimizer make of the model, and which rank holds what."""
    dense, cut = twins(config)
    placements = {name: (str(p.placements[0]), tuple(p.to_local().shape)) for name, p in cut.named_parameters()}
    norms = []
    for model in (dense, cut):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
        for _ in range(2):
            optimizer.zero_grad()
            step(model, config)
            norms.append(whole(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)).item())
            optimizer.step()
    error = max((whole(b) - a).abs().max().item() for a, b in zip(dense.parameters(), cut.parameters(), strict=True))
    local = {name: p.to_local().detach() for name, p in cut.named_parameters()}
    return dict(
        placements=placements, norms=norms, error=error, local=local, tied=cut.head.weight is cut.token_emb.weight
    )


@pytest.mark.parametrize("stream", [PLAIN, SEQUENCE], ids=["plain", "sequence"])
def test_training_clips_the_true_norm_and_keeps_replicas_equal(two, stream):
    run = two.launch(trained, config_of(tied=True, vocab_parallel=True, **stream))
    found = run[0]
    dense, cut = found["norms"][:2], found["norms"][2:]
    assert cut == pytest.approx(dense, rel=1e-12) and min(dense) > 0.5, "the norm was clipped"
    assert found["error"] < 1e-10  # Adam divides by a root of squares: differences of 1e-16 grow where these are small
    assert found["tied"]
    assert all(placement == "R" for name, (placement, _) in found["placements"].items() if "norm" in name)
    assert found["placements"]["token_emb.weight"] == ("S(0)", (18, 48))
    assert found["placements"]["layers.1.attn.wk.weight"] == ("S(0)", (12, 48))
    assert found["placements"]["layers.1.mlp.down.weight"] == ("S(1)", (48, 18))
    for name, (placement, _) in found["placements"].items():
        same = torch.equal(run[0]["local"][name], run[1]["local"][name])
        assert same == (placement == "R"), name


def frozen_parts(config: tp.TrainConfig) -> tuple[list[str], list[str]]:
    torch.manual_seed(0)
    model = Decoder(config)
    for name in ("layers.0.attn.wq", "layers.1.mlp_norm", "token_emb", "final_norm"):
        model.get_submodule(name).requires_grad_(False)
    before = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    cut_decoder(model, config, init_device_mesh("cpu", (2,)))
    step(model, config)
    return before, [name for name, p in model.named_parameters() if not p.requires_grad and p.grad is None]


def test_frozen_parameters_stay_frozen(two):
    for changes in (PLAIN, dict(tied=True, vocab_parallel=True, sequence_parallel=True)):
        before, after = two.launch(frozen_parts, config_of(**changes))[1]
        assert before == after and len(before) == 4


def generated(config: tp.TrainConfig, prompt: torch.Tensor) -> list[torch.Tensor]:
    dense, cut = (model.float() for model in twins(config))
    return [generate(dense, prompt, 8), generate(cut, prompt, 8), generate(cut, prompt, 8, cached=False)]


@pytest.mark.parametrize("block", ["llama", "gpt"])
def test_cut_models_generate_the_dense_tokens(two, block):
    prompt = torch.randint(36, (3, 4), generator=torch.Generator().manual_seed(0))
    for changes in (PLAIN, ENDS["vocab"], ENDS["loss"] | dict(tied=True)):
        run = two.launch(generated, config_of(block=block, **changes), prompt)
        for dense, cached, plain in run:
            assert torch.equal(dense, cached) and torch.equal(dense, plain)
        assert len(run[0][0][:, 4:].unique()) > 2, "not the same token over and over"


def masks(config: tp.TrainConfig) -> dict[str, torch.Tensor]:
    """What each dropout of one step drops on this rank."""
    _, cut = twins(config)
    torch.manual_seed(3)
    found = {}
    for name, module in cut.named_modules():
        if name.endswith("dropout"):
            module.register_forward_hook(lambda _, given, out, name=name: found.update({name: (out == 0).flatten()}))
    step(cut, config)
    # Half is dropped. Weights of later tokens are zeros before that, the same ones on every rank: leave them out.
    future = torch.ones(12, 12, dtype=torch.bool).triu(1).expand(BATCH, 24 // dist.get_world_size(), 12, 12).flatten()
    return {name: mask[~future] if "weight" in name else mask for name, mask in found.items()}


@pytest.mark.parametrize("stream", [PLAIN, SEQUENCE], ids=["plain", "sequence"])
def test_masks_agree_on_what_is_whole_and_differ_on_what_is_cut(ranks, stream):
    run = ranks.launch(masks, config_of(block="gpt", dropout=0.5, **stream))
    assert len(run[0]) == 1 + 3 * LAYERS
    for name, mask in run[0].items():
        for other in range(1, len(run.values)):
            if stream == SEQUENCE or "weight" in name:
                # Unrelated masks of at least 288 places agree in half of them: a standard deviation of at most 0.03.
                assert (mask == run[other][name]).double().mean().item() == pytest.approx(0.5, abs=0.15), name
            else:
                assert torch.equal(mask, run[other][name]), name


def ways(config: tp.TrainConfig) -> list[dict[str, torch.Tensor]]:
    """Loss and gradients of a step: as it is, with checkpointed blocks, with compiled ones."""
    found = []
    for change in (lambda f: f, lambda f: partial(checkpoint, f, use_reentrant=False), _compiled):
        _, cut = twins(config)
        for layer in cut.layers:
            layer.forward = change(layer.forward)
        torch.manual_seed(3)
        _, loss = step(cut, config)
        found.append({"loss": whole(loss)} | {name: whole(p.grad) for name, p in cut.named_parameters()})
    return found


def _compiled(forward):
    return torch.compile(forward, backend="aot_eager")


@pytest.mark.parametrize(
    "changes",
    [dict(block="gpt", dropout=0.3), dict(block="llama", **SEQUENCE, **ENDS["loss"])],
    ids=["gpt with dropout", "llama"],
)
def test_checkpointed_and_compiled_blocks_change_nothing(two, changes):
    plain, *others = two.launch(ways, config_of(num_layers=1, **changes))[0]
    for other in others:
        for name, value in plain.items():
            torch.testing.assert_close(other[name], value, rtol=0, atol=1e-12, msg=name)


def activations(config: tp.TrainConfig, cut: bool) -> None:
    model = Decoder(config).bfloat16()
    if cut:
        cut_decoder(model, config, init_device_mesh("cpu", (dist.get_world_size(),)))
    with tp.measure(model):
        model(torch.zeros(2, 16, dtype=torch.long)).sum().backward()


@pytest.mark.parametrize("cut", ["whole", "plain", "sequence"])
def test_a_gpt_layer_keeps_what_korthikanti_2022_table_2_says(two, cut):
    """34 + 5as/h, 10 + 24/t + 5as/(ht) and (34 + 5as/h)/t times s·b·h bytes.

    The table leaves out mean and deviation of the two norms, 8/h. Under sequence parallelism DTensor also keeps the two
    gathered inputs, 4(1 - 1/t).
    """
    s, b, h, a, t = 16, 2, 64, 4, 2
    found = []
    for layers in (1, 2):
        config = config_of(
            block="gpt", dropout=0.1, seq_len=s, d_model=h, hidden_dim=4 * h, num_heads=a, num_kv_heads=a,
            num_layers=layers, sequence_parallel=cut == "sequence",
        )  # fmt: skip
        rows = two.launch(activations, config, cut != "whole").memory
        rows = rows[(rows.moment == "forward") & (rows.kind == "activations")]
        assert rows.bytes.nunique() == 1, "on both ranks the same"
        found.append(int(rows.bytes.iloc[0]))
    wanted = {
        "whole": 34 + 5 * a * s / h + 8 / h,
        "plain": 10 + 24 / t + 5 * a * s / (h * t) + 8 / h,
        "sequence": (34 + 5 * a * s / h + 8 / h) / t + 4 * (1 - 1 / t),
    }
    assert found[1] - found[0] == wanted[cut] * s * b * h


def refusals() -> list[str]:
    """The sentences that refuse what does not fit; no rank waits for another."""
    mesh = init_device_mesh("cpu", (2,))
    told = []

    def refused(act, *args) -> None:
        with pytest.raises(ValueError) as error:
            act(*args)
        told.append(str(error.value))

    config = config_of()
    odd = config_of(num_heads=3, num_kv_heads=3)
    refused(cut_decoder, Decoder(odd), odd, mesh)
    few = config_of(num_kv_heads=1)
    refused(cut_decoder, Decoder(few), few, mesh)
    model = Decoder(config)
    plan = decoder_plan(config)
    refused(
        apply_plan,
        model,
        plan | {"layers.*.attn.qkv": plan["layers.*.attn.wq"]},
        mesh,
    )
    refused(apply_plan, model, plan | {"layers.1.attn.w?": plan["layers.*.attn.wq"]}, mesh)
    refused(apply_plan, nn.Sequential(nn.Linear(4, 7)), {"0": plan["layers.*.attn.wq"]}, mesh)
    refused(apply_plan, nn.Sequential(nn.Linear(7, 4)), {"0": plan["layers.*.attn.wo"]}, mesh)
    refused(apply_plan, nn.Sequential(nn.Embedding(7, 4)), {"0": plan["layers.*.attn.wo"]}, mesh)
    refused(apply_plan, model, plan, init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp")))
    assert not any(isinstance(parameter, DTensor) for parameter in model.parameters()), "nothing was cut"
    tied = config_of(tied=True)
    refused(apply_plan, Decoder(tied), {"head": plan["layers.*.attn.wq"]}, mesh)
    sequence = config_of(**SEQUENCE)
    cut_decoder(model, sequence, mesh)
    refused(cut_decoder, model, sequence, mesh)
    refused(model, torch.zeros(1, 5, dtype=torch.long))
    return told


def test_what_does_not_fit_is_refused_in_a_sentence(two):
    for found in two.launch(refusals):
        heads, kv, key, twice, rows, columns, embedding, mesh, tie, again, tokens = found
        assert heads.startswith("num_heads=3 does not divide over 2 ranks; use num_heads=2 or 4")
        assert kv.startswith("num_kv_heads=1 does not divide over 2 ranks; use num_kv_heads=2")
        assert key.startswith(
            "the plan's key 'layers.*.attn.qkv' matches no module; the modules are final_norm, head, "
        )
        assert "layers.*.attn.wq" in key
        assert twice.startswith("layers.1.attn.wq would be cut twice, by the plan's keys 'layers.*.attn.wq' and ")
        assert rows == "0: out_features=7 does not divide over 2 ranks"
        assert columns == "0: in_features=7 does not divide over 2 ranks"
        assert embedding == "0: num_embeddings=7 does not divide over 2 ranks"
        assert mesh == "the mesh has 2 dimensions ('dp', 'tp'); pass one of them, as mesh['tp']"
        assert tie.startswith("token_emb and head share a weight, but would be cut differently: ")
        assert "is cut already" in again
        assert tokens.startswith("5 tokens do not divide over 2 ranks, and sequence_parallel=True gives each an equal")
