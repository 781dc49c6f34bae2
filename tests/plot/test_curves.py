"""Named lines over steps: each is there, in its rank's colour where it has one, also on a log scale with zeros."""

from __future__ import annotations

import pandas as pd
import pytest

from tp_teach.plot import curves
from tp_teach.plot.style import rank_colour

from .measure import faults, texts

LOSSES = {
    "one batch for all": [2.3 * 0.95**step for step in range(40)],
    "own batch": [2.3 * 0.97**s for s in range(40)],
}
DRIFT = {f"rank {rank}": [rank * 1e-7 * 1.1**step for step in range(100)] for rank in range(4)}


def test_every_line_is_drawn_with_its_values():
    picture = curves(LOSSES, "Loss falls either way")
    assert faults(picture) == []
    assert {line.get_gid(): list(line.get_ydata()) for line in picture.axes[0].lines} == LOSSES
    assert picture.alt == (
        "Loss falls either way: loss (no unit) over training steps. "
        "one batch for all: falls from 2.30 to 0.31 over 40 steps. own batch: falls from 2.30 to 0.70 over 40 steps."
    )


def test_ranks_keep_their_colours_and_zero_has_a_place_on_a_log_scale():
    picture = curves(DRIFT, "Drift", "largest difference from rank 0", log=True, digits=".0e")
    assert faults(picture) == []
    assert [line.get_color() for line in picture.axes[0].lines] == [rank_colour(rank) for rank in range(4)]
    assert picture.axes[0].get_ylim()[0] <= 0
    assert "rank 0: from 0e+00 to 0e+00 over 100 steps" in picture.alt
    above = {name: values for name, values in DRIFT.items() if name != "rank 0"}
    assert curves(above, "Drift", log=True).axes[0].get_yscale() == "log"


def test_a_series_brings_its_own_steps():
    picture = curves({"a": pd.Series([1.0, 0.5], index=[10, 20])}, "Few", value="a long name of what is drawn " * 2)
    assert list(picture.axes[0].lines[0].get_xdata()) == [10, 20]
    assert picture.alt.endswith("a: falls from 1.00 to 0.50 at 2 recorded steps, 10 to 20.")
    assert faults(picture) == []


def test_values_that_are_not_finite_are_said():
    picture = curves({"a": [float("nan")] * 3}, "Broken", log=True)
    assert any("no value is a finite number" in words for words, _, _ in texts(picture))


def test_too_few_and_too_many_are_refused():
    with pytest.raises(ValueError, match="series has 0 lines; a figure shows 1 to 12"):
        curves({}, "None")
    with pytest.raises(ValueError, match="series has 13 lines"):
        curves({str(n): [1.0] for n in range(13)}, "Many")
    with pytest.raises(ValueError, match="series 'a' is empty"):
        curves({"a": []}, "Empty")
