"""The READMEs show pictures that are there, and those of notebooks are what the notebooks hold."""

import re
from pathlib import Path

import pytest
from nbformat.v4 import new_notebook
from PIL import Image

from tests.pages.notebooks import TITLE, code, picture
from tp_teach.lesson.pages.series import Lesson, lessons
from tp_teach.lesson.pictures import STORED, stored

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("readme", ["README.md", "notebooks/README.md"])
def test_pictures_are_there_and_have_alt_text(readme):
    found = re.findall(r"!\[(.*)\]\((.*)\)", (ROOT / readme).read_text(encoding="utf-8"))
    assert len(found) == 3 and all(alt for alt, _ in found)
    for _, path in found:
        assert Image.open((ROOT / readme).parent / path).width >= 1280


def test_pictures_of_notebooks_are_their_stored_outputs():
    series = lessons(ROOT / "notebooks")
    for name in STORED:
        same = (ROOT / f"notebooks/pictures/{name}.png").read_bytes() == stored(series, name)
        assert same, f"{name}.png is not what its notebook holds: python -m tp_teach.lesson.pictures"


def test_a_picture_that_is_not_there_is_named():
    notebook = new_notebook(cells=[TITLE, code("f()", picture(10, 10, "something else"))])
    with pytest.raises(ValueError, match="notebook 00 has no picture whose alt text begins with 'Shard map"):
        stored([Lesson(Path("00_a.ipynb"), notebook, "00", "A", "")], "shards")
