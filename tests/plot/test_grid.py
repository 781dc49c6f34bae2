"""The heat map writes every value, is darker where it is larger, and tells rounding from error."""

from __future__ import annotations

import pandas as pd
import pytest
from matplotlib.patches import Rectangle

from tp_teach.plot import grid

from .measure import faults, rectangles, texts
from .test_style import grey

ERRORS = pd.DataFrame(
    {"right": [0.0, 3e-8], "no f": [0.43, 0.0], "in-place g after ReLU": [1.2, float("nan")]},
    index=["layers.0.fc1.weight", "layers.0.ln.weight"],
)


def lightness(picture):
    cells = picture.findobj(lambda a: isinstance(a, Rectangle) and (a.get_gid() or "").startswith("cell "))
    return {cell.get_gid(): grey(cell.get_facecolor()) for cell in cells}


def errors(**more):
    return grid(ERRORS, "Which gradient is wrong", log=True, same=1e-6, **more)


def test_larger_is_darker_and_equal_is_palest():
    cells = lightness(errors())
    assert cells["cell 0 0"] > cells["cell 1 0"] > cells["cell 0 1"] > cells["cell 0 2"]
    assert cells["cell 0 0"] == cells["cell 1 1"]


def test_words_do_not_hang_on_rounding():
    assert errors().alt == (
        "Which gradient is wrong: 2 rows, 3 columns. "
        "layers.0.fc1.weight: right equal, no f 4e-01 and in-place g after ReLU 1e+00. "
        "layers.0.ln.weight: right rounding, no f equal and in-place g after ReLU not finite."
    )
    other = ERRORS.replace(3e-8, 9e-9)
    assert grid(other, "Which gradient is wrong", log=True, same=1e-6).alt == errors().alt
    assert {"equal", "3e-08", "not finite"} <= {words for words, _, _ in texts(errors())}


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_rank_by_rank_can_be_read(n):
    names = [f"rank {rank}" for rank in range(n)]
    table = pd.DataFrame([[float(a == b) - 0.001 * (a != b) for a in range(n)] for b in range(n)], names, names)
    picture = grid(table, "Similarity of the ranks' shards")
    assert faults(picture) == []
    assert len(rectangles(picture, "copy row rank ")) == len(rectangles(picture, "copy column rank ")) == n
    assert "-0.00" not in picture.alt


def test_long_names_are_broken_not_cut():
    assert faults(errors()) == []
    wide = pd.concat([ERRORS, ERRORS.add_prefix("again ")], axis=1).rename(index=lambda name: f"model.decoder.{name}")
    assert faults(grid(wide, "Twice", log=True)) == []


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="no cells; give a DataFrame"):
        grid(pd.DataFrame(), "Nothing")
    with pytest.raises(ValueError, match="13 rows and 1 columns; at most 12 can be read"):
        grid(pd.DataFrame({"a": range(13)}), "Much")
    with pytest.raises(ValueError, match="holds something that is not a number"):
        grid(pd.DataFrame({"a": ["x"]}), "Words")
