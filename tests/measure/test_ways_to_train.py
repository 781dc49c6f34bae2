"""A step of each way to train: compiled, with FSDP2, with native data parallelism, under autocast."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import tp_teach as tp
from tests.measure.alone import logged, memory_of
from tp_teach.model.toy import ToyTransformer

FLOAT = 4
CONFIG = tp.TrainConfig(
    vocab_size=12, seq_len=6, d_model=8, hidden_dim=12, num_layers=2, num_classes=4, num_samples=12, batch_size=4
)
PLAN = {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()}
BLOCK = 2 * 8 + 2 * 8 * 12  # numbers in an MLP block
REST = 12 * 8 + 6 * 8 + 2 * 8 + 8 * 4 + 4  # and in all the rest: embeddings, norm, head
TOKENS = torch.arange(4 * 6).reshape(4, 6) % 12


@pytest.fixture(scope="module")
def two():
    # Without torch's own checks: under them this version of torch crashes when a data-parallel model is dropped.
    with tp.ranks(world_size=2, check=False) as ranks:
        yield ranks


def toy() -> ToyTransformer:
    torch.manual_seed(0)
    return ToyTransformer(CONFIG)


def steps(model: nn.Module, warm: int, measured: nn.Module | None = None, how_many: int = 1) -> None:
    """Some steps as they are, then `how_many` measured ones."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def one() -> None:
        optimizer.zero_grad()
        model(TOKENS).sum().backward()
        optimizer.step()

    for _ in range(warm):
        one()
    for step in range(how_many):
        with tp.measure(measured or model, optimizer, step=step):
            one()


def cut_toy() -> ToyTransformer:
    model = toy()
    for layer in model.layers:
        parallelize_module(layer, init_device_mesh("cpu", (2,)), PLAN)
    return model


def cut(warm: int, compiled: str) -> bool:
    """The toy cut over two ranks; compiled are its blocks, itself, or nothing. Is all as before afterwards?"""
    model = cut_toy()
    parts = {"blocks": list(model.layers), "whole": [model], "": []}[compiled]
    for part in parts:
        part.compile(backend="aot_eager")
    calls = [part._compiled_call_impl for part in parts]
    steps(model, warm)
    return all(part._compiled_call_impl is call for part, call in zip(parts, calls, strict=True))


def sums(table, names: dict[str, str], number: str) -> dict[tuple, list[int]]:
    """Rows and their sum by rank, phase, module and operation; a module may go by another's name."""
    table = table.assign(module=[names.get(module, module) for module in table["module"]])
    groups = table.groupby(["rank", "phase", "module", "op"])[number]
    return {key: [len(group), int(group.sum())] for key, group in groups}


def flops(run, names: dict[str, str]) -> dict[tuple, int]:
    return {key: total for key, (_, total) in sums(run.flops, names, "flops").items()}


def memory(run, moment: str, rank: int = 1) -> dict[str, int]:
    rows = run.memory[(run.memory["rank"] == rank) & (run.memory["moment"] == moment)]
    return dict(zip(rows["kind"], rows["bytes"], strict=True))


BLOCKS = {f"layers.{i}.fc{j}": f"layers.{i}" for i in (0, 1) for j in (1, 2)}


@pytest.mark.parametrize(
    ("compiled", "warm", "names"),
    [("blocks", 2, BLOCKS), ("blocks", 0, BLOCKS), ("whole", 2, dict.fromkeys([*BLOCKS, "head"], ""))],
    ids=["blocks", "blocks, compiled while measured", "whole"],
)
def test_compiled_code_moves_computes_and_keeps_the_same(two, compiled, warm, names):
    """The parts of a compiled module have no name of their own; else all is as in the model that is not compiled."""
    plain, run = two.launch(cut, warm, ""), two.launch(cut, warm, compiled)
    assert run.values == [True, True]
    assert set(run.comm["module"]) == set(names.values())  # so it was compiled code that ran
    assert sums(run.comm, names, "payload_bytes") == sums(plain.comm, names, "payload_bytes")
    assert flops(run, names) == flops(plain, names)
    for moment in ("init", "forward", "backward", "step"):
        assert memory(run, moment) == memory(plain, moment), moment


def shared_out() -> list[int]:
    """FSDP2: each rank holds half of every parameter, and a block is whole while it is at work."""
    model = toy()
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    steps(model, 1)
    return [parameter.to_local().nbytes for parameter in model.parameters()]


