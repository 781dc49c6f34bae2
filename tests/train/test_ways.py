"""What is refused before the first step, and the norm that clipping goes by."""

import shutil
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial

import tp_teach as tp
from tests.train.test_parity import CPU, TOY, check
from tp_teach.train.build import build
from tp_teach.train.checks import check_compiler, check_model
from tp_teach.train.gradients import clip, grad_norm


@pytest.fixture(scope="module")
def two():
    with tp.ranks(world_size=2, check=False, show="none") as ranks:
        yield ranks


def refusals() -> list[str]:
    """What is said of copies that differ, and of an optimizer that was built before the cut."""
    said = []
    mesh = init_device_mesh("cpu", (2,))
    cut, _ = build(TOY, CPU, mesh)
    _, optimizer_of_another = build(TOY, CPU, None)
    differing, optimizer = build(TOY, CPU, mesh)
    with torch.no_grad():
        differing.head.bias += dist.get_rank()
    for model, its_optimizer in ((differing, optimizer), (cut, optimizer_of_another)):
        try:
            check_model(model, its_optimizer)
        except ValueError as refused:
            said.append(str(refused))
    return said


def test_a_model_that_is_wrong_before_its_first_step_is_refused(two):
    for differing, early in two.launch(refusals):
        assert differing == (
            "the model is wrong before its first step: head.bias differs: rank 0 holds one value, rank 1 another"
        )
        assert "of the model are not in the optimizer" in early


def norms() -> tuple[float, float, str]:
    """Of parameters cut, copied and plain, with gradients whose squares sum to 25; and what a partial sum is told."""
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Module()
    model.cut = nn.Parameter(DTensor.from_local(torch.zeros(2), mesh, [dist.tensor.Shard(0)]))
    model.copied = nn.Parameter(DTensor.from_local(torch.zeros(3), mesh, [dist.tensor.Replicate()]))
    model.plain = nn.Parameter(torch.zeros(2))
    model.cut.grad = DTensor.from_local(torch.full((2,), 2.0), mesh, [dist.tensor.Shard(0)])  # 2 ranks of 2 · 4
    model.copied.grad = DTensor.from_local(torch.tensor([2.0, 1.0, 0.0]), mesh, [dist.tensor.Replicate()])
    model.plain.grad = torch.tensor([0.0, 2.0])
    before, after = clip(model, 1.0).item(), grad_norm(model).item()
    model.copied.grad = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    try:
        grad_norm(model)
    except ValueError as refused:
        return before, after, str(refused)
    return before, after, ""


def test_what_several_ranks_hold_counts_once(two):
    for before, after, said in two.launch(norms):
        assert before == 5.0
        assert after == pytest.approx(1.0, rel=1e-6)  # float32, and torch adds 1e-6 to the norm
        assert "is a partial sum" in said


def test_compile_without_a_compiler_is_one_sentence(monkeypatch):
    from torch._inductor import cpp_builder

    def none() -> str:
        raise RuntimeError("no g++ here")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(RuntimeError, match="compile=True needs a C\\+\\+ compiler and none was found; install g\\+\\+"):
        check_compiler(replace(TOY, compile=True), CPU)
    check_compiler(TOY, CPU)


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="there is no C++ compiler here")
def test_compiled_blocks_compute_the_same(two):
    check(two, replace(TOY, num_layers=1, max_steps=3, log_every=1, compile=True, clip=0.1), 1e-12)
