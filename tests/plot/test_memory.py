"""The memory figure stacks the kinds of the measured step and nothing else."""

from __future__ import annotations

import pytest
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from tp_teach.plot import memory

from . import samples
from .measure import faults, texts

KINDS = ("parameters", "gradients", "optimizer", "activations", "temporary")


def bar(picture, name):
    """Bottom and height of one piece of a bar, in the unit of the axis."""
    found = picture.findobj(lambda artist: isinstance(artist, Rectangle) and artist.get_gid() == name)
    assert len(found) == 1, name
    return found[0].get_y(), found[0].get_height()


def marks(picture, name):
    found = picture.findobj(lambda artist: isinstance(artist, Line2D) and artist.get_gid() == name)
    return [artist.get_ydata()[0] for artist in found]


def test_each_kind_is_stacked_on_the_one_before():
    run = samples.toy(4)
    picture = memory(run)
    rows = run.memory[(run.memory["rank"] == 2) & (run.memory["moment"] == "peak")]
    base = 0.0
    for kind in KINDS:
        size = int(rows.loc[rows["kind"] == kind, "bytes"].iloc[0]) / 2**20
        assert bar(picture, f"peak rank 2 {kind}") == pytest.approx((base, size))
        base += size


def test_what_the_allocator_counts_is_marked_not_stacked():
    run = samples.toy(4, cuda=True)
    rows = run.memory[(run.memory["rank"] == 1) & (run.memory["moment"] == "forward")].set_index("kind")["bytes"]
    picture = memory(run)
    for kind in ("allocated", "reserved"):
        assert marks(picture, f"forward rank 1 {kind}") == pytest.approx([int(rows[kind]) / 2**20])


def test_a_mark_far_above_the_bars_is_named_instead_of_drawn():
    run = samples.toy(2, cuda=True)
    run.memory.loc[run.memory["kind"] == "reserved", "bytes"] = 2**30
    picture = memory(run)
    assert not marks(picture, "peak rank 0 reserved")
    assert any("reserved by the allocator, up to 1 GiB" in words for words, _, _ in texts(picture))


def test_alt_text_holds_exact_bytes():
    held = 413_224
    alt = memory(samples.toy(4)).alt
    assert f"Init: parameters {held:,} bytes (404 KiB)." in alt
    assert f"Step: parameters {held:,} bytes (404 KiB), gradients {held:,} bytes (404 KiB) and optimizer" in alt
    assert f"optimizer {2 * held:,} bytes (807 KiB) and activations 7,864,320 bytes (7.5 MiB)." in alt
    assert "Every rank alike" in alt


def test_alt_text_is_the_same_on_another_device():
    assert memory(samples.toy(4, cuda=True)).alt == memory(samples.toy(4)).alt
    other = samples.toy(4)
    other.memory.loc[other.memory["kind"] == "temporary", "bytes"] += 1000
    assert memory(other).alt == memory(samples.toy(4)).alt


def test_ranks_that_differ_are_told_apart():
    alt = memory(samples.lopsided(4)).alt
    assert "rank 0: parameters 413,224 bytes (404 KiB), gradients 413,224 bytes" in alt
    assert "gradients 1,613,224 bytes (1.54 MiB)" in alt and "Every rank alike" not in alt


def test_of_many_ranks_alike_four_are_drawn_and_the_others_named():
    picture = memory(samples.toy(8))
    assert bar(picture, "init rank 3 parameters")
    assert not picture.findobj(lambda artist: artist.get_gid() == "init rank 4 parameters")
    assert any("Ranks 4–7 hold the same." in words for words, _, _ in texts(picture))


def test_of_many_ranks_that_differ_the_least_and_the_most_are_drawn():
    picture = memory(samples.lopsided(12))
    drawn = {int(a.get_gid().split()[2]) for a in picture.findobj(Rectangle) if "rank" in (a.get_gid() or "")}
    assert drawn == {0, 11}
    assert any("needs least (0)" in words and "needs most (11)" in words for words, _, _ in texts(picture))


def predicted(size=4, **changes):
    """A prediction as `tp.predict` makes it: no temporary bytes, no peak. `changes` are bytes more of a kind."""
    rows = [row for row in samples.memory_rows(size) if row["kind"] in KINDS[:4] and row["moment"] != "peak"]
    rows = [{**row, "bytes": row["bytes"] + changes.get(row["kind"], 0)} for row in rows]
    return samples.make_run(size, "predicted", memory=rows)


def test_a_prediction_stands_right_of_what_was_measured_and_is_equal():
    picture = memory(samples.toy(4), predicted())
    for kind in ("parameters", "activations"):
        assert bar(picture, f"forward rank 2 {kind}") == bar(picture, f"beside forward rank 2 {kind}")
    assert not picture.findobj(lambda artist: (artist.get_gid() or "").startswith("beside peak"))
    said = "All 64 numbers that both state are equal to the byte."
    assert picture.alt.startswith(f"Memory by kind over one training step, 4 ranks, measured beside predicted. {said}")
    seen = [words for words, _, _ in texts(picture)]
    assert said in seen and any("measured left, predicted right (paler)" in words for words in seen)


def test_where_a_prediction_is_wrong_the_figure_says_by_how_much_and_where():
    other = predicted(optimizer=4, activations=4096)
    last = (other.memory["rank"] == 3) & (other.memory["moment"] == "forward") & (other.memory["kind"] == "activations")
    other.memory.loc[last, "bytes"] += 1
    picture = memory(samples.toy(4), other)
    said = "32 of 64 numbers that both state differ, most by 4,097 bytes (activations, rank 3, forward)."
    assert said in picture.alt and any(said in words for words, _, _ in texts(picture))
    left, right = (bar(picture, f"{name}forward rank 3 activations") for name in ("", "beside "))
    assert right[1] - left[1] == pytest.approx(4097 / 2**20)


@pytest.mark.parametrize("size", [1, 8])
def test_pairs_stay_readable(size):
    assert faults(memory(samples.lopsided(size), predicted(size, activations=2**20))) == []


def test_runs_of_other_ranks_do_not_stand_side_by_side():
    with pytest.raises(ValueError, match="the runs have 4 ranks and 2 ranks; compare runs of the same number"):
        memory(samples.toy(4), predicted(2))


def test_steps_that_only_say_allocated_are_left_out():
    rows = samples.memory_rows(2)
    sparse = [row for row in rows if row["step"] == 1]
    assert memory(samples.make_run(2, memory=rows)).png() == memory(samples.make_run(2, memory=sparse)).png()


def test_a_run_without_a_measured_step_is_refused():
    rows = [row for row in samples.memory_rows(2) if row["kind"] == "allocated"]
    with pytest.raises(ValueError, match="no measured step in `memory`: wrap the training step"):
        memory(samples.make_run(2, memory=rows))
    with pytest.raises(ValueError, match=r"no rows in `memory`: wrap the training step in `tp.measure\(model, optim"):
        memory(samples.make_run(2))
