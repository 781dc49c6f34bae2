"""A picture is the same wherever it is drawn, and a notebook shows it once, sharp, with its alt text."""

from __future__ import annotations

import ast
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import matplotlib
import nbformat
import pytest
from matplotlib.figure import Figure
from nbclient import NotebookClient
from PIL import Image

import tp_teach.plot
from tp_teach.plot import comm, loss, memory, shards
from tp_teach.plot.picture import Picture

from . import samples

ROOM = Path(tp_teach.plot.__file__).parent
ROOT = ROOM.parent.parent


@pytest.mark.parametrize("draw", [shards, comm, memory, loss])
def test_equal_runs_give_equal_bytes(draw):
    first, second = draw(samples.toy(2)), draw(samples.toy(2))
    assert isinstance(first, Figure)
    assert first.png() == second.png()
    assert first.alt == second.alt == repr(first)


def test_the_notebooks_own_looks_change_nothing():
    plain = comm(samples.toy(4)).png()
    dark = {"text.color": "white", "axes.facecolor": "black", "figure.facecolor": "black", "font.size": 30}
    with matplotlib.rc_context({**dark, "savefig.facecolor": "black", "hatch.linewidth": 4}):
        before = dict(matplotlib.rcParams)
        picture = comm(samples.toy(4))
        assert picture.png() == plain
        assert dict(matplotlib.rcParams) == before


def test_the_background_is_white_and_the_picture_is_twice_its_size_on_the_page():
    picture = shards(samples.toy(4))
    data, metadata = picture._repr_mimebundle_()
    image = Image.open(BytesIO(b64decode(data["image/png"]))).convert("RGB")
    assert image.getpixel((3, 3)) == image.getpixel((image.width - 3, image.height - 3)) == (255, 255, 255)
    about = metadata["image/png"]
    assert (image.width, image.height) == pytest.approx((2 * about["width"], 2 * about["height"]), abs=2)
    assert about["alt"] == data["text/plain"] == picture.alt


def test_a_picture_without_alt_text_is_refused():
    with pytest.raises(ValueError, match="alt is empty"):
        Picture(4, 3, " ")


def test_nothing_here_imports_torch_or_pyplot():
    for path in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "torch" or "pyplot" in name], path.name


# Without tp_teach/__init__.py, which imports every room.
BARE = """
import sys, types
package = sys.modules["tp_teach"] = types.ModuleType("tp_teach")
package.__path__ = ["tp_teach"]
"""
CELLS = [
    BARE + "from tests.plot import samples\nfrom tp_teach.plot import comm\ncomm(samples.toy(4))",
    "import sys\nloaded = [name for name in ('torch', 'matplotlib.pyplot') if name in sys.modules]\n"
    "import matplotlib.pyplot as plt\nlines = plt.plot([1, 2])",
    "comm(samples.toy(4))",
    "kept = comm(samples.toy(4))\nprint(loaded)",
    "display(kept)",
    "%config InlineBackend.figure_formats = ['retina', 'svg']\nkept",
]


@pytest.fixture(scope="module")
def outputs():
    """The outputs of CELLS in a real kernel; pyplot is loaded in the second."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(ROOT)}}).execute()
    return [cell.outputs for cell in notebook.cells]


def test_a_kernel_shows_the_picture_with_alt_text_with_and_without_pyplot(outputs):
    picture = comm(samples.toy(4))
    png = picture.png()
    for cell in (0, 2, 4, 5):
        (output,) = outputs[cell]
        assert set(output.data) == {"image/png", "text/plain"}
        assert output.data["text/plain"] == picture.alt
        assert output.metadata["image/png"] == {"alt": picture.alt, "width": 1000, "height": 555}
        assert b64decode(output.data["image/png"]) == png


def test_drawing_loads_neither_torch_nor_pyplot(outputs):
    assert outputs[3][0].text == "[]\n"


def test_a_picture_that_is_kept_is_not_shown(outputs):
    assert [output.output_type for output in outputs[3]] == ["stream"]
    assert len(outputs[1]) == 1  # pyplot's own figure, and only that