def test_fsdp_gathers_a_block_before_it_works_and_holds_it_as_temporary(two):
    run, plain = two.launch(shared_out), two.launch(dense)
    comm = run.comm[run.comm["rank"] == 0]
    names = ["", "layers.0", "layers.1"]
    sizes = [FLOAT * REST, FLOAT * BLOCK, FLOAT * BLOCK]
    gathers = [("forward", name, "all_gather", size) for name, size in zip(names, sizes, strict=True)]
    # In the backward a block is gathered before it is needed, so the next is asked for while the head is at work.
    again = [("backward", name, "all_gather", FLOAT * BLOCK) for name in ("head", "layers.1")]
    scatters = [("backward", name, "reduce_scatter", size) for name, size in zip(names, sizes, strict=True)]
    assert list(zip(comm["phase"], comm["module"], comm["op"], comm["payload_bytes"], strict=True)) == [
        *gathers,
        *again,
        *reversed(scatters),
    ]
    held = sum(run[1])
    assert held == FLOAT * (REST + 2 * BLOCK) / 2
    for moment in ("init", "backward", "step"):
        assert memory(run, moment)["parameters"] == held
        assert memory(run, moment)["gradients"] == held  # at first those of the step before
        assert memory(run, moment)["activations"] == 0
    # Autograd saves whole weights too; they are no activations, and gone when their block is done.
    assert memory(run, "forward")["activations"] == memory(plain, "forward")["activations"]
    after = memory(plain, "backward")["temporary"]
    assert memory(run, "backward")["temporary"] == after
    assert memory(run, "forward")["temporary"] == memory(plain, "forward")["temporary"] + FLOAT * REST
    assert flops(run, {}) == flops(plain, {})


def dense() -> None:
    steps(toy(), 1)


def data_parallel(inside: bool) -> None:
    model = toy()
    wrapped = DistributedDataParallel(model)
    steps(wrapped, 2, measured=model if inside else None, how_many=2)


@pytest.mark.parametrize("inside", [True, False], ids=["the model", "its wrapper"])
def test_native_data_parallelism_adds_up_one_bucket_in_the_backward(two, inside):
    run = two.launch(data_parallel, inside)
    last = "token_emb" if inside else "module.token_emb"  # whose gradient fills the bucket
    wanted = [("backward", last, "all_reduce", FLOAT * (REST + 2 * BLOCK))]
    for _, rows in run.comm.groupby(["rank", "step"]):
        assert list(zip(rows["phase"], rows["module"], rows["op"], rows["payload_bytes"], strict=True)) == wanted
    assert len(run.comm) == 2 * 2


class Tied(nn.Module):
    """The table of token vectors, cut along its width, is also the head's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(12, 4)
        self.head = nn.Linear(4, 12, bias=False)
        table = distribute_tensor(self.emb.weight.detach(), init_device_mesh("cpu", (2,)), [Shard(1)])
        self.emb.weight = self.head.weight = nn.Parameter(table)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        vectors = F.embedding(distribute_tensor(tokens, self.emb.weight.device_mesh, [Replicate()]), self.emb.weight)
        return self.head(vectors).full_tensor()


def tied() -> None:
    steps(Tied(), 1)


def test_a_tied_cut_weight_counts_once_and_only_its_part(two):
    held = memory(two.launch(tied), "step")
    part = FLOAT * 12 * 4 // 2
    assert (held["parameters"], held["gradients"], held["optimizer"]) == (part, part, 2 * part + FLOAT)


def test_under_autocast_copies_of_weights_are_kept_with_the_activations():
    """x, weight and bias are copied to bfloat16; autograd keeps the first two copies, and forgets them afterwards."""
    model = nn.Linear(4, 6)
    given = torch.ones(3, 4)

    def step() -> None:
        with tp.measure(model):
            with torch.autocast("cpu", torch.bfloat16):
                out = model(given).sum()
            out.backward()

    log = logged(step)
    memory = memory_of(log)
    # x needs no gradient, so nothing needs the weight again: of x the copy, of the weight none.
    assert memory["forward"]["activations"] == 2 * 3 * 4
    assert memory["backward"]["activations"] == 0
    assert [row["flops"] for row in log.rows["flops"]] == [2 * 3 * 4 * 6] * 2
    given.requires_grad_()
    assert memory_of(logged(step))["forward"]["activations"] == 2 * (3 * 4 + 4 * 6)
