"""The tables' columns, the ring formulas, and what a rank writes down."""

import subprocess
import sys

import pytest

import tp_teach as tp
from tp_teach.tables import TABLES, Log, current_log, record, record_config, wire_bytes

COLUMNS = {
    "shards": "rank parameter placement global_shape local_shape offset dtype local_bytes global_bytes",
    "comm": "rank step index phase module op group group_size dtype shape payload_bytes wire_bytes seconds",
    "memory": "rank step moment kind bytes",
    "flops": "rank step phase module op flops",
    "steps": "rank step loss grad_norm seconds tokens",
    "timeline": "rank name kind start seconds",
}
REAL = {"seconds", "loss", "grad_norm", "start"}
WHERE = {"parameter", "placement", "global_shape", "local_shape", "offset", "dtype", "shape"}
TEXT = WHERE | {"phase", "module", "op", "group", "moment", "kind", "name"}


@pytest.mark.parametrize("table, columns", COLUMNS.items())
def test_the_columns_and_their_order(table, columns):
    assert list(TABLES[table]) == columns.split()


def test_there_is_no_other_table():
    assert set(TABLES) == set(COLUMNS)


@pytest.mark.parametrize("table", COLUMNS)
def test_bytes_and_counts_are_whole_seconds_are_real_and_names_are_text(table):
    for column, kind in TABLES[table].items():
        assert kind == ("float64" if column in REAL else "string" if column in TEXT else "Int64"), column


@pytest.mark.parametrize(
    "op, sent",
    [
        ("all_reduce", 1536),
        ("all_gather", 768),
        ("reduce_scatter", 768),
        ("all_to_all", 768),
        ("gather", 768),
        ("scatter", 768),
        ("broadcast", 1024),
        ("reduce", 1024),
        ("send", 1024),
        ("recv", 0),
        ("barrier", 0),
    ],
)
def test_what_one_of_four_ranks_sends_of_1024_bytes(op, sent):
    assert wire_bytes(op, 1024, 4) == sent
    assert type(wire_bytes(op, 1024, 4)) is int


@pytest.mark.parametrize(
    "op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "broadcast", "reduce"]
)
def test_one_rank_alone_sends_nothing(op):
    assert wire_bytes(op, 1024, 1) == 0


@pytest.mark.parametrize("n", [2, 3, 7, 8])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(n):
    payload = 840 * n
    assert wire_bytes("all_reduce", payload, n) == wire_bytes("reduce_scatter", payload, n) + wire_bytes(
        "all_gather", payload, n
    )


@pytest.mark.parametrize(
    "op, payload, n, sent",
    [
        ("all_gather", 10, 3, 7),  # 6.67
        ("all_gather", 11, 3, 7),  # 7.33
        ("all_reduce", 10, 3, 13),  # 13.33
        ("reduce_scatter", 1, 8, 1),  # 0.875
        ("all_reduce", 1, 8, 2),  # 1.75
        ("all_gather", 0, 8, 0),
    ],
)
def test_a_payload_that_the_ranks_do_not_divide_is_rounded(op, payload, n, sent):
    assert wire_bytes(op, payload, n) == sent


def test_a_payload_beyond_what_a_float_holds_is_exact():
    assert wire_bytes("all_gather", 2**60 + 8, 8) == (2**60 + 8) * 7 // 8


def test_an_unknown_operation_is_refused_by_name():
    with pytest.raises(ValueError, match="op='all_shuffle' has no ring formula; known are all_reduce, "):
        wire_bytes("all_shuffle", 1024, 4)


def test_a_log_fills_in_the_rank():
    log = Log(3)
    log.add("steps", [{"step": 0, "loss": 1.5}, {"step": 1}])
    assert log.rows["steps"] == [{"rank": 3, "step": 0, "loss": 1.5}, {"rank": 3, "step": 1}]


def test_a_log_refuses_a_column_that_the_table_does_not_have():
    with pytest.raises(ValueError, match="table 'memory' has no column 'byte'; its columns are rank, step, moment"):
        Log(0).add("memory", [{"byte": 4}])


def test_record_outside_a_rank_does_nothing():
    assert current_log.get() is None
    record("steps", [{"step": 0}])
    record_config({"layers": 2})
    assert current_log.get() is None


def test_what_ranks_record_comes_home_in_rank_order():
    def note(record, record_config):
        import torch.distributed as dist

        record("steps", [{"step": 0, "loss": float(dist.get_rank())}])
        record_config({"layers": 2})

    run = tp.launch(note, record, record_config, world_size=3)
    assert list(run.steps["rank"]) == [0, 1, 2]
    assert list(run.steps["loss"]) == [0.0, 1.0, 2.0]
    assert run.config == {"layers": 2}


def test_the_tables_need_neither_torch_nor_pandas():
    program = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('tables', {tp.tables.__file__!r})\n"
        "spec.loader.exec_module(importlib.util.module_from_spec(spec))\n"
        "print({'torch', 'pandas', 'numpy'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
