"""The flow figure puts each collective where it acts, and placements follow from the cut."""

from __future__ import annotations

import pytest

from tp_teach.plot import flow
from tp_teach.plot.flow_data import boxes_of, joined

from . import samples
from .measure import faults

SIZE = 16_384
TO_BE_CUT = [("attn_norm", None), ("attn.wq", 0), ("attn.wk", 0), ("attn.wv", 0), ("attn.wo", 1)]
TO_BE_CUT += [("mlp_norm", None), ("mlp.gate", 0), ("mlp.up", 0), ("mlp.down", 1)]


def decoder(size, calls):
    """One decoder block with these collectives (phase, module, op), as a run of `size` ranks brings them home."""
    parameters = [(f"layers.0.{name}.weight", (96, 96) if dim is not None else (96,), dim) for name, dim in TO_BE_CUT]
    made = [(phase, f"layers.0.{module}".rstrip("."), op, SIZE) for phase, module, op in calls]
    comm = [samples.comm_row(rank, 1, index, size, *call) for rank in range(size) for index, call in enumerate(made)]
    return samples.make_run(size, shards=samples.shard_rows(size, parameters), comm=comm)


PLAIN = [("forward", "attn", "all_reduce"), ("forward", "mlp", "all_reduce")]
PLAIN += [("backward", f"mlp.{name}", "all_reduce") for name in ("up", "gate")]
PLAIN += [("backward", f"attn.{name}", "all_reduce") for name in ("wv", "wk", "wq")]
SEQUENCE = [("forward", part, op) for part in ("attn", "mlp") for op in ("all_gather", "reduce_scatter")]
SEQUENCE += [("backward", part, op) for part in ("mlp", "attn") for op in ("all_gather", "reduce_scatter")]


def edges(run, phase):
    found = joined(boxes_of(run.shards, run.comm, "layers.0"), phase)
    return [(edge.before, edge.op, len(edge.payloads), edge.after) if edge.op else edge.before for edge in found]


R, F, S, P = "Replicate", "Shard(-1)", "Shard(1)", "Partial"


def test_the_toy_block_reduces_after_fc2_and_backward_before_fc1():
    assert edges(samples.toy(4), "forward") == [R, R, F, (P, "all_reduce", 1, R)]
    assert edges(samples.toy(4), "backward") == [R, (P, "all_reduce", 1, R), F, R]


def test_the_plain_plan_reduces_each_projections_input_gradient():
    run = decoder(2, PLAIN)
    one = (P, "all_reduce", 1, R)
    assert edges(run, "forward") == [R, R, F, one, R, F, one]
    assert edges(run, "backward") == [R, (P, "all_reduce", 3, R), F, R, (P, "all_reduce", 2, R), F, R]


def test_linears_that_are_cut_alike_stand_side_by_side_without_a_parent_too():
    parameters = [(f"mlp.{name}.weight", (96, 96), dim) for name, dim in (("gate", 0), ("up", 0), ("down", 1))]
    made = [("forward", "mlp.down", "all_reduce"), *(("backward", f"mlp.{n}", "all_reduce") for n in ("up", "gate"))]
    comm = [samples.comm_row(0, 1, index, 2, *call, SIZE) for index, call in enumerate(made)]
    run = samples.make_run(2, shards=samples.shard_rows(2, parameters), comm=comm)
    boxes = boxes_of(run.shards, run.comm, "mlp")
    assert [box.modules for box in boxes] == [["gate", "up"], ["down"]]
    assert joined(boxes, "backward")[0].payloads == [SIZE, SIZE]


def test_sequence_parallel_gathers_and_scatters():
    run = decoder(2, SEQUENCE)
    gather, scatter = (S, "all_gather", 1, R), (P, "reduce_scatter", 1, S)
    assert edges(run, "forward") == [S, gather, F, scatter, gather, F, scatter]
    assert edges(run, "backward") == [S, scatter, F, gather, scatter, F, gather]


def test_collectives_named_after_the_block_are_taken_in_order():
    run = decoder(2, [(phase, "", "all_reduce") for phase in ("forward", "forward", "backward", "backward")])
    assert [edge[2] for edge in edges(run, "forward") if edge[0] == P] == [1, 1]
    assert [edge[2] for edge in edges(run, "backward") if edge[0] == P] == [1, 1]


def test_a_collective_that_is_missing_leaves_a_partial_sum():
    rows = [row for row in samples.comm_rows(4) if row["phase"] == "backward"]
    run = samples.make_run(4, shards=samples.shard_rows(4), comm=rows)
    assert edges(run, "forward")[-1] == P


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_the_toy_block_can_be_read(size):
    assert faults(flow(samples.toy(size))) == []


@pytest.mark.parametrize("calls", [PLAIN, SEQUENCE])
def test_the_decoder_block_can_be_read(calls):
    picture = flow(decoder(4, calls))
    assert faults(picture) == []


def test_alt_text_holds_exact_bytes():
    alt = flow(samples.toy(4), "layers.2").alt
    assert alt.startswith(
        "What flows through layers.2, 4 ranks, measured. Forward: Replicate, ln (plain), Replicate, fc1"
    )
    assert "fc2 (Shard(1)), Partial by 1 all_reduce of 393,216 bytes (384 KiB) to Replicate. Backward: " in alt
    assert "3 all_reduces of 49,152 bytes (48 KiB)" in flow(decoder(2, PLAIN)).alt


def test_an_unknown_block_is_refused_with_those_there_are():
    with pytest.raises(
        ValueError, match=r"block='layers.9' has no weights in this run; its blocks are layers.0, layers.1"
    ):
        flow(samples.toy(2), "layers.9")
    with pytest.raises(ValueError, match="no rows in `shards`"):
        flow(samples.make_run(2))
