"""Ranks, kinds and collectives stay apart, in grey print too; bytes are written in binary units."""

from __future__ import annotations

from itertools import pairwise

import pytest
from matplotlib import colors

from tp_teach.plot import shards, style
from tp_teach.tables import wire_bytes

from . import samples


def grey(colour):
    """Lightness in grey print, from 0 to 1."""
    red, green, blue = colors.to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_neighbouring_ranks_differ_by_hatch_and_by_colour():
    for rank in range(63):
        assert style.rank_hatch(rank) != style.rank_hatch(rank + 1)
        assert style.rank_colour(rank) != style.rank_colour(rank + 1)


def test_colour_and_hatch_together_name_one_of_64_ranks():
    assert len({(style.rank_colour(rank), style.rank_hatch(rank)) for rank in range(64)}) == 64


def test_ranks_take_petroff8_in_its_order():
    # Petroff 2021, arXiv:2107.02270, the eight-colour sequence.
    petroff8 = "1845fb ff5e02 c91f16 c849a9 adad7d 86c8dd 578dff 656364".split()
    assert list(style.RANK_COLOURS) == [f"#{colour}" for colour in petroff8]


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_blocks_drawn_next_to_each_other_differ_by_hatch(size):
    picture = shards(samples.toy(size), "layers.0.fc1.weight")
    blocks = picture.findobj(lambda artist: (artist.get_gid() or "").startswith("block "))
    hatches = [block.get_hatch() for block in sorted(blocks, key=lambda block: block.get_y())]
    assert len(hatches) == size
    assert all(above != below for above, below in pairwise(hatches))


def test_hatches_are_seen_on_their_colour_in_grey():
    for colour in [*style.RANK_COLOURS, *(colour for colour, _ in style.KIND_STYLES.values())]:
        assert abs(grey(colour) - grey(style.hatch_colour(colour))) > 0.3, colour


def test_kinds_stacked_on_each_other_differ_by_hatch():
    hatches = [hatch for _, hatch in style.KIND_STYLES.values()]
    assert len(set(hatches)) == len(hatches)


def test_every_collective_with_a_ring_formula_has_its_own_glyph():
    for op in style.COLLECTIVES:
        wire_bytes(op, 8, 2)
    glyphs = [glyph for glyph, _ in style.COLLECTIVES.values()]
    assert len(set(glyphs)) == len(glyphs)


@pytest.mark.parametrize(
    "count, text",
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (393_216, "384 KiB"), (3 * 2**30, "3 GiB")],
)
def test_bytes_are_written_in_binary_units(count, text):
    assert style.in_binary(count) == text
