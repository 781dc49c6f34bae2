"""What `tp.calibrate` measures on real ranks is a machine that can be planned for. No time is asserted."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isfinite

import pytest

import tp_teach as tp
from tp_teach.plan.calibration import LARGE, TOKENS, WIDTHS, _machine
from tp_teach.predict.planner_machines import Machine


@pytest.fixture(scope="module")
def measured() -> Machine:
    return tp.calibrate(2, device="cpu")


def test_every_rate_is_a_positive_number(measured):
    assert [operations for operations, _ in measured.matmul] == [2 * TOKENS * width**2 for width in WIDTHS]
    rates = [rate for _, rate in measured.matmul]
    rates += [measured.memory, measured.memory_speed, measured.update_speed, measured.link.start, measured.link.bus]
    assert all(isfinite(rate) and rate > 0 for rate in rates)
    assert measured.layer_seconds >= 0 and measured.step_seconds >= 0
    assert (measured.dtype, measured.node, measured.network, measured.peak) == ("float32", 2, None, None)


def test_it_is_plain_data_with_its_source(measured):
    assert json.loads(json.dumps(asdict(measured)))["name"].startswith("this machine, 2 ranks on the CPU with Gloo")
    assert measured.sources == ("measured here by tp.calibrate(2): 2 ranks on the CPU with Gloo, as asked",)


def test_the_classroom_model_can_be_planned_for_it(measured):
    planned = tp.plan("classroom", measured)
    assert list(planned.table["tp"]) == [1, 2]
    assert planned.recipe.total == 16
    assert planned.table["fits"].all()
    assert (planned.table["step_seconds"] > 0).all()
    assert planned.candidates[0].communication_seconds == 0 < planned.candidates[1].communication_seconds
    with pytest.raises(ValueError, match="4 ranks are more than this machine"):
        tp.plan("classroom", measured, tp=4)


def test_the_slowest_rank_of_the_middle_round_counts_and_nothing_is_counted_twice():
    """Invented times of two ranks in three rounds, so that each number of the machine can be followed."""
    times = {"between": 1e-3, "update": 2e-3, "small": 1e-3, "large": 0.011, "one layer": 0.010, "five layers": 0.030}
    fast = {name: 3 * [seconds] for name, seconds in (times | {f"{width}": 1e-3 for width in WIDTHS}).items()}
    fast |= {"memory": [8e9], "kept": [4e6], "updated": [6e6]}
    # In every round another rank may be the slow one: no rank by itself has a slow middle round of width 64.
    fast["64"] = [1e-3, 2e-3, 1e-3]
    slow = fast | {"between": [4e-3, 1e-3, 5e-3], "64": [2e-3, 1e-3, 1e-3]}
    found = _machine([fast, slow], "two invented ranks")
    assert found.matmul[0] == (2 * TOKENS * 64**2, TOKENS * 64**2 / 1e-3)
    assert found.matmul[1][1] == 2 * TOKENS * 128**2 / 1e-3
    # Rounding of one division and one subtraction.
    assert found.memory_speed == pytest.approx(1e9, rel=1e-12)
    assert found.update_speed == pytest.approx(3e9, rel=1e-12)
    assert found.link.bus == pytest.approx(4 * LARGE / 0.010, rel=1e-12)
    assert found.layer_seconds == pytest.approx(0.005 - 2 * 1e-3, rel=1e-12)
    assert found.step_seconds == pytest.approx(0.005, rel=1e-12)


def test_one_rank_has_no_link():
    with pytest.raises(ValueError, match="world_size=1 has no link to measure; use 2 or more"):
        tp.calibrate(1)
