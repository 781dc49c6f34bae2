"""What real ranks do is what arithmetic said: every count, byte and operation, over a grid of configurations.

Nothing has a tolerance. Sizes are small and few of them are powers of two.
"""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tp_teach as tp

DECODER = dict(
    model="decoder",
    vocab_size=24,
    seq_len=12,
    d_model=24,
    hidden_dim=36,
    num_layers=1,
    num_heads=12,
    num_kv_heads=12,
    num_samples=48,
    batch_size=4,
    num_workers=0,
    max_steps=2,
)
TOY = dict(
    vocab_size=11,
    seq_len=5,
    d_model=7,
    hidden_dim=12,
    num_layers=2,
    num_classes=3,
    num_samples=12,
    batch_size=4,
    num_workers=0,
    max_steps=2,
)
VOCAB = dict(vocab_parallel=True)
LOSS = VOCAB | dict(loss_parallel=True)
SP = dict(sequence_parallel=True)
GPT = dict(block="gpt", dropout=0.1)
BF16 = dict(dtype="bfloat16")
FSDP = dict(data_parallel=2, data_parallel_kind="fsdp")
DDP = dict(data_parallel=2)
GRID = {
    "llama": {},
    "llama, vocabulary": VOCAB,
    "llama, parallel loss, grouped heads, bf16": LOSS | BF16 | dict(num_heads=24, num_kv_heads=12, d_model=48),
    "llama, sequence": SP | dict(num_layers=2),
    "llama, sequence, vocabulary, biases": SP | VOCAB | dict(qkv_bias=True),
    "llama, everything, tied, bf16": SP | LOSS | BF16 | dict(tied=True),
    "gpt": GPT,
    "gpt, no dropout, batch of 1, bf16": BF16 | dict(block="gpt", batch_size=1),
    "gpt, sequence": GPT | SP,
    "gpt, everything, grouped heads, tied": GPT
    | SP
    | LOSS
    | dict(num_heads=24, num_kv_heads=12, d_model=48, tied=True),
    "llama, float64, clipped": SP | LOSS | dict(dtype="float64", clip=0.1),
    "llama, one step of three micro-batches": LOSS | dict(max_steps=1, batch_size=6, accumulate=3),
    "llama, checkpointing, two micro-batches": SP | dict(checkpointing=True, accumulate=2),
    "gpt, checkpointing, bf16": GPT | BF16 | dict(checkpointing=True),
}
TWO_DIMENSIONS = {
    "toy, fsdp, uneven": TOY | FSDP,
    "llama, fsdp, clipped": DECODER | FSDP | dict(clip=0.1, num_layers=2),
    "llama, fsdp, everything, uneven, bf16": DECODER | FSDP | SP | LOSS | BF16 | dict(vocab_size=22, hidden_dim=2),
    "gpt, fsdp, checkpointing, tied": DECODER | FSDP | GPT | SP | VOCAB | dict(checkpointing=True, tied=True),
    "gpt, fsdp over four": DECODER | FSDP | GPT | LOSS | dict(data_parallel=4, accumulate=1),
    "toy, ddp": TOY | DDP | BF16,
    "llama, ddp, two micro-batches": DECODER | DDP | dict(accumulate=2),
    "gpt, ddp, everything, tied": DECODER | DDP | GPT | SP | LOSS | dict(tied=True),
}
ONES = ("vocab_size", "seq_len", "d_model", "num_layers", "num_classes", "batch_size", "max_steps")
TOYS = {
    "toy, batch of 1": {"batch_size": 1, "num_layers": 1},
    "toy, odd sizes": dict(d_model=13, hidden_dim=60, seq_len=17, batch_size=5, num_layers=3, task="first-token"),
    "toy, all ones": dict.fromkeys(ONES, 1),
    "toy, bf16, clipped": BF16 | dict(clip=0.1),
    "toy, checkpointing, two micro-batches": dict(checkpointing=True, accumulate=2),
}


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request):
    with tp.ranks(world_size=request.param, check=False) as ranks:
        yield ranks


