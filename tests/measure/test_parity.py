"""`tp.parity` says which tensors differ, by how much, and why two cannot be compared."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tp_teach as tp

COLUMNS = ["name", "exact", "close", "max_abs", "max_rel", "tolerance", "note"]


def only_row(a, b, **options) -> dict:
    (row,) = tp.parity(a, b, **options).to_dict("records")
    return row


def test_equal_tensors_are_exact():
    table = tp.parity(torch.arange(6.0), torch.arange(6.0))
    assert list(table.columns) == COLUMNS
    assert table.to_dict("records") == [
        {"name": "tensor", "exact": True, "close": True, "max_abs": 0.0, "max_rel": 0.0, "tolerance": 1e-5, "note": ""}
    ]


def test_differences_are_measured_against_the_largest_number_of_the_reference():
    row = only_row(torch.tensor([2.0, -8.0]), torch.tensor([2.5, -4.0]))
    assert (row["max_abs"], row["max_rel"], row["exact"], row["close"]) == (4.0, 1.0, False, False)
    small = only_row(torch.tensor([1000.0, 0.001]), torch.tensor([1000.0, 0.0]))
    assert small["close"] and not small["exact"]


@pytest.mark.parametrize(
    "dtype, tolerance",
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)],
)
def test_each_dtype_has_its_own_tolerance(dtype, tolerance):
    reference = torch.tensor([1.0], dtype=dtype)
    for distance, close in ((tolerance / 2, True), (tolerance * 2, False)):
        # One number is given with all its digits: the coarser dtype decides.
        row = only_row(torch.tensor([1.0 + distance], dtype=torch.float64), reference)
        assert (row["tolerance"], row["close"]) == (tolerance, close)


def test_a_dtype_of_eight_bits_and_complex_numbers_have_a_tolerance_too():
    assert only_row(torch.ones(2).to(torch.float8_e4m3fn), torch.ones(2))["tolerance"] == 0.125
    assert only_row(torch.ones(2) * 1j, torch.ones(2) * 1j)["tolerance"] == 1e-5
    assert only_row(torch.tensor([3.0 + 4.0j]), torch.tensor([0.0j]))["max_abs"] == 5.0


def test_rtol_and_atol_replace_the_tolerance():
    a, b = torch.tensor([1.0 + 1e-3]), torch.tensor([1.0])
    assert not only_row(a, b)["close"]
    assert only_row(a, b, rtol=1e-2)["close"]
    noise, zero = torch.tensor([3e-9]), torch.zeros(1)
    assert not only_row(noise, zero)["close"]
    assert only_row(noise, zero)["max_rel"] == math.inf
    assert only_row(noise, zero, atol=1e-8)["close"]


@pytest.mark.parametrize("options", [{}, {"rtol": 0.5, "atol": 0.5}])
def test_whole_numbers_and_booleans_are_close_only_if_exact(options):
    big = torch.tensor([2**60])
    for a, b in ((big + 1, big), (torch.tensor([True]), torch.tensor([False])), (torch.ones(1).int(), big.int())):
        row = only_row(a, b, **options)
        assert (row["exact"], row["close"], row["max_abs"], row["tolerance"]) == (False, False, 1.0, 0.0)
    assert only_row(big, big.clone(), **options)["exact"]


def test_nan_and_inf_equal_themselves_and_nothing_else():
    odd = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    same = only_row(odd, odd.clone())
    assert same["exact"] and same["note"] == "1 NaN in both"
    for other in ([1.0, math.inf, -math.inf, 1.0], [math.nan, -math.inf, -math.inf, 1.0]):
        row = only_row(odd, torch.tensor(other))
        assert (row["exact"], row["close"], row["max_abs"]) == (False, False, math.inf)
        assert "1 NaN or inf on one side" in row["note"]


def test_names_gradients_and_shapes_that_do_not_match_are_rows():
    x = torch.ones(2, 3)
    a = {"same": x, "mine": x, "shape": x, "no grad": None, "never": None, "meta": x.to("meta")}
    b = {"same": x, "yours": x, "shape": x.T, "no grad": x, "never": None, "meta": x}
    table = tp.parity(a, b).set_index("name")
    assert table["note"].to_dict() == {
        "mine": "not in b",
        "yours": "not in a",
        "shape": "shapes (2, 3) and (3, 2)",
        "no grad": "None in a",
        "meta": "a is on the meta device and has no numbers",
        "never": "None in both",
        "same": "",
    }
    assert set(table.index[table["close"]]) == {"same", "never"}


def test_the_worst_row_comes_first():
    b = {name: torch.ones(1) for name in ("exact", "near", "far", "farther", "bf16", "gone")}
    a = {**b, "near": b["near"] + 1e-6, "far": b["far"] + 1e-4, "farther": b["farther"] + 1e-3}
    a["bf16"] = (b["bf16"] + 0.02).bfloat16()  # a larger difference, but only two of its dtype's tolerances
    del a["gone"]
    assert list(tp.parity(a, b)["name"]) == ["gone", "farther", "far", "bf16", "near", "exact"]


@pytest.mark.parametrize("made", [torch.empty(0), torch.tensor(3.0), torch.eye(3).to_sparse(), torch.ones(2, 2).T])
def test_tensors_of_any_form_compare(made):
    assert only_row(made, made.clone())["exact"]


def test_it_prints_as_lines_of_one_width_and_counts_the_rest():
    b = {f"layers.{i}.fc1.weight": torch.ones(2) for i in range(40)}
    a = {**b, "layers.7.fc1.weight": torch.tensor([1.0, 1.5])}
    lines = str(tp.parity(a, b)).splitlines()
    assert lines[0].split() == COLUMNS
    assert lines[1].split() == ["layers.7.fc1.weight", "no", "no", "5.0e-01", "5.0e-01", "1.0e-05"]
    assert lines[2].split() == ["layers.0.fc1.weight", "yes", "yes", "0", "0", "1.0e-05"]
    assert lines[-1] == "… and 10 more, 10 of them close"
    assert str(tp.parity({}, {})) == "no tensors to compare"


@pytest.mark.parametrize(
    "given, words",
    [
        (nn.Linear(1, 1), "a is a module: pass its state_dict"),
        ([torch.ones(1)], "a is a list"),
        ({"loss": 0.5}, r"a\['loss'\] is a float"),
    ],
)
def test_anything_but_tensors_is_refused(given, words):
    with pytest.raises(TypeError, match=words):
        tp.parity(given, {})


def of_sharded_tensors() -> tuple:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(35.0).reshape(7, 5)  # rows that do not divide by the ranks
    made = {
        "rows": distribute_tensor(whole, mesh, [Shard(0)]),
        "columns": distribute_tensor(whole, mesh, [Shard(1)]),
        "copies": distribute_tensor(whole, mesh, [Replicate()]),
        "sums": DTensor.from_local(whole if dist.get_rank() == 1 else torch.zeros(7, 5), mesh, [Partial()]),
        "shape": distribute_tensor(whole, mesh, [Shard(0)]),
    }
    dense = {**dict.fromkeys(made, whole), "shape": whole.T, "columns": whole + 1}
    between = tp.parity(made["rows"], made["columns"])
    return tp.parity(made, dense), bool(between["exact"].all())


def test_dtensors_are_compared_whole_on_every_rank():
    run = tp.launch(of_sharded_tensors, world_size=3, check=False)
    for table, same in run:
        assert same
        assert list(table["name"]) == ["shape", "columns", "rows", "copies", "sums"]
        assert list(table["exact"]) == [False, False, True, True, True]
        assert table["max_abs"][1] == 1.0
        assert str(table) == str(run[0][0])  # it came home as it was


def of_a_cut_block() -> tuple:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)).double()
    cut = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)).double()
    cut.load_state_dict(dense.state_dict())
    parallelize_module(
        cut, init_device_mesh("cpu", (dist.get_world_size(),)), {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    x = torch.randn(4, 6, dtype=torch.float64)
    for model in (dense, cut):
        model(x).square().sum().backward()
    grads = [{name: p.grad for name, p in model.named_parameters()} for model in (cut, dense)]
    return tp.parity(cut.state_dict(), dense.state_dict()), tp.parity(*grads)


def test_a_cut_block_is_its_dense_twin():
    for weights, gradients in tp.launch(of_a_cut_block, world_size=2, check=False):
        assert weights["exact"].all() and len(weights) == 4
        assert gradients["close"].all() and len(gradients) == 4
        assert set(gradients["tolerance"]) == {1e-12}
