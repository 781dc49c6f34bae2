"""`Run`: typed tables, values by rank, one folder on disk, and two runs side by side."""

import json
import os
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

from tp_teach.run import Run, load, world_of
from tp_teach.tables import TABLES, Log

WORLD = world_of("gloo", ["cpu", "cpu"], "2 ranks on the CPU with Gloo")
COMM = {"step": 0, "phase": "forward", "module": "mlp", "op": "all_reduce", "payload_bytes": 64, "wire_bytes": 64}


def logs(**rows):
    """Two ranks that each wrote these rows."""
    made = [Log(0), Log(1)]
    for log in made:
        for table, written in rows.items():
            log.add(table, written)
    return made


def full_run():
    shard = {
        "parameter": "up.weight",
        "placement": "Shard(0)",
        "global_shape": "(8, 4)",
        "local_shape": "(4, 4)",
        "offset": "(0, 0)",
        "dtype": "float32",
        "local_bytes": 64,
        "global_bytes": 2**62 + 1,
    }
    call = {"index": 0, "group": "tp", "group_size": 2, "dtype": "float32", "shape": "(4, 4)", "seconds": 0.25}
    written = logs(
        shards=[shard],
        comm=[{**COMM, **call}],
        memory=[{"step": 0, "moment": "init", "kind": "parameters", "bytes": 64}],
        steps=[{"step": 0, "loss": 1.5, "tokens": 32}, {"step": 1}],
        timeline=[{"name": "step", "kind": "compute", "start": 1.0, "seconds": 0.5}],
    )
    written[0].config = {"hidden": 4, "plan": ["colwise", "rowwise"]}
    values = [{"loss": [1.5, None, True, "ü"]}, 2**70]
    return Run.from_logs(WORLD, written, values, ["first\nline\u2028", ""])


def assert_same(one, other):
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name))
    for name in ("world", "values", "output", "config"):
        assert getattr(one, name) == getattr(other, name)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("make", [full_run, lambda: Run(WORLD, {})], ids=["full", "empty"])
def test_every_table_has_its_exact_columns_and_types(make):
    for name, columns in TABLES.items():
        table = getattr(make(), name)
        assert list(table.columns) == list(columns)
        assert [str(kind) for kind in table.dtypes] == list(columns.values())
        assert list(table.index) == list(range(len(table)))


def test_rows_are_joined_in_rank_order_and_what_was_left_out_is_empty():
    steps = full_run().steps
    assert list(steps["rank"]) == [0, 0, 1, 1]
    assert list(steps["tokens"].isna()) == [False, True, False, True]


def test_values_by_rank():
    run = Run(WORLD, {}, ["a", "b"])
    assert (run[0], run[1], list(run), len(run)) == ("a", "b", ["a", "b"], 2)


@pytest.mark.parametrize("rank", [2, -1, "0", slice(0, 1), None])
def test_a_rank_that_is_not_there(rank):
    with pytest.raises(IndexError, match="is not in this run; it has ranks 0 to 1"):
        Run(WORLD, {}, ["a", "b"])[rank]


def test_a_run_shows_its_reason_and_its_rows():
    assert repr(Run(WORLD, {})) == "Run: 2 ranks on the CPU with Gloo. Rows: none."
    assert "steps 4" in repr(full_run())


@pytest.mark.parametrize("make", [full_run, lambda: Run(WORLD, {})], ids=["full", "empty"])
def test_a_saved_run_loads_as_it_was(tmp_path, make):
    assert make().save(tmp_path / "run") == tmp_path / "run"
    assert_same(load(tmp_path / "run"), make())


def test_a_saved_run_is_run_json_and_one_file_a_table(tmp_path):
    full_run().save(tmp_path / "run")
    assert set(contents(tmp_path / "run")) == {"run.json", *(f"{name}.parquet" for name in TABLES)}


def test_saving_makes_the_folders_above(tmp_path):
    full_run().save(tmp_path / "a" / "b" / "run")
    assert load(tmp_path / "a" / "b" / "run")[1] == 2**70


def test_saving_takes_text_as_a_path(tmp_path):
    full_run().save(f"{tmp_path}/run")
    assert load(f"{tmp_path}/run").config["hidden"] == 4


def test_a_saved_run_may_be_read_by_whom_the_umask_lets(tmp_path):
    mask = os.umask(0o027)
    try:
        full_run().save(tmp_path / "run")
    finally:
        os.umask(mask)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o750


def test_an_earlier_run_is_replaced_as_a_whole(tmp_path):
    Run(WORLD, {}, ["old"]).save(tmp_path / "run")
    full_run().save(tmp_path / "run")
    assert_same(load(tmp_path / "run"), full_run())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "run").mkdir()
    full_run().save(tmp_path / "run")
    assert_same(load(tmp_path / "run"), full_run())


def test_a_folder_with_other_things_is_refused_and_kept(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="exists and is not a saved run; name a new folder"):
        full_run().save(tmp_path)
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}


def test_a_file_is_refused_and_kept(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ValueError, match="exists and is not a saved run"):
        full_run().save(tmp_path / "run")
    assert contents(tmp_path) == {"run": b"a file"}


