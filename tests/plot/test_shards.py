"""The shard map shows what the table says: areas, places, names, bytes."""

from __future__ import annotations

from math import isclose, prod

import pytest

from tp_teach.plot import shards
from tp_teach.plot.shard_data import numbers

from . import samples
from .measure import rectangles, texts


def drawn(run, label, dims=2):
    """For each rank: left, top, width and height of its block, as parts of the whole matrix."""
    boxes = rectangles(shards(run), f"block {label} rank ")
    left, right = min(box.x0 for box in boxes.values()), max(box.x1 for box in boxes.values())
    bottom, top = min(box.y0 for box in boxes.values()), max(box.y1 for box in boxes.values())
    wide, high = right - left, top - bottom
    return {
        int(name.rsplit(" ", 1)[1]): ((b.x0 - left) / wide, (top - b.y1) / high, b.width / wide, b.height / high)
        for name, b in boxes.items()
    }


def expected(run, parameter):
    rows = run.shards[run.shards["parameter"] == parameter]
    parts = {}
    for rank, shape, local, offset in zip(rows["rank"], *(rows[c] for c in SHAPES), strict=True):
        shape, local, offset = numbers(shape), numbers(local), numbers(offset)
        if len(shape) == 1:
            shape, local, offset = (1, *shape), (1, *local), (0, *offset)
        if prod(local):
            parts[rank] = tuple(part[d] / shape[d] for part in (offset, local) for d in (1, 0))
    return parts


SHAPES = ("global_shape", "local_shape", "offset")


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("part, parameter", [("fc1", "layers.2.fc1.weight"), ("fc2", "layers.0.fc2.weight")])
def test_blocks_of_the_toy_model_are_to_scale(size, part, parameter):
    run = samples.toy(size)
    assert_same(drawn(run, f"layers.0–3.{part}.weight"), expected(run, parameter))


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("parameter", ["head.weight", "fc1.bias", "proj.weight"])
def test_uneven_blocks_are_to_scale(size, parameter):
    run = samples.uneven(size)
    assert_same(drawn(run, parameter), expected(run, parameter))


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for rank in wanted:
        assert all(isclose(a, b, abs_tol=1e-6) for a, b in zip(found[rank], wanted[rank], strict=True)), rank


def test_area_is_proportional_to_local_elements():
    run = samples.uneven(4)
    boxes = rectangles(shards(run), "block proj.weight")
    areas = [box.width * box.height for box in boxes.values()]
    assert [round(area / sum(areas) * 96 * 50) for area in areas] == [96 * 13, 96 * 13, 96 * 13, 96 * 11]


def test_a_side_drawn_out_of_scale_is_said_and_by_how_much():
    picture = shards(samples.uneven(4), "head.weight")
    boxes = rectangles(picture, "block ").values()
    high = max(b.y1 for b in boxes) - min(b.y0 for b in boxes)
    wide = max(b.x1 for b in boxes) - min(b.x0 for b in boxes)
    said = f"drawn {(high / wide) / (10 / 96):.2g}× taller"
    assert any(said in words for words, _, _ in texts(picture)), said


def test_no_scale_note_where_the_drawing_is_to_scale():
    assert not any("drawn 1" in words for words, _, _ in texts(shards(samples.toy(4))))


def test_alt_text_holds_exact_bytes_and_shapes():
    alt = shards(samples.toy(4)).alt
    assert "layers.0–3.fc1.weight (4 layers): (384, 96), 147,456 bytes (144 KiB), Shard(0): " in alt
    assert "each of 4 ranks holds (96, 96), 36,864 bytes (36 KiB)" in alt
    assert "token_emb.weight: (256, 96), 98,304 bytes (96 KiB), a plain tensor on ranks 0–3." in alt
    run = samples.toy(4)
    one = int(run.shards.loc[run.shards["rank"] == 0, "local_bytes"].sum())
    whole = int(run.shards.loc[run.shards["rank"] == 0, "global_bytes"].sum())
    assert f"Together: {one:,} bytes" in alt and f"{whole:,} bytes" in alt


