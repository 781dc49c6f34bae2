"""The figures of a plan: bars as long as the seconds, speed-ups where the times put them, words that say the same."""

from __future__ import annotations

import pytest

import tp_teach as tp
from tp_teach.plot import plan, scaling

from .measure import faults, rectangles, texts


@pytest.mark.parametrize(
    "planned",
    [
        tp.plan("llama3-8b", "h100", sequence_parallel=[False, True]),
        tp.plan("llama3-70b", "a100-pcie", tp=8),
        tp.plan("llama3-8b", "b200", tp=[2, 8], data_parallel=[1, 4], batch_size=[8, 16]),
    ],
    ids=["several", "one", "many options"],
)
def test_bars_are_as_long_as_the_seconds(planned):
    picture = plan(planned)
    assert faults(picture) == []
    bars = rectangles(picture, "bar ")
    longest = max(candidate.step_seconds for candidate in planned.candidates)
    whole = max(bars[f"bar {n} communication"].x1 - bars[f"bar {n} compute"].x0 for n in range(len(planned.candidates)))
    for number, candidate in enumerate(planned.candidates):
        for part in ("compute", "communication"):
            length = bars[f"bar {number} {part}"].width
            # A pixel of tolerance: the boxes are compared as drawn.
            assert length == pytest.approx(getattr(candidate, f"{part}_seconds") / longest * whole, abs=1)


def test_words_say_what_fits_and_what_communication_takes():
    picture = plan(tp.plan("llama3-8b", "h100", tp=[2, 4]))
    said = " ".join(words for words, _, _ in texts(picture))
    assert "86.7 GiB a rank: does not fit" in said
    assert "48.4 GiB a rank: fits" in said
    assert picture.alt.startswith("Predicted time of one step of llama3-8b on H100-SXM-80GB. TP=2: ")
    assert "does not fit. TP=4: " in picture.alt


def test_speed_ups_are_ratios_of_times():
    planned = tp.plan("llama3-8b", "h100")
    picture = scaling({"predicted": planned, "measured": {1: 3.0, 2: 2.0, 4: 6.0}})
    assert faults(picture) == []
    lines = {line.get_gid(): list(line.get_ydata()) for line in picture.axes[0].lines}
    steps = [candidate.step_seconds for candidate in planned.candidates]
    assert lines["predicted"] == [steps[0] / seconds for seconds in steps]
    assert lines["measured"] == [1.0, 1.5, 0.5]
    assert lines["ideal"] == [1, 8]
    assert "measured: 1.00 on 1, 1.50 on 2, 0.50 on 4." in picture.alt


def test_of_equal_cuts_the_quickest_counts():
    planned = tp.plan("llama3-8b", "h100", sequence_parallel=[False, True])
    quickest = min(candidate.step_seconds for candidate in planned.candidates if candidate.tp == 8)
    line = next(line for line in scaling({"a": planned}).axes[0].lines if line.get_gid() == "a")
    assert list(line.get_xdata()) == [1, 2, 4, 8]
    assert list(line.get_ydata())[-1] == planned.candidates[0].step_seconds / quickest


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="series 'a' has no time on 1 rank"):
        scaling({"a": {2: 1.0}})
    with pytest.raises(ValueError, match="series has 0 lines; a figure shows 1 to 8"):
        scaling({})
    many = tp.plan("llama3-8b", "h100", seq_len=[1024, 2048, 4096, 8192])
    with pytest.raises(ValueError, match="the plan has 16 candidates; a figure shows 1 to 12"):
        plan(many)
