"""Hard cases of saved runs, each of which once went wrong."""

import warnings

import pandas as pd
import pytest

from tp_teach.run import Run, load, world_of
from tp_teach.tables import Log

WORLD = world_of("gloo", ["cpu"], "1 rank on the CPU with Gloo")


def test_a_folder_of_another_tool_is_not_a_saved_run(tmp_path):
    (tmp_path / "run.json").write_text('{"name": "another tool"}')
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="is not a saved run"):
        Run(WORLD, {}).save(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_link_to_a_folder_is_followed(tmp_path):
    Run(WORLD, {}, ["old"]).save(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    Run(WORLD, {}, ["new"]).save(tmp_path / "link")
    assert load(tmp_path / "link").values == ["new"]
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link"}


@pytest.mark.parametrize("text", ["[]", "null", "3", '{"format": 1}'])
def test_json_that_is_no_run_is_refused_in_words(tmp_path, text):
    Run(WORLD, {}).save(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(text)
    with pytest.raises(ValueError, match="^path="):
        load(tmp_path / "run")


def test_a_file_is_refused_in_words(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ValueError, match="is not a saved run"):
        load(tmp_path / "run")


def test_a_table_without_a_column_is_refused(tmp_path):
    Run(WORLD, {}).save(tmp_path / "run")
    pd.DataFrame({"rank": [0]}).to_parquet(tmp_path / "run" / "comm.parquet")
    with pytest.raises(ValueError, match="^path="):
        load(tmp_path / "run")


def test_a_collective_without_a_module_is_compared_too():
    log = Log(0)
    log.add("comm", [{"op": "all_reduce", "phase": "forward", "payload_bytes": 8, "wire_bytes": 8}])
    rows = Run.from_logs(WORLD, [log]).compare(Run(WORLD, {}))
    assert list(rows["here"]) == [1, 8, 8]


def test_compare_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Run(WORLD, {}).compare(Run(WORLD, {}))
