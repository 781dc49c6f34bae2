"""The timeline draws each rank's operations and collectives where they lie in time, and its words name no time."""

from __future__ import annotations

import pytest
from matplotlib.collections import PolyCollection

from tp_teach.plot import timeline

from . import samples
from .measure import faults, texts


def rows(size: int, scale: float = 1e-3, traced: bool = True, call: bool = True) -> list[dict]:
    """A call of `step` on each rank, 100 units long, and in it two operations with an all_reduce after each."""
    found = []
    for rank in range(size):
        parts = [("linear", "compute", 10, 5), ("all_reduce", "collective", 15, 20 - rank), ("gelu", "compute", 35, 1)]
        parts = [*parts, ("all_reduce", "collective", 36, 4)] if traced else []
        parts += [("step", "compute", 0, 100)] if call else []
        for name, kind, start, seconds in parts:
            times = {"start": 1.7e9 + start * scale, "seconds": seconds * scale}
            found.append({"rank": rank, "name": name, "kind": kind, **times})
    return found


def run_of(size: int, **looks):
    return samples.make_run(size, timeline=rows(size, **looks))


def bars(picture, name: str) -> list[tuple[float, float]]:
    """Begin and end of the bars of one name, in the axis's unit."""
    (found,) = picture.findobj(lambda artist: isinstance(artist, PolyCollection) and artist.get_gid() == name)
    return [(path.get_extents().x0, path.get_extents().x1) for path in found.get_paths()]


def test_bars_lie_where_the_rows_say_and_the_call_around_them_is_left_out():
    picture = timeline(run_of(3))
    assert bars(picture, "compute 1") == [pytest.approx((0, 5), abs=1e-3), pytest.approx((25, 26), abs=1e-3)]
    assert bars(picture, "all_reduce 1") == [pytest.approx((5, 24), abs=1e-3), pytest.approx((26, 30), abs=1e-3)]
    assert picture.axes[0].get_xlabel() == "milliseconds since the first of these operations"


def test_the_share_of_collectives_counts_overlapping_ones_once():
    twice = rows(1) + [{"rank": 0, "name": "broadcast", "kind": "collective", "start": 1.7e9 + 0.02, "seconds": 0.005}]
    seen = [words for words, _, _ in texts(timeline(samples.make_run(1, timeline=twice)))]
    assert "80%" in seen  # 20 + 4 of 30 milliseconds


@pytest.mark.parametrize("scale, unit", [(1e-6, "microseconds"), (1e-3, "milliseconds"), (1.0, "seconds")])
def test_the_axis_says_its_unit(scale, unit):
    assert timeline(run_of(2, scale=scale)).axes[0].get_xlabel() == f"{unit} since the first of these operations"


def test_without_a_trace_whole_calls_are_drawn():
    picture = timeline(run_of(4, traced=False))
    assert bars(picture, "compute 3") == [pytest.approx((0, 100), abs=1e-3)]
    assert [words for words, _, _ in texts(picture)].count("step") == 4
    assert picture.alt == "Timeline, 4 ranks, measured. Every rank: step, no collectives."


def test_alt_text_counts_and_names_no_time():
    picture = timeline(run_of(4))
    assert picture.alt == "Timeline, 4 ranks, measured. Every rank: compute, and 2 × all_reduce."
    assert timeline(run_of(4, scale=2e-3)).alt == picture.alt
    uneven = rows(2) + [{"rank": 1, "name": "send", "kind": "collective", "start": 1.7e9 + 0.05, "seconds": 0.001}]
    assert timeline(samples.make_run(2, timeline=uneven)).alt == (
        "Timeline, 2 ranks, measured. Rank 0: compute, and 2 × all_reduce. "
        "Rank 1: compute, and 2 × all_reduce and 1 × send."
    )


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 20])
def test_text_overlaps_nothing_and_is_not_cut(size, traced):
    picture = timeline(run_of(size, traced=traced))
    assert faults(picture) == []
    if size > 16:
        assert any("drawn are the first 16" in words for words, _, _ in texts(picture))


def test_a_run_without_rows_says_what_fills_them():
    with pytest.raises(ValueError, match="no rows in `timeline`: .* `with tp.timeline"):
        timeline(samples.make_run(2))
