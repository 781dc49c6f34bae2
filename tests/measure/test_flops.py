"""Floating-point operations of one rank: matrix products at local shapes, against counts worked out by hand."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

import tp_teach as tp
from tests.measure.alone import logged
from tp_teach.model.toy import MLPBlock, ToyTransformer

CONFIG = tp.TrainConfig(
    vocab_size=11, seq_len=5, d_model=8, hidden_dim=12, num_layers=2, num_classes=3, num_samples=9, batch_size=3
)


def flops_of(model: nn.Module, *given: torch.Tensor) -> dict[tuple, int]:
    """By phase, module and operation, for one forward and backward in this process."""

    def step() -> None:
        with tp.measure(model):
            model(*given).sum().backward()

    rows = logged(step).rows["flops"]
    found = {(row["phase"], row["module"], row["op"]): row["flops"] for row in rows}
    assert len(found) == len(rows)
    return found


def cold_and_warm_step() -> None:
    """Measured are the very first step, in which DTensor still learns shapes, and a later one."""
    torch.manual_seed(0)
    model = ToyTransformer(CONFIG)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        parallelize_module(layer, mesh, {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()})
    tokens = torch.arange(15).reshape(3, 5) % 11
    for step in range(2):
        with tp.measure(model, step=step), tp.measure(model, step=step + 2):
            model(tokens).sum().backward()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_rank_computes_its_part_of_the_cut_linears_and_all_of_the_head(world_size):
    flops = tp.launch(cold_and_warm_step, world_size=world_size, check=False).flops
    linear, head = 2 * (3 * 5) * 8 * (12 // world_size), 2 * 3 * 8 * 3
    wanted = {("forward", f"layers.{i}.fc{j}", "matmul"): linear for i in (0, 1) for j in (1, 2)}
    wanted[("forward", "head", "matmul")] = head
    # For the gradients of weight and input: as much each. Nothing is missing, so all inputs need gradients.
    wanted |= {("backward", *key[1:]): 2 * number for key, number in wanted.items()}
    assert set(flops["rank"]) == set(range(world_size))
    for _, rows in flops.groupby(["rank", "step"]):
        assert {(row.phase, row.module, row.op): row.flops for row in rows.itertuples()} == wanted
    assert set(flops["step"]) == {0, 1, 2, 3}


ONES = torch.ones
OPERATIONS = {
    "linear": (lambda: F.linear(ONES(2, 3, 4), ONES(5, 4)), "matmul", 2 * (2 * 3) * 4 * 5),
    "linear with a bias": (lambda: F.linear(ONES(2, 3, 4), ONES(5, 4), ONES(5)), "matmul", 2 * (2 * 3) * 4 * 5),
    "linear of one sample": (lambda: F.linear(ONES(4), ONES(5, 4), ONES(5)), "matmul", 2 * 4 * 5),
    "batches": (lambda: ONES(7, 2, 3) @ ONES(7, 3, 5), "matmul", 2 * 7 * 2 * 3 * 5),
    "batches added": (lambda: torch.baddbmm(ONES(1), ONES(7, 2, 3), ONES(7, 3, 5)), "matmul", 2 * 7 * 2 * 3 * 5),
    "batches summed": (lambda: torch.addbmm(ONES(1), ONES(7, 2, 3), ONES(7, 3, 5)), "matmul", 2 * 7 * 2 * 3 * 5),
    "matrix times vector": (lambda: ONES(4, 6) @ ONES(6), "matmul", 2 * 4 * 6),
    "vectors": (lambda: ONES(6) @ ONES(6), "matmul", 2 * 6),
    "einsum": (lambda: torch.einsum("bsd,bhd->bsh", ONES(2, 3, 4), ONES(2, 5, 4)), "matmul", 2 * 2 * 3 * 4 * 5),
    "bfloat16": (lambda: ONES(2, 3, dtype=torch.bfloat16) @ ONES(3, 4, dtype=torch.bfloat16), "matmul", 2 * 24),
    "convolution": (lambda: F.conv1d(ONES(2, 3, 10), ONES(4, 3, 3)), "convolution", 2 * 2 * 8 * 3 * 3 * 4),
    "attention": (lambda: F.scaled_dot_product_attention(*[ONES(2, 3, 8, 4)] * 3), "attention", 4 * 2 * 3 * 8 * 8 * 4),
    "causal attention": (
        lambda: F.scaled_dot_product_attention(*[ONES(2, 3, 8, 4)] * 3, is_causal=True),
        "attention",
        4 * 2 * 3 * 8 * 8 * 4,
    ),
    "attention with few heads of keys and values": (
        lambda: F.scaled_dot_product_attention(ONES(2, 6, 8, 4), *[ONES(2, 3, 8, 4)] * 2, enable_gqa=True),
        "attention",
        4 * 2 * 6 * 8 * 8 * 4,
    ),
}
NO_PRODUCTS = lambda: torch.softmax(F.layer_norm(F.gelu(ONES(3, 4) * 2 + 1), (4,)), 0).norm()  # noqa: E731


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("grad", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_each_kind_of_product(name, grad):
    call, op, wanted = OPERATIONS[name]

    def work() -> None:
        with grad(), tp.measure(nn.Linear(1, 1)):
            call()
            NO_PRODUCTS()

    assert [(row["op"], row["flops"]) for row in logged(work).rows["flops"]] == [(op, wanted)]


class Attention(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v)
        return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v


def test_the_backward_of_fused_attention_computes_the_scores_again():
    given = [torch.randn(2, 3, 8, 4).requires_grad_() for _ in range(3)]
    product = 2 * 2 * 3 * 8 * 8 * 4
    assert flops_of(Attention(True), *given) == {
        ("forward", "", "attention"): 2 * product,
        ("backward", "", "attention_backward"): 5 * product,
    }
    assert flops_of(Attention(False), *given) == {
        ("forward", "", "matmul"): 2 * product,
        ("backward", "", "matmul"): 4 * product,
    }


class Again(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = MLPBlock(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False)


def test_a_recomputed_forward_counts_in_the_backward():
    product = 2 * 5 * 4 * 6
    found = flops_of(Again(), torch.ones(5, 4).requires_grad_())
    backward = {key: number for key, number in found.items() if key[0] == "backward"}
    assert {key: number for key, number in found.items() if key[0] == "forward"} == {
        ("forward", "block.fc1", "matmul"): product,
        ("forward", "block.fc2", "matmul"): product,
    }
    # Twice for the gradients, once again for fc1; torch stops before fc2, whose output nothing needs again.
    assert backward == {
        ("backward", "block.fc1", "matmul"): 3 * product,
        ("backward", "block.fc2", "matmul"): 2 * product,
    }


class LlamaBlock(nn.Module):
    """The products of a Llama block, without its norms, which count nothing."""

    def __init__(self, width: int, kv_width: int, hidden: int, head: int) -> None:
        super().__init__()
        self.head = head
        sizes = {"wq": (width, width), "wk": (width, kv_width), "wv": (width, kv_width), "wo": (width, width)}
        sizes |= {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
        for name, (inside, outside) in sizes.items():
            self.add_module(name, nn.Linear(inside, outside, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (linear(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for linear in (self.wq, self.wk, self.wv))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


@pytest.fixture
def world_of_8():
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield init_device_mesh("cpu", (8,))
    dist.destroy_process_group()


def test_two_layers_of_llama_3_70b_over_8_ranks(world_of_8):
    """Two layers and the head, 4096 tokens, forward and backward: an eighth of all that one device would do.

    torch's FlopCounterMode says 67.88e12 here, the products of the cut linears at their global shapes.
    """
    width, kv_width, hidden, vocab, tokens = 8192, 1024, 28672, 128256, 4096
    with torch.device("meta"):
        blocks = [LlamaBlock(width, kv_width, hidden, 128) for _ in range(2)]
        model = nn.Sequential(*blocks, nn.Linear(width, vocab, bias=False))
        given = torch.empty(1, tokens, width).requires_grad_()
    rows = {name: RowwiseParallel() for name in ("wo", "down")}
    columns = {name: ColwiseParallel() for name in ("wq", "wk", "wv", "gate", "up")}
    for block in blocks:
        parallelize_module(block, world_of_8, rows | columns)
    parallelize_module(model, world_of_8, {"2": ColwiseParallel()})
    found = flops_of(model, given)
    by_phase = Counter()
    for (phase, _, _), number in found.items():
        by_phase[phase] += number
    linears = 2 * (2 * width * width + 2 * width * kv_width + 3 * width * hidden) + width * vocab
    attention = 2 * 2 * tokens * width  # two layers, two products, each with all tokens
    assert by_phase["forward"] == 2 * tokens * (linears + attention) // 8
    assert by_phase["backward"] == 2 * by_phase["forward"]
    assert sum(by_phase.values()) == 8_897_024_753_664
