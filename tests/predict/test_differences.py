"""Where two runs differ, in words."""

import tp_teach as tp
from tp_teach.tables import TABLES

TOY = tp.TrainConfig.preset("classroom", num_layers=1)


def test_equal_runs():
    here = tp.predict(TOY, 2)
    assert here.differences(tp.predict(TOY, 2)) == f"All {len(here.compare(here))} numbers are equal."


def test_one_number_on_every_rank_is_one_line():
    words = tp.predict(TOY, 2).differences(tp.predict(TOY.preset("classroom", num_layers=1, num_classes=11), 2))
    assert "local bytes of head.bias: 40 here, 44 there, on every rank" in words.splitlines()


def test_ranks_that_differ_are_named():
    here, there = tp.predict(TOY, 4), tp.predict(TOY, 4)
    there._rows["comm"] = [row for row in there._rows["comm"] if row["rank"] not in (1, 3) or row["phase"] != "forward"]
    words = here.differences(there).splitlines()
    assert words[0].startswith("6 of ") and words[0].endswith(" numbers differ.")
    assert words[1] == "calls of all_reduce, forward layers.0.fc2: 1 here, 0 there, on ranks 1, 3"
    assert len(words) == 4  # calls, payload, wire


def test_many_lines_are_cut_off():
    there = tp.predict(tp.TrainConfig.preset("classroom", num_layers=30), 2)
    words = tp.predict(TOY, 2).differences(there).splitlines()
    assert len(words) == 22 and words[-1].endswith(" lines more")


def test_runs_without_tables():
    nothing = tp.Run({"mode": "gloo"}, {name: [] for name in TABLES})
    assert nothing.differences(nothing) == "There is nothing to compare."
