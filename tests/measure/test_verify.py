"""`tp.verify` finds the mistakes that raise no error, and says them in words, the same on every rank."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import tp_teach as tp


@pytest.fixture(scope="module")
def four():
    with tp.ranks(world_size=4, check=False) as ranks:
        yield ranks


@pytest.fixture
def answer(four):
    """What every rank is answered: truth and words, which are the same on all."""

    def ask(fn, *args) -> tuple[bool, str]:
        answers = list(four.launch(fn, *args))
        assert len(answers) == 4 and len(set(answers)) == 1, answers
        return answers[0]

    return ask


def told(answer) -> tuple[bool, str]:
    return bool(answer), str(answer)


def block(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16, bias=False), nn.GELU(), nn.Linear(16, 8, bias=False))


def mesh() -> dist.DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def cut(model: nn.Module, **more) -> nn.Module:
    return parallelize_module(model, mesh(), {"1": ColwiseParallel(), "3": RowwiseParallel(), **more})


def of_one_seed() -> tuple[bool, str]:
    return told(tp.verify.replicas(block()))


def of_a_cut_model() -> tuple[bool, str]:
    return told(tp.verify.replicas(cut(block())))


def test_a_model_made_from_one_seed_is_right(answer):
    assert answer(of_one_seed) == (True, "4 parameters; copies of 4 are equal on ranks 0–3")
    assert answer(of_a_cut_model) == (True, "4 parameters; copies of 2 are equal on ranks 0–3")


def of_seeds(*seeds: int) -> tuple[bool, str]:
    model = block()
    torch.manual_seed(seeds[dist.get_rank()])
    nn.init.normal_(model[0].weight)
    return told(tp.verify.replicas(cut(model)))


@pytest.mark.parametrize(
    "seeds, words",
    [
        ((1, 2, 1, 1), "ranks 0, 2, 3 hold one value, rank 1 another"),
        ((1, 2, 1, 2), "ranks 0, 2 hold one value, ranks 1, 3 another"),
        ((1, 2, 2, 2), "rank 0 holds one value, ranks 1–3 another"),
        ((1, 2, 3, 1), "ranks 0, 3 hold one value, rank 1 another, rank 2 another"),
        ((1, 2, 3, 4), "ranks 0–3 hold a value each"),
    ],
)
def test_other_seeds_make_what_is_not_cut_differ(answer, seeds, words):
    assert answer(of_seeds, *seeds) == (False, f"0.weight differs: {words}")


def of_sequence_parallel_norms() -> tuple[bool, str]:
    model = block(dist.get_rank())
    nn.init.normal_(model[0].weight)
    return told(tp.verify.replicas(cut(model, **{"0": SequenceParallel()})))


def test_a_replicated_dtensor_is_compared_by_its_local_copies(answer):
    right, words = answer(of_sequence_parallel_norms)
    assert not right
    assert words.splitlines()[0] == "0.weight differs: ranks 0–3 hold a value each"


def of_parts(seed_of_rank: bool, named: bool) -> tuple[bool, str]:
    model = block()
    torch.manual_seed(7 + seed_of_rank * dist.get_rank())
    model[1] = nn.Linear(8, 4, bias=False)  # this rank's part of (16, 8)
    return told(tp.verify.replicas(model, shards=["1.*"] if named else []))


def test_parts_made_by_hand_should_differ(answer):
    said = "4 parameters; copies of 3 are equal on ranks 0–3, parts of 1 differ"
    assert answer(of_parts, True, True) == (True, said)
    said = "1.weight is the same on ranks 0–3: parts of one matrix that were drawn from the same seed"
    assert answer(of_parts, False, True) == (False, said)
    assert answer(of_parts, True, False) == (False, "1.weight differs: ranks 0–3 hold a value each")


def on_a_mesh(same: bool) -> tuple[bool, str]:
    """Cut along tp, copied along dp; ranks 0 and 2 hold one part, ranks 1 and 3 the other."""
    axes = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Linear(4, 6, bias=False)
    part = torch.full((3, 4), float(axes.get_local_rank("tp")))
    if not same and dist.get_rank() == 3:
        part[1, 1] = 9
    model.weight = nn.Parameter(DTensor.from_local(part, axes, [Replicate(), Shard(0)], run_check=False))
    return told(tp.verify.replicas(model))


def on_one_axis(same: bool) -> tuple[bool, str]:
    """As above, but the DTensor knows the tp axis alone, as without a wrapper for data parallelism."""
    tensor_parallel = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
    model = nn.Linear(4, 6, bias=False)
    torch.manual_seed(0 if same else dist.get_rank() // 2)
    model.weight = nn.Parameter(distribute_tensor(torch.randn(6, 4), tensor_parallel, [Shard(0)]))
    return told(tp.verify.replicas(model))


def test_on_a_mesh_only_ranks_that_hold_the_same_part_are_compared(answer):
    right = (True, "1 parameter; copies of 1 are equal on ranks 0–3")
    assert answer(on_a_mesh, True) == answer(on_one_axis, True) == right
    assert answer(on_a_mesh, False) == (False, "weight, part 1, differs: rank 1 holds one value, rank 3 another")
    said = ["weight, part 0, differs: rank 0 holds one value, rank 2 another"]
    said += ["weight, part 1, differs: rank 1 holds one value, rank 3 another"]
    assert answer(on_one_axis, False) == (False, "\n".join(said))


def of_odd_numbers() -> tuple[bool, str]:
    model = nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
    nan = torch.tensor([math.nan, math.inf, 0.0, 1.0], dtype=torch.bfloat16)
    model.weight.data = (-nan if dist.get_rank() else nan).where(torch.tensor([True, False, True, False]), nan)[None]
    return told(tp.verify.replicas(model))


def test_nan_equals_nan_and_zero_its_negative(answer):
    assert answer(of_odd_numbers)[0]


def of_unequal_models() -> tuple[bool, str]:
    model = nn.ModuleDict({"a": nn.Linear(2, 2 + dist.get_rank() // 3, bias=False)})
    if dist.get_rank() < 2:
        model["b"] = nn.Linear(2, 2, bias=False)
    return told(tp.verify.replicas(model))


def test_other_shapes_and_names_are_said(answer):
    torch.manual_seed(0)
    _, words = answer(of_unequal_models)
    first, *rest = words.splitlines()
    assert first == "a.weight has another shape or dtype: float32 (2, 2) on ranks 0–2, float32 (3, 2) on rank 3"
    assert rest[-1] == "b.weight is on ranks 0, 1 and not on ranks 2, 3"


def of_many() -> tuple[bool, str]:
    torch.manual_seed(dist.get_rank())
    return told(tp.verify.replicas(nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(12)))))


def test_of_many_faults_some_are_shown(answer):
    lines = answer(of_many)[1].splitlines()
    assert len(lines) == 9 and lines[-1] == "and 4 more like these"


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(
        ValueError, match=r"shards names 'fc1', which no plain parameter matches; they are 0.weight, 0.b"
    ):
        tp.verify.replicas(block(), shards=["fc1"])


def of_batch(kind: str) -> tuple[bool, str]:
    rank = dist.get_rank()
    tokens, labels = torch.arange(6).reshape(2, 3), torch.tensor([0, 1])
    if kind == "own":
        labels = labels + rank % 2
    if kind == "part":
        tokens = tokens[: 1 + rank // 2]
    if kind == "dtype" and rank == 0:
        labels = labels.int()
    return told(tp.verify.batch(*((tokens,) if kind == "fewer" and rank == 2 else (tokens, labels))))


@pytest.mark.parametrize(
    "kind, words",
    [
        ("own", "tensor 2 of the batch differs: ranks 0, 2 hold one value, ranks 1, 3 another"),
        (
            "part",
            "tensor 1 of the batch has another shape or dtype: int64 (1, 3) on ranks 0, 1, int64 (2, 3) on ranks 2, 3",
        ),
        (
            "dtype",
            "tensor 2 of the batch has another shape or dtype: int32 (2,) on rank 0, int64 (2,) on ranks 1–3",
        ),
        ("fewer", "the ranks gave different numbers of tensors: 2 on ranks 0, 1, 3, 1 on rank 2"),
    ],
)
def test_a_batch_of_ones_own_is_found(answer, kind, words):
    assert answer(of_batch, kind) == (False, words)


def test_a_shared_batch_is_right(answer):
    assert answer(of_batch, "shared") == (True, "the batch is the same on ranks 0–3")


def of_groups() -> tuple[str, bool]:
    """Each tensor-parallel group has its own part of the global batch."""
    axes = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tokens = torch.full((2, 3), axes.get_local_rank("dp"))
    return str(tp.verify.batch(tokens, group=axes["tp"].get_group())), bool(tp.verify.batch(tokens))


def test_a_batch_is_compared_within_a_group(four):
    run = four.launch(of_groups)
    assert [words for words, _ in run] == ["the batch is the same on ranks 0, 1"] * 2 + [
        "the batch is the same on ranks 2, 3"
    ] * 2
    assert not any(everywhere for _, everywhere in run)


def of_optimizer(when: str) -> tuple[bool, str]:
    model = block()
    if when == "before" or (when == "rank 2" and dist.get_rank() == 2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cut(model)
    if when in ("after", "rank 2") and not (when == "rank 2" and dist.get_rank() == 2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if when == "part":
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    if when == "more":
        optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(1))], lr=0.1)
    return told(tp.verify.optimizer(model, optimizer))


@pytest.mark.parametrize(
    "when, right, words",
    [
        ("after", True, "the optimizer holds all 4 parameters of the model"),
        (
            "before",
            False,
            "2 of 4 parameters of the model are not in the optimizer (1.weight, 3.weight): "
            "it was built before the model was cut or replaced",
        ),
        (
            "rank 2",
            False,
            "rank 2: 2 of 4 parameters of the model are not in the optimizer (1.weight, 3.weight): "
            "it was built before the model was cut or replaced",
        ),
        (
            "part",
            False,
            "2 of 4 parameters of the model are not in the optimizer (1.weight, 3.weight) and will not move",
        ),
        ("more", False, "the optimizer also holds 1 tensor outside the model"),
    ],
)
def test_an_optimizer_over_other_tensors_is_found(answer, when, right, words):
    assert answer(of_optimizer, when) == (right, words)


def test_frozen_parameters_may_be_left_out_and_one_process_can_ask():
    model = block()
    model[1].requires_grad_(False)
    answer = tp.verify.optimizer(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))
    assert answer and str(answer) == repr(answer) == "the optimizer holds all 3 parameters of the model"
    assert tp.verify.replicas(model) and tp.verify.batch(torch.ones(1))
