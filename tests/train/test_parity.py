"""However a model is cut and trained, it computes what its dense twin computes: losses, gradients, weights."""

from contextlib import ExitStack
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import tp_teach as tp
from tp_teach.tables import Log, current_log
from tp_teach.train.build import build, make_mesh
from tp_teach.train.data import endless_batches
from tp_teach.train.loop import fit

CPU = torch.device("cpu")
SIZES = dict(vocab_size=36, seq_len=12, d_model=48, hidden_dim=24, num_layers=2, num_samples=40, batch_size=4)
LLAMA = tp.TrainConfig(
    **SIZES,
    model="decoder",
    num_heads=24,
    num_kv_heads=12,
    num_workers=0,
    max_steps=20,
    lr=1e-3,
    log_every=10,
    task="next-token",
    dtype="float64",
)
GPT = replace(LLAMA, block="gpt", num_heads=12)
TOY = tp.TrainConfig(**SIZES, num_classes=5, num_workers=0, max_steps=20, lr=1e-3, log_every=10, dtype="float64")

PLAIN = {}
SEQUENCE = dict(sequence_parallel=True)
VOCAB = dict(vocab_parallel=True)
LOSS = dict(vocab_parallel=True, loss_parallel=True)
ALL = SEQUENCE | LOSS
DDP, FSDP = dict(data_parallel=2, data_parallel_kind="ddp"), dict(data_parallel=2, data_parallel_kind="fsdp")


def trained(config: tp.TrainConfig, mesh) -> tuple[list[float], dict, dict]:
    """Losses and gradient norms of all steps, gradients of the first step and weights after the last, in whole."""
    model, optimizer = build(config, CPU, mesh)
    first: dict = {}

    def keep(*step) -> None:
        first.update(first or {name: whole(p.grad) for name, p in model.named_parameters()})

    optimizer.register_step_pre_hook(keep)
    log = Log(0)
    token = current_log.set(log)
    try:
        fit(config, model, optimizer, endless_batches(config), mesh)
    finally:
        current_log.reset(token)
    numbers = [row[name] for row in log.rows["steps"] for name in ("loss", "grad_norm")]
    return numbers, first, {name: whole(p) for name, p in model.named_parameters()}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def cut(config: tp.TrainConfig):
    numbers, *tensors = trained(config, make_mesh(config, CPU))
    return numbers, *(tensors if dist.get_rank() == 0 else ())


@cache
def dense(config: tp.TrainConfig):
    return trained(config, None)


def twin(config: tp.TrainConfig) -> tp.TrainConfig:
    """The same model and training, not cut, with no way of saving memory or time."""
    cuts = ("data_parallel", "sequence_parallel", "vocab_parallel", "loss_parallel")
    ways = ("accumulate", "checkpointing", "compile", "autocast")
    return replace(config, **{name: type(config).__dataclass_fields__[name].default for name in (*cuts, *ways)})


def check(ranks, config: tp.TrainConfig, tolerance: float) -> None:
    want_numbers, *wanted = dense(twin(config))
    run = ranks.launch(cut, config)
    for numbers, *_ in run:
        assert numbers == pytest.approx(want_numbers, rel=tolerance, abs=0)
    for kind, want, got in zip(("gradient", "weight"), wanted, run[0][1:], strict=True):
        assert want.keys() == got.keys()
        for name, tensor in want.items():
            scale = tensor
            if config.block == "gpt" and name.endswith("wk.bias"):
                # It adds the same to all scores of a token, which a softmax takes away again: its gradient is 0 but for
                # roundings, and AdamW divides roundings by their own size.
                if kind == "weight":
                    continue
                scale = want[name.replace("wk", "wq")]
            apart = (got[name] - tensor).abs().max() / scale.abs().max()
            assert apart <= tolerance, f"{kind} of {name}: {apart:.1e}"


@pytest.fixture(scope="module")
def ranks_of():
    """Warm ranks by their number."""
    with ExitStack() as stack:
        yield {size: stack.enter_context(tp.ranks(world_size=size, check=False, show="none")) for size in (2, 3, 4)}


def case(world_size: int, base: tp.TrainConfig, *changes: dict, **more) -> object:
    both: dict = {}
    for part in (*changes, more):
        both |= part
    family = {LLAMA: "llama", GPT: "gpt", TOY: "toy"}[base]
    words = [f"{name}={value}" for name, value in both.items()]
    return pytest.param(world_size, replace(base, **both), id="-".join([f"{world_size}", family, *words]))


CASES = [
    case(2, LLAMA),
    case(2, LLAMA, ALL, tied=True, qkv_bias=True, clip=0.1, num_layers=1),
    case(2, LLAMA, FSDP, num_kv_heads=1, accumulate=2),
    case(2, GPT, SEQUENCE, num_kv_heads=4, num_layers=1),
    case(2, GPT, LOSS, tied=True, checkpointing=True, num_layers=1),
    case(3, LLAMA, VOCAB, checkpointing=True, num_layers=1),
    case(3, GPT, ALL, accumulate=2, num_layers=1),
    case(3, TOY, clip=0.1, checkpointing=True),
    case(4, LLAMA, ALL, FSDP, tied=True, clip=0.1, accumulate=2, checkpointing=True, num_layers=1),
    case(4, GPT, DDP, ALL, checkpointing=True, clip=0.1, num_layers=1),
    case(4, GPT, FSDP, SEQUENCE, accumulate=2, num_layers=1),
    case(4, TOY, FSDP, clip=0.1),
    case(4, TOY, DDP, accumulate=2),
]


@pytest.mark.parametrize(("world_size", "config"), CASES)
def test_it_computes_what_its_dense_twin_computes(ranks_of, world_size, config):
    """In float64 sums in another order differ by 1e-16 each; AdamW divides by a gradient's own size 20 times."""
    check(ranks_of[world_size], config, 1e-12)


@pytest.mark.parametrize("changes", [LOSS | SEQUENCE], ids=["loss sequence"])
def test_in_float32_too(ranks_of, changes):
    """Roundings are 6e-8 each; on their way through a block and 20 steps of AdamW they grow to some 1e-6."""
    check(ranks_of[2], replace(LLAMA, dtype="float32", num_layers=1, **changes), 1e-5)


@pytest.mark.parametrize(
    "way", [dict(dtype="bfloat16"), dict(dtype="float32", autocast=True)], ids=["bf16", "autocast"]
)
@pytest.mark.parametrize("changes", [ALL, FSDP], ids=["all", "fsdp"])
def test_in_bfloat16_it_differs_from_float32_as_the_dense_twin_does(ranks_of, changes, way):
    """bfloat16 has no tolerance of its own: how far the dense twin lies from its own float32 is what is asked."""
    config = replace(LLAMA, max_steps=2, log_every=1, **changes | way)
    exact, _ = dense(replace(twin(config), dtype="float32"))[:2]
    rounded, _ = trained(replace(twin(config), autocast=config.autocast), None)[:2]
    allowed = 2 * max(abs(a - b) for a, b in zip(exact, rounded, strict=True))
    assert allowed > 1e-4, "bfloat16 was not used"
    for numbers, *_ in ranks_of[2].launch(cut, config):
        assert max(abs(a - b) for a, b in zip(exact, numbers, strict=True)) <= allowed