def test_alt_text_names_ranks_that_hold_less_or_nothing():
    assert "ranks 0–2 hold (3, 96), 1,152 bytes (1.12 KiB) and rank 3 holds (1, 96), 384 bytes" in alt_of(4)
    assert "ranks 0–4 hold (2, 96), 768 bytes and ranks 5–7 hold nothing" in alt_of(8)


def alt_of(size):
    return shards(samples.uneven(size), "head.weight").alt


def test_whole_parameters_are_stacked_copies_one_a_rank():
    picture = shards(samples.toy(4))
    copies = rectangles(picture, "copy token_emb.weight rank ")
    assert len(copies) == 4
    sizes = {(round(box.width, 3), round(box.height, 3)) for box in copies.values()}
    assert len(sizes) == 1 and len({box.x0 for box in copies.values()}) == 4
    assert not rectangles(picture, "block token_emb.weight")


def test_one_rank_holds_everything_whole():
    picture = shards(samples.toy(1))
    assert not rectangles(picture, "block ")
    assert "layers.0–3.fc1.weight (4 layers): (384, 96), 147,456 bytes (144 KiB), whole on rank 0." in picture.alt


def test_a_mesh_draws_one_copy_of_the_matrix_for_each_row_of_ranks():
    boxes = rectangles(shards(samples.mesh(2, 2), "fc1.weight"), "block ")
    assert len(boxes) == 4
    left = {name: round(box.x0) for name, box in boxes.items()}
    columns = {place: sorted(int(n[-1]) for n, x in left.items() if x == place) for place in set(left.values())}
    assert sorted(columns.values()) == [[0, 1], [2, 3]]
    assert "each of 4 ranks holds (192, 96), 73,728 bytes (72 KiB), each block on 2 ranks" in shards(samples.mesh()).alt


def test_layers_that_are_cut_otherwise_are_drawn_apart():
    run = samples.toy(4)
    odd = run.shards["parameter"] == "layers.2.fc1.weight"
    whole = run.shards.loc[odd, "global_shape"]
    run.shards.loc[odd, ["placement", "offset"]] = ["plain", "(0, 0)"]
    run.shards.loc[odd, "local_shape"] = whole
    run.shards.loc[odd, "local_bytes"] = run.shards.loc[odd, "global_bytes"]
    alt = shards(run).alt
    assert "layers.0–1, 3.fc1.weight (3 layers)" in alt
    assert "layers.2.fc1.weight: (384, 96), 147,456 bytes (144 KiB), a plain tensor on ranks 0–3." in alt


def test_a_three_dimensional_parameter_is_drawn_by_the_dimensions_that_are_cut():
    run = samples.make_run(2, shards=samples.shard_rows(2, [("experts.weight", (8, 64, 32), 2)]))
    boxes = sorted(rectangles(shards(run), "block ").values(), key=lambda box: box.x0)
    assert isclose(boxes[0].x1, boxes[1].x0, abs_tol=1e-6) and isclose(boxes[0].width, boxes[1].width, abs_tol=1e-6)
    assert "(8, 64, 32)" in shards(run).alt


def test_parameters_may_be_names_or_patterns():
    run = samples.toy(4)
    assert shards(run, ["head.bias"]).alt.count("a plain tensor on") == 1
    alt = shards(run, "layers.0.fc*").alt
    assert "layers.0.fc1.weight: " in alt and "layers.0.fc2.weight: " in alt and "head" not in alt


def test_an_unknown_parameter_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"parameters='fc9' is not in this run; it has token_emb.weight, "):
        shards(samples.toy(4), ["head.bias", "fc9"])
    with pytest.raises(ValueError, match=r"parameters=\[\] names nothing to draw"):
        shards(samples.toy(4), [])


def test_an_empty_table_says_what_fills_it():
    with pytest.raises(ValueError, match=r"no rows in `shards`: wrap the training step in `tp.measure\(model, optim"):
        shards(samples.make_run(4))
