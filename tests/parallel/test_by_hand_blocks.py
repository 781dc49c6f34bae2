"""A block by hand, by DTensor and dense: the same numbers, and the first two by the same collectives."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import tp_teach as tp
from tp_teach.model.toy import MLPBlock
from tp_teach.model.transformer import Decoder, DecoderBlock
from tp_teach.parallel.apply import apply_plan
from tp_teach.parallel.by_hand_blocks import cut_decoder_block_by_hand, cut_mlp_block_by_hand
from tp_teach.parallel.plans import block_plan, cut_mlp_blocks

BATCH, SEQ = 2, 12
D, HIDDEN = 5, 12
COLUMNS = ["rank", "index", "phase", "module", "op", "group", "dtype", "shape", "payload_bytes", "wire_bytes"]


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request):
    with tp.ranks(world_size=request.param, check=False, show="none") as these:
        yield these


def both_ways() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The toy's block by hand (step 0) and by DTensor (step 1)."""
    torch.manual_seed(0)
    dense = MLPBlock(D, HIDDEN).double()
    x = torch.randn(2, 3, D, dtype=torch.float64)
    blocks = [MLPBlock(D, HIDDEN).double() for _ in range(2)]
    for block in blocks:
        block.load_state_dict(dense.state_dict())
    cut_mlp_block_by_hand(blocks[0], dist.group.WORLD)
    cut_mlp_blocks(nn.ModuleList(blocks[1:]), init_device_mesh("cpu", (dist.get_world_size(),)))
    found = []
    for step, block in enumerate((*blocks, dense)):
        mine = x.clone().requires_grad_()
        with tp.measure(block, step=step):
            out = block(mine)
            out.square().sum().backward()
        found.append([out.detach(), mine.grad, block.ln.weight.grad, block.ln.bias.grad])
    pairs = [(a, b) for block in found[:2] for a, b in zip(block, found[2], strict=True)]
    for name, dim in (("fc1", 0), ("fc2", 1)):
        grads = [block.get_parameter(f"{name}.weight").grad for block in (*blocks, dense)]
        pairs += [(grads[0], grads[1].to_local()), (grads[0], own(grads[2], dim))]
    return pairs


def test_the_toys_block_by_the_same_collectives(ranks):
    run = ranks.launch(both_ways)
    for pairs in run:
        for got, wanted in pairs:
            # Sums of up to 12 numbers of order one, taken in another order.
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    comm, n = run.comm, ranks.choice.world_size
    by_hand, by_dtensor = (comm[comm["step"] == step][COLUMNS].values.tolist() for step in (0, 1))
    size = 2 * 3 * D * 8
    payload = [",".join(map(str, range(n))), "float64", f"(2, 3, {D})", size, round(2 * (n - 1) / n * size)]
    wanted = [
        [rank, index, phase, module, "all_reduce", *payload]
        for rank in range(n)
        for index, (phase, module) in enumerate((("forward", "fc2"), ("backward", "fc1")))
    ]
    assert by_hand == by_dtensor == wanted


def config_of(block: str, sequence_parallel: bool, dropout: float = 0.0, **changes) -> tp.TrainConfig:
    sizes = dict(d_model=48, hidden_dim=36, num_heads=24, num_kv_heads=12, num_layers=1, vocab_size=7, seq_len=SEQ)
    return tp.TrainConfig.preset(
        "decoder", block=block, sequence_parallel=sequence_parallel, dropout=dropout, **(sizes | changes)
    )


class Alone(nn.Module):
    """One block of a decoder, named as in the decoder so that the plan finds it."""

    def __init__(self, config: tp.TrainConfig) -> None:
        super().__init__()
        torch.manual_seed(0)
        model = Decoder(config).double()
        self.layers = model.layers
        for name, parameter in self.named_parameters():
            if "norm" in name:
                nn.init.normal_(parameter)
        # What the decoder hands to a block beside the activations: where the tokens stand.
        hook = self.block.register_forward_pre_hook(self._keep, with_kwargs=True)
        model(torch.zeros(1, SEQ, dtype=torch.int64))
        hook.remove()

    def _keep(self, block: nn.Module, args: tuple, kwargs: dict) -> None:
        self.others = args[1:], kwargs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        args, kwargs = self.others
        return self.block(x, *args, **kwargs)

    @property
    def block(self) -> DecoderBlock:
        return self.layers[0]


