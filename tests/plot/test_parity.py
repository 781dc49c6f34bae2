"""The parity figure draws the distance of each run's loss from the reference, zero included."""

from __future__ import annotations

import pytest

from tp_teach.plot import parity

from . import samples
from .measure import faults, texts


def run_of(steps: int = 40, apart: float = 0.0, dtype: str = ""):
    """A run whose loss is `apart` times the step away from that of the reference."""
    run = samples.make_run(2, steps=samples.step_rows(2, steps=steps))
    run.steps["loss"] += apart * run.steps["step"].astype(float)
    run.config = {"dtype": dtype} if dtype else {}
    return run


def lines(picture) -> dict[str, list[float]]:
    return {line.get_gid(): list(line.get_ydata()) for line in picture.axes[0].lines}


def test_each_line_is_the_distance_of_one_run():
    picture = parity({"near": run_of(apart=1e-6), "far": run_of(apart=-1e-2)}, run_of())
    drawn = lines(picture)
    assert list(drawn) == ["near", "far"]
    assert drawn["near"][1:] == pytest.approx([1e-6 * step for step in range(1, 40)], rel=1e-6)
    assert drawn["far"][1:] == pytest.approx([1e-2 * step for step in range(1, 40)])
    assert picture.axes[0].get_yscale() == "log"


def test_equal_losses_stand_at_zero():
    picture = parity({"same": run_of(), "near": run_of(apart=1e-6)}, run_of())
    axes = picture.axes[0]
    labels = dict(zip(axes.get_yticks(), [label.get_text() for label in axes.get_yticklabels()], strict=True))
    (zero,) = set(lines(picture)["same"])
    assert labels[zero] == "0"
    assert lines(picture)["near"][0] == zero < min(lines(picture)["near"][1:])
    assert "Same: equal over 40 steps" in picture.alt.replace("same:", "Same:")
    assert faults(parity({"same": run_of()}, run_of())) == []


def test_one_spacing_of_each_dtype_is_drawn():
    reference = run_of()
    picture = parity({"a": run_of(apart=1e-6, dtype="float32"), "b": run_of(dtype="bfloat16")}, reference)
    loss = list(reference.steps.loc[reference.steps["rank"] == 0, "loss"])
    drawn = lines(picture)
    assert drawn["spacing float32"] == pytest.approx([value * 2**-23 for value in loss])
    assert drawn["spacing bfloat16"] == pytest.approx([value * 2**-7 for value in loss])
    assert "spacing float64" not in drawn
    assert "one spacing in float32" in [words for words, _, _ in texts(picture)]


def test_the_band_is_the_largest_difference_so_far_of_runs_that_only_round():
    rounding = [run_of(apart=1e-6), run_of(apart=-2e-6)]
    runs = {"in": run_of(apart=1e-6), "out": run_of(apart=1e-4), "broken": run_of(apart=float("nan"))}
    picture = parity(runs, run_of(), rounding)
    (band,) = picture.findobj(lambda artist: artist.get_gid() == "rounding")
    assert band.get_paths()[0].get_extents().y1 == pytest.approx(39 * 2e-6)
    assert "in: about as far as rounding goes over 40 steps. out: farther than rounding goes" in picture.alt
    assert "broken: not a finite number from step 0 on" in picture.alt
    assert "rounding alone" in [words for words, _, _ in texts(picture)]


def test_runs_meet_at_the_steps_that_both_recorded():
    assert len(lines(parity({"short": run_of(steps=12)}, run_of()))["short"]) == 12
    elsewhere = run_of()
    elsewhere.steps["step"] += 1000
    with pytest.raises(ValueError, match="run 'elsewhere' and the reference share no step"):
        parity({"elsewhere": elsewhere}, run_of())


def test_the_alt_text_counts_steps_and_not_points():
    run = run_of()
    run.steps = run.steps[run.steps["step"] % 4 == 0]
    assert parity({"some": run}, run_of()).alt.endswith("some: equal at 10 recorded steps, 0 to 36.")
    run.steps = run.steps[run.steps["step"] == 8]
    assert parity({"one": run}, run_of()).alt.endswith("one: equal in step 8.")


def test_no_run_and_too_many_are_refused():
    for count in (0, 9):
        with pytest.raises(ValueError, match=f"runs has {count} runs; a figure shows 1 to 8"):
            parity({str(number): run_of() for number in range(count)}, run_of())


@pytest.mark.parametrize("count", [1, 3, 8])
def test_text_overlaps_nothing_and_is_not_cut(count):
    dtypes = ["float32", "bfloat16", "float64"]
    runs = {
        f"TP={number} {dtypes[number % 3]}": run_of(apart=10.0**-number, dtype=dtypes[number % 3])
        for number in range(count)
    }
    assert faults(parity(runs, run_of(), [run_of(apart=1e-7)])) == []