@pytest.mark.parametrize("saved_before", [True, False])
def test_a_failure_in_the_middle_leaves_what_was(tmp_path, saved_before):
    if saved_before:
        full_run().save(tmp_path / "run")
    before = contents(tmp_path / "run") if saved_before else None
    run = full_run()
    # run.json and shards.parquet are written before Parquet refuses this column.
    run.comm["module"] = [object() for _ in run.comm["module"]]
    with pytest.raises(Exception, match="object"):
        run.save(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == (["run"] if saved_before else [])
    assert before is None or contents(tmp_path / "run") == before


@pytest.mark.parametrize("value", [0, 1.5, "text", None, False, [1, [2]], {"a": {"b": [None]}}, [], {}])
def test_plain_values_are_kept(tmp_path, value):
    Run(WORLD, {}, [value, value]).save(tmp_path / "run")
    back = load(tmp_path / "run")
    assert back.values == [value, value]
    assert type(back[0]) is type(value)


@pytest.mark.parametrize("value", [torch.ones(2), (1, 2), {1: 2}, {1, 2}, object(), [np.ones(2)], {"a": 1j}, b"bytes"])
def test_other_values_are_left_out_by_name(tmp_path, value):
    Run(WORLD, {}, ["kept", value]).save(tmp_path / "run")
    assert load(tmp_path / "run").values == ["kept", None]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["values_left_out"] == [1]


def test_a_value_that_is_no_number_survives(tmp_path):
    Run(WORLD, {}, [float("nan"), float("-inf")]).save(tmp_path / "run")
    back = load(tmp_path / "run")
    assert np.isnan(back[0])
    assert back[1] == float("-inf")


def test_loading_unpickles_nothing(tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path / "sprung").touch, ()

    full_run().save(tmp_path / "run")
    for name in ("run.json", "comm.parquet"):
        kept = (tmp_path / "run" / name).read_bytes()
        (tmp_path / "run" / name).write_bytes(pickle.dumps(Trap()))
        with pytest.raises(ValueError):
            load(tmp_path / "run")
        (tmp_path / "run" / name).write_bytes(kept)
    assert not (tmp_path / "sprung").exists()


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="does not exist; looked at"):
        load(tmp_path / "run")


def test_a_run_without_a_table_is_refused(tmp_path):
    full_run().save(tmp_path / "run")
    (tmp_path / "run" / "memory.parquet").unlink()
    with pytest.raises(ValueError, match=r"is not a whole run: memory\.parquet cannot be read"):
        load(tmp_path / "run")


@pytest.mark.parametrize("text", ["", "{", "\x80"])
def test_a_run_json_that_is_not_json_is_refused(tmp_path, text):
    full_run().save(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"its run\.json is not JSON"):
        load(tmp_path / "run")


@pytest.mark.parametrize("number", [2, 0, "1", None])
def test_another_format_is_refused(tmp_path, number):
    full_run().save(tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**about, "format": number}))
    with pytest.raises(ValueError, match=f"has format {number!r}; this version reads format 1"):
        load(tmp_path / "run")


def facts(rows):
    return {(row.table, row.rank, row.what): (row.here, row.there, row.equal) for row in rows.itertuples()}


def test_a_run_equals_itself():
    rows = full_run().compare(full_run())
    assert list(rows.columns) == ["table", "rank", "what", "here", "there", "equal"]
    assert len(rows) == 10
    assert rows["equal"].all()


def test_each_difference_is_a_row_of_its_own():
    one = Run.from_logs(WORLD, logs(comm=[COMM, COMM]))
    other = Run.from_logs(WORLD, logs(comm=[{**COMM, "wire_bytes": 96}]))
    assert facts(one.compare(other))[("comm", 1, "calls of all_reduce, forward mlp")] == (2, 1, False)
    assert facts(one.compare(other))[("comm", 1, "payload of all_reduce, forward mlp")] == (128, 64, False)
    assert facts(one.compare(other))[("comm", 1, "wire of all_reduce, forward mlp")] == (128, 96, False)


def test_what_one_run_lacks_counts_as_nothing_there():
    one = Run.from_logs(WORLD, logs(shards=[{"parameter": "w", "local_bytes": 8}]))
    assert facts(one.compare(Run(WORLD, {})))[("shards", 0, "local bytes of w")] == (8, 0, False)
    assert facts(Run(WORLD, {}).compare(one))[("shards", 0, "local bytes of w")] == (0, 8, False)


def test_memory_is_compared_where_both_state_it():
    stated = {"step": 0, "moment": "init", "kind": "parameters", "bytes": 8}
    one = Run.from_logs(WORLD, logs(memory=[stated, {**stated, "moment": "peak", "kind": "allocated"}]))
    other = Run.from_logs(WORLD, logs(memory=[{**stated, "bytes": 9}]))
    assert facts(one.compare(other)) == {
        ("memory", rank, "parameters at init of step 0"): (8, 9, False) for rank in (0, 1)
    }


FLOPS = {"step": 0, "phase": "forward", "module": "mlp", "op": "matmul", "flops": 24}


def test_flops_are_compared_by_phase_module_and_operation():
    one = Run.from_logs(WORLD, logs(flops=[FLOPS, {**FLOPS, "phase": "backward"}]))
    other = Run.from_logs(WORLD, logs(flops=[{**FLOPS, "flops": 12}]))
    found = facts(one.compare(other))
    assert found[("flops", 1, "FLOPs of matmul, forward mlp")] == (24, 12, False)
    assert found[("flops", 1, "FLOPs of matmul, backward mlp")] == (24, 0, False)
    assert len(found) == 2 * 2


def test_flops_are_not_compared_with_a_run_that_states_none():
    one, other = Run.from_logs(WORLD, logs(flops=[FLOPS])), Run(WORLD, {})
    assert one.compare(other).empty and other.compare(one).empty


def test_times_and_losses_are_not_compared():
    one = Run.from_logs(WORLD, logs(steps=[{"step": 0, "loss": 1.0, "seconds": 1.0}]))
    other = Run.from_logs(WORLD, logs(steps=[{"step": 0, "loss": 2.0, "seconds": 2.0}]))
    assert one.compare(other).empty


def test_two_empty_runs_compare():
    assert Run(WORLD, {}).compare(Run(WORLD, {})).empty
