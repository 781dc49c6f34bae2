"""The collectives' figure shows what the table says, and keeps payload and wire apart."""

from __future__ import annotations

import pytest
from matplotlib.patches import Rectangle

from tp_teach.plot import comm
from tp_teach.plot.words import fold_numbers

from . import samples
from .measure import texts


def bars(picture, name):
    """The bars' lengths in the unit of the axis, from the top."""
    found = picture.findobj(lambda artist: isinstance(artist, Rectangle) and artist.get_gid() == name)
    return [artist.get_width() for artist in sorted(found, key=lambda artist: artist.get_y())]


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_bars_are_the_bytes_of_one_rank(size):
    picture = comm(samples.toy(size))
    activation = 32 * 32 * 96 * 4
    batch = 32 * 32 * 8 + 32 * 8
    mebi = 2**20
    assert bars(picture, "payload") == pytest.approx([batch / mebi, 4 * activation / mebi, 4 * activation / mebi])
    ring = 2 * (size - 1) / size
    assert bars(picture, "wire") == pytest.approx([batch / mebi, *[ring * 4 * activation / mebi] * 2], abs=1e-5)


def test_alt_text_holds_counts_modules_and_exact_bytes():
    alt = comm(samples.toy(4)).alt
    assert "Forward: 4 × all_reduce in layers.0–3, each 393,216 bytes (384 KiB), " in alt
    assert "Backward: 4 × all_reduce in layers.0–3.fc1, each 393,216 bytes (384 KiB), " in alt
    assert "payload 1,572,864 bytes (1.5 MiB), wire 2,359,296 bytes (2.25 MiB)." in alt
    assert "Other: 2 × broadcast, 1 of 8,192 bytes (8 KiB) and 1 of 256 bytes, payload 8,448 bytes" in alt
    assert "Every rank: 10 calls, payload 3,154,176 bytes (3.01 MiB), wire 4,727,040 bytes" in alt


def test_alt_text_does_not_depend_on_times_or_device():
    slow = samples.toy(4, cuda=True)
    slow.comm["seconds"] *= 17.3
    assert comm(slow).alt == comm(samples.toy(4)).alt


def test_ranks_that_issue_other_calls_are_named():
    alt = comm(samples.lopsided(4)).alt
    assert "Optimizer: 1 × all_reduce on rank 3 only, payload 4 bytes, wire 6 bytes." in alt
    assert "Ranks differ: rank 0 10 calls" in alt and "rank 3 11 calls" in alt
    seen = [words for words, _, _ in texts(comm(samples.lopsided(4)))]
    assert any("rank 3 only" in words for words in seen)


def test_many_ranks_that_differ_are_given_as_a_range():
    rows = [samples.comm_row(rank, 1, 0, 8, "forward", "", "all_gather", 1000 + rank) for rank in range(8)]
    alt = comm(samples.make_run(8, comm=rows)).alt
    assert "Forward: 1 × all_gather; ranks differ, payload from 1,000 bytes to 1,007 bytes." in alt


def test_the_axes_of_a_mesh_are_kept_apart_and_their_groups_named():
    rows = [row | {"group": "0,1" if row["rank"] < 2 else "2,3", "group_size": 2} for row in samples.comm_rows(4)]
    for rank in range(4):
        row = samples.comm_row(rank, 1, 10, 2, "backward", "", "all_reduce", 64)
        rows.append(row | {"group": "0,2" if rank % 2 == 0 else "1,3"})
    alt = comm(samples.make_run(4, comm=rows)).alt
    assert "Backward: 4 × all_reduce (groups 0,1 and 2,3) in layers.0–3.fc1, each" in alt
    assert "Backward: 1 × all_reduce (groups 0,2 and 1,3), payload 64 bytes" in alt
    assert "only" not in alt and "group" not in comm(samples.toy(4)).alt


def test_of_several_measured_steps_the_last_is_drawn():
    run = samples.make_run(2, comm=samples.comm_rows(2, step=3) + samples.comm_rows(2, step=7))
    picture = comm(run)
    assert "10 calls" in picture.alt
    assert any("in step 7" in words for words, _, _ in texts(picture))


def test_rows_without_step_or_module_are_drawn():
    rows = [row | {"step": None, "module": None, "phase": None} for row in samples.comm_rows(2)]
    assert "Other: 8 × all_reduce, each 393,216 bytes" in comm(samples.make_run(2, comm=rows)).alt


def test_numbers_in_names_fold_only_where_none_is_missing():
    assert list(fold_numbers(["layers.0", "layers.1", "layers.3"])) == ["layers.0–1, 3"]
    assert list(fold_numbers(["a.0.b.0", "a.0.b.1", "a.1.b.0", "a.1.b.1"])) == ["a.0–1.b.0–1"]
    assert list(fold_numbers(["a.0.b.0", "a.1.b.1"])) == ["a.*.b.*"]


def test_an_empty_table_says_what_fills_it():
    with pytest.raises(ValueError, match=r"no rows in `comm`: wrap the training step in `tp.measure\(model, optimizer"):
        comm(samples.make_run(4))