def own(whole: torch.Tensor, dim: int) -> torch.Tensor:
    return whole.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def part_of(name: str, whole: torch.Tensor) -> torch.Tensor:
    """What a rank holds of a parameter."""
    layer, kind = name.split(".")[-2:]
    if layer in ("wq", "wk", "wv", "gate", "up", "fc1"):
        return own(whole, 0)
    return own(whole, 1) if layer in ("wo", "down", "fc2") and kind == "weight" else whole


def three_ways(config: tp.TrainConfig) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """By hand (step 0), by DTensor (step 1) and dense: what each makes, beside what the dense block makes."""
    by_hand, by_dtensor, dense = (Alone(config) for _ in range(3))
    cut_decoder_block_by_hand(by_hand.block, dist.group.WORLD, sequence_parallel=config.sequence_parallel)
    apply_plan(by_dtensor, block_plan(config), init_device_mesh("cpu", (dist.get_world_size(),)))
    x, factor = torch.randn(2, BATCH, SEQ, config.d_model, dtype=torch.float64)
    found = []
    for step, model in enumerate((by_hand, by_dtensor, dense)):
        cut = config.sequence_parallel and model is not dense
        torch.manual_seed(1)  # where the masks of dropout come from
        mine = (own(x, 1) if cut else x).clone().requires_grad_()
        with nullcontext() if model is dense else tp.measure(model, step=step):
            out = model(mine)
            (out * (own(factor, 1) if cut else factor)).sum().backward()
        grads = {name: p.grad for name, p in model.named_parameters()}
        grads = {name: grad.to_local() if isinstance(grad, DTensor) else grad for name, grad in grads.items()}
        found.append({"out": out.detach(), "input": mine.grad} | grads)
    hand, dtensor, whole = found
    assert set(hand) == set(dtensor) == set(whole)
    if config.dropout:  # each rank draws masks of its own for its heads: the dense block has no such masks
        return [(name, hand[name], dtensor[name]) for name in hand]
    stream = (lambda t: own(t, 1)) if config.sequence_parallel else (lambda t: t)
    wanted = {name: stream(t) if name in ("out", "input") else part_of(name, t) for name, t in whole.items()}
    return [(name, made[name], wanted[name]) for made in (hand, dtensor) for name in wanted]


@pytest.mark.parametrize(("block", "dropout"), [("llama", 0.0), ("gpt", 0.0), ("gpt", 0.2)])
@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["plain", "sequence"])
def test_the_same_numbers_by_the_same_collectives(ranks, block, dropout, sequence_parallel):
    config = config_of(block, sequence_parallel, dropout, qkv_bias=True)
    run = ranks.launch(three_ways, config)
    for found in run:
        for name, got, wanted in found:
            # Sums of up to 48 numbers of order one, taken in another order.
            torch.testing.assert_close(
                got, wanted, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
            )
    comm, n = run.comm, ranks.choice.world_size
    by_hand, by_dtensor = (comm[comm["step"] == step][COLUMNS].values.tolist() for step in (0, 1))
    assert by_hand == by_dtensor
    counts = comm[comm["step"] == 0].groupby(["rank", "phase", "op"]).size()
    for rank in range(n):
        assert counts[rank].to_dict() == expected(config)


def expected(config: tp.TrainConfig) -> dict[tuple[str, str], int]:
    """Two all-reduces each way, or their halves, and what sums the gradients of norms that see a part each."""
    if not config.sequence_parallel:
        return {("forward", "all_reduce"): 2, ("backward", "all_reduce"): 2}
    halves = {(phase, op): 2 for phase in ("forward", "backward") for op in ("all_gather", "reduce_scatter")}
    return halves | {("backward", "all_reduce"): 2 if config.block == "llama" else 4}


def refuse(changes: dict) -> tuple[str, bool]:
    """What is said, and that nothing was cut."""
    block = Alone(config_of("llama", False, **changes)).block
    before = str(block)
    try:
        cut_decoder_block_by_hand(block, dist.group.WORLD)
    except ValueError as error:
        return str(error), str(block) == before
    return "", False


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"num_heads": 1, "num_kv_heads": 1}, "attn.wq: heads=1 does not divide over {n} ranks; use heads={n}"),
        ({"num_kv_heads": 1}, "attn.wk: heads=1 does not divide over {n} ranks; use heads={n}"),
        ({"hidden_dim": 1}, "mlp: hidden_dim=1 does not divide over {n} ranks; use hidden_dim={n}"),
    ],
)
def test_what_does_not_divide_is_refused_before_anything_is_cut(ranks, changes, wanted):
    n = ranks.choice.world_size
    assert ranks.launch(refuse, changes).values == [(wanted.format(n=n), True)] * n