def check(ranks, config: tp.TrainConfig) -> None:
    world_size = ranks.choice.world_size
    run, predicted = ranks.launch(tp.train, config), tp.predict(config, world_size)
    rows = run.compare(predicted)
    assert rows["equal"].all(), run.differences(predicted)
    assert set(rows["table"]) == {"shards", "comm", "memory", "flops"}
    assert set(rows["rank"]) == set(range(world_size))
    # `compare` sums, and joins memory on what both runs state: row by row, shapes and order are the same too.
    assert run.shards.equals(predicted.shards)
    assert run.comm.drop(columns="seconds").equals(predicted.comm.drop(columns="seconds"))
    key = ["rank", "step", "moment", "kind", "bytes"]
    both = predicted.memory[key].merge(run.memory[key], how="left", on=key, indicator=True)["_merge"] == "both"
    assert both.all() and len(both) == world_size * 4 * 4  # moments, kinds


@pytest.mark.parametrize("changes", GRID.values(), ids=GRID)
def test_decoder(ranks, changes):
    check(ranks, tp.TrainConfig(**DECODER | changes))


@pytest.mark.parametrize("changes", TOYS.values(), ids=TOYS)
def test_toy(ranks, changes):
    check(ranks, tp.TrainConfig(**TOY | changes))


@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize("fields", TWO_DIMENSIONS.values(), ids=TWO_DIMENSIONS)
def test_two_dimensions(ranks, fields):
    check(ranks, tp.TrainConfig(**fields))


@pytest.mark.parametrize("ranks", [1], indirect=True)
@pytest.mark.parametrize("changes", [SP | LOSS, GPT | dict(checkpointing=True)])
def test_one_rank(ranks, changes):
    check(ranks, tp.TrainConfig(**DECODER | changes))
    check(ranks, tp.TrainConfig(**TOY))


@st.composite
def decoders(draw, world_size: int) -> tp.TrainConfig:
    """A decoder that divides over so many ranks, of odd sizes."""
    data_parallel = draw(st.sampled_from([n for n in range(1, world_size + 1) if world_size % n == 0]))
    ranks = world_size // data_parallel
    block, accumulate = draw(st.sampled_from(["llama", "gpt"])), draw(st.integers(1, 2))
    kv_heads = ranks * draw(st.integers(1, 2))
    heads = kv_heads * draw(st.integers(1, 3))
    vocab_parallel = draw(st.booleans())
    return tp.TrainConfig(
        model="decoder",
        block=block,
        num_kv_heads=kv_heads,
        num_heads=heads,
        d_model=heads * draw(st.sampled_from([2, 4, 6] if block == "llama" else [2, 3, 5])),
        hidden_dim=ranks * draw(st.integers(2, 7)),
        vocab_size=ranks * draw(st.integers(2, 9)),
        seq_len=ranks * draw(st.integers(1, 5)),
        num_layers=draw(st.integers(1, 2)),
        batch_size=data_parallel * accumulate * draw(st.integers(1, 3)),
        data_parallel=data_parallel,
        data_parallel_kind=draw(st.sampled_from(["ddp", "fsdp"])),
        accumulate=accumulate,
        tied=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.2])) if block == "gpt" else 0.0,
        sequence_parallel=draw(st.booleans()),
        vocab_parallel=vocab_parallel,
        loss_parallel=vocab_parallel and draw(st.booleans()),
        dtype=draw(st.sampled_from(["float32", "bfloat16", "float64"])),
        clip=draw(st.sampled_from([None, 0.5])),
        checkpointing=draw(st.booleans()),
        num_workers=0,
        num_samples=48,
        max_steps=2,
    )


# The same examples each time. Each is a real launch, so none is spent on finding a smaller failure.
@settings(
    derandomize=True,
    database=None,
    max_examples=3,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_drawn_decoders(ranks, data):
    check(ranks, data.draw(decoders(ranks.choice.world_size)))
