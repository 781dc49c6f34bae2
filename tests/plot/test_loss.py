"""The loss figure draws each run once, and each rank where ranks disagree."""

from __future__ import annotations

import pytest

from tp_teach.plot import loss

from . import samples
from .measure import texts


def run_of(size, **looks):
    return samples.make_run(size, steps=samples.step_rows(size, **looks))


def curves(picture):
    return {line.get_gid(): list(line.get_ydata()) for line in picture.axes[0].lines}


def test_one_curve_where_the_ranks_agree():
    run = run_of(4)
    (values,) = curves(loss(run)).values()
    assert values == pytest.approx(list(run.steps.loc[run.steps["rank"] == 0, "loss"]))


def test_rounding_between_ranks_is_no_disagreement():
    run = run_of(4)
    run.steps["loss"] += run.steps["rank"].astype(float) * 1e-7
    assert len(curves(loss(run))) == 1


def test_ranks_that_disagree_are_drawn_apart_and_it_is_said():
    picture = loss(run_of(3, apart=0.1))
    assert list(curves(picture)) == ["rank 0", "rank 1", "rank 2"]
    assert any("the ranks disagree" in words for words, _, _ in texts(picture))
    assert "The ranks disagree. Rank 0: falls from 2.22 to 0.48 over 40 steps." in picture.alt


def test_of_many_ranks_that_disagree_the_range_is_drawn():
    lines = curves(loss(run_of(12, apart=0.1)))
    assert list(lines) == ["least of 12 ranks", "most of 12 ranks"]
    assert lines["most of 12 ranks"][5] - lines["least of 12 ranks"][5] == pytest.approx(1.1)


def test_several_runs_carry_their_labels():
    picture = loss(run_of(1), run_of(4), labels=["dense", "four ranks"])
    assert list(curves(picture)) == ["dense", "four ranks"]
    assert "Dense: falls from 2.22 to 0.48 over 40 steps. Four ranks: falls" in picture.alt
    assert list(curves(loss(run_of(1), run_of(4)))) == ["1 rank", "4 ranks"]
    assert list(curves(loss(run_of(4), run_of(4)))) == ["run 1", "run 2"]


def test_a_later_curve_is_narrower_so_that_both_are_seen():
    first, second = loss(run_of(1), run_of(4)).axes[0].lines
    assert first.get_linewidth() > second.get_linewidth()
    assert first.get_linestyle() != second.get_linestyle()


def test_alt_text_says_the_course():
    assert loss(run_of(2)).alt == "Loss over training steps, 1 run. Falls from 2.22 to 0.48 over 40 steps."
    rows = samples.step_rows(2)
    every_tenth = samples.make_run(2, steps=[row for row in rows if row["step"] % 10 == 0])
    assert loss(every_tenth).alt.endswith("at 4 recorded steps, 0 to 30.")
    worse = run_of(1)
    worse.steps["loss"] = worse.steps["loss"].to_numpy()[::-1].copy()
    assert "Rises from 0.48 to 2.22" in loss(worse).alt
    broken = run_of(1)
    broken.steps.loc[broken.steps["step"] >= 7, "loss"] = float("nan")
    assert "Not a finite number from step 7 on" in loss(broken).alt
    assert "2.22 in the only step" in loss(samples.make_run(1, steps=samples.step_rows(1, steps=1))).alt


def test_wrong_labels_and_empty_runs_are_refused():
    with pytest.raises(ValueError, match=r"labels=\['a'\] does not have one label a run; there are 2 runs"):
        loss(run_of(1), run_of(2), labels=["a"])
    with pytest.raises(ValueError, match=r"no rows in `steps`: train with `tp.train`"):
        loss(run_of(1), samples.make_run(2))
