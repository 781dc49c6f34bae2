"""Every figure can be read: nothing overlaps or is cut off, letters are large, axes have units."""

from __future__ import annotations

import pytest
from matplotlib.text import Text

from tp_teach.plot import comm, curves, flow, grid, loss, matmul, memory, ring, shards, wire

from . import samples
from .measure import faults, texts

SIZES = (1, 2, 3, 4, 8)
DRAW = {"shards": shards, "comm": comm, "memory": memory, "loss": loss}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", DRAW)
def test_text_of_the_toy_model_overlaps_nothing_and_is_not_cut(name, size):
    assert faults(DRAW[name](samples.toy(size, cuda=size == 4))) == []


@pytest.mark.parametrize("size", [3, 4, 8, 16])
def test_uneven_shards_stay_readable(size):
    assert faults(shards(samples.uneven(size))) == []


@pytest.mark.parametrize("rows, columns", [(2, 2), (4, 2), (2, 4)])
def test_a_two_dimensional_mesh_stays_readable(rows, columns):
    assert faults(shards(samples.mesh(rows, columns))) == []


@pytest.mark.parametrize("size", [4, 8])
def test_long_names_are_broken_not_cut(size):
    assert faults(shards(samples.decoder(size))) == []


@pytest.mark.parametrize("size", [16, 64])
def test_many_ranks_stay_readable(size):
    run = samples.toy(size)
    for draw in (shards, comm, memory):
        assert faults(draw(run)) == [], draw.__name__


def test_ranks_that_differ_stay_readable():
    for size in (4, 12):
        assert faults(loss(samples.make_run(size, steps=samples.step_rows(size, apart=0.1)))) == []
        assert faults(memory(samples.lopsided(size))) == []
        assert faults(comm(samples.lopsided(size))) == []


def sent(run):
    return wire([{"op": "all_reduce", "payload_bytes": 2**20, "wire_bytes": 2**20, "measured_bytes": 2**20}])


NOT_OF_A_RUN = {
    "ring": lambda run: ring(8),
    "one step": lambda run: ring(8, step=1),
    "matmul": lambda run: matmul("row", world_size=8),
    "grid": lambda run: grid(run.shards[["local_bytes", "global_bytes"]].head(), "Bytes", digits=".0f"),
    "curves": lambda run: curves({"a": [1e-7, 0.0], "rank 1": [0.1, 0.2]}, "Two", log=True),
    "wire": sent,
    "flow": flow,
}


@pytest.mark.parametrize("name", [*DRAW, *NOT_OF_A_RUN])
def test_letters_are_large_enough_for_a_projector(name):
    picture = (DRAW | NOT_OF_A_RUN)[name](samples.toy(4))
    on_slide = 600 / (picture.get_figwidth() * 72)  # pixels for one point where the figure is 600 pixels wide
    seen = {words for words, _, _ in texts(picture)}
    sizes = [text.get_fontsize() * on_slide for text in picture.findobj(Text) if text.get_text() in seen]
    assert min(sizes) > 11.5


def test_axes_say_their_unit():
    run = samples.toy(4)
    labels = {
        "comm": [axes.get_xlabel() for axes in comm(run).axes],
        "memory": [axes.get_ylabel() for axes in memory(run).axes],
    }
    assert "bytes for one rank and one step, in MiB" in labels["comm"]
    assert "bytes on one rank, MiB" in labels["memory"]
    axes = loss(run).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("training step (number)", "loss (no unit)")


@pytest.mark.parametrize("name, unit", [("shards", "KiB = 1,024"), ("comm", "MiB = 1,048,576"), ("memory", "MiB")])
def test_binary_units_are_explained_on_the_figure(name, unit):
    assert any(unit in words for words, _, _ in texts(DRAW[name](samples.toy(4))))
