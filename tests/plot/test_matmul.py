"""The product figure is cut where torch cuts, to scale, and says what must move."""

from __future__ import annotations

import pytest

from tp_teach.plot import matmul

from .measure import faults, rectangles, texts

SHAPE = (32, 96, 384)


@pytest.mark.parametrize("cut", ["column", "row", "pair"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_it_can_be_read(cut, size):
    assert faults(matmul(cut, SHAPE, size)) == []


@pytest.mark.parametrize("shape", [(6, 8, 12), (4096, 8192, 28672), (1, 8, 4096)])
@pytest.mark.parametrize("cut", ["column", "row", "pair"])
def test_other_shapes_can_be_read(cut, shape):
    assert faults(matmul(cut, shape, 4)) == []


def blocks(picture, name):
    """The blocks of one matrix as left, bottom, width and height in pixels, by rank."""
    boxes = rectangles(picture, f"block {name} rank ")
    return [boxes[f"block {name} rank {rank}"].bounds for rank in range(len(boxes))]


def test_a_column_cut_sets_the_ranks_side_by_side():
    weight = blocks(matmul("column", SHAPE, 4), "W")
    assert len({bottom for _, bottom, _, _ in weight}) == 1
    for (left, _, width, _), (after, _, _, _) in zip(weight, weight[1:], strict=False):
        assert left + width == pytest.approx(after)  # floating point of the drawing
    assert weight[0][2] * 4 / weight[0][3] == pytest.approx(384 / 96)


def test_a_row_cut_sets_the_ranks_below_each_other():
    picture = matmul("row", SHAPE, 4)
    weight = blocks(picture, "W")
    assert len({left for left, _, _, _ in weight}) == 1
    assert [bottom for _, bottom, _, _ in weight] == sorted((bottom for _, bottom, _, _ in weight), reverse=True)
    assert len(rectangles(picture, "block part y rank ")) == 4
    assert len({(round(width, 6), round(height, 6)) for _, _, width, height in blocks(picture, "deck y")}) == 1


def test_shapes_and_collectives_are_said():
    row = matmul("row", SHAPE, 4)
    assert "x (32, 96), each rank (32, 24), columns cut, W (96, 384), each rank (24, 384), rows cut" in row.alt
    assert "An all_reduce adds the partial sums" in row.alt
    assert "Only if y is needed whole, an all_gather" in matmul("column", SHAPE, 2).alt
    pair = matmul("pair", SHAPE, 4)
    assert pair.alt.count("all_reduce") == 1 and "all_gather" not in pair.alt
    assert any("Shard(0) of A and Shard(1) of B" in words for words, _, _ in texts(pair))
    assert "all_" not in matmul("row", SHAPE, 1).alt


def test_a_side_out_of_scale_is_said():
    assert any("drawn longer: tokens 2.3×" in words for words, _, _ in texts(matmul("column", SHAPE, 4)))
    assert any(words.endswith("To scale.") for words, _, _ in texts(matmul("column", (6, 8, 12), 4)))


@pytest.mark.parametrize(
    ("cut", "shape", "size", "says"),
    [
        ("column", SHAPE, 7, "384 output features do not divide over 7 ranks; use 378 or 385"),
        ("row", (32, 90, 384), 4, "90 input features do not divide over 4 ranks; use 88 or 92"),
        ("pair", (32, 96, 2), 4, "2 hidden features do not divide over 4 ranks; use 4"),
        ("diagonal", SHAPE, 4, "cut='diagonal' is not known; use 'column', 'row' or 'pair'"),
        ("row", (32, 96), 4, r"shape=\(32, 96\) does not work; use three sizes: tokens, input features, output"),
        ("row", SHAPE, 16, "world_size=16 does not work; use a whole number of ranks from 1 to 8"),
    ],
)
def test_what_does_not_fit_is_refused(cut, shape, size, says):
    with pytest.raises(ValueError, match=says):
        matmul(cut, shape, size)
