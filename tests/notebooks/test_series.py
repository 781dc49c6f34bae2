"""What nbval does not look at: that every cell was run, that outputs are stored, and that a reader gets alt text."""

import re
from pathlib import Path

import nbformat
import pytest

from tp_teach.lesson.rerun import canonical

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def notebook(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def figures(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    return [output for output in outputs if "image/png" in output.get("data", {})]


def test_there_is_a_first_notebook():
    assert NOTEBOOKS and NOTEBOOKS[0].name == "00_four_ranks_in_a_cell.ipynb"


def test_every_code_cell_was_run(notebook):
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))


def test_no_cell_stored_an_error(notebook):
    assert not [cell.source for cell in code(notebook) for output in cell.outputs if output.output_type == "error"]


def test_nothing_was_written_to_standard_error(notebook):
    assert not [output.text for cell in code(notebook) for output in cell.outputs if output.get("name") == "stderr"]


def test_the_file_is_in_canonical_form(path, notebook):
    assert path.read_text(encoding="utf-8") == nbformat.writes(canonical(notebook), version=4) + "\n"


def test_every_figure_has_alt_text_that_nbval_compares(notebook):
    assert figures(notebook)
    for output in figures(notebook):
        alt = output.metadata["image/png"]["alt"]
        assert len(alt) > 40 and output.data["text/plain"] == alt


def test_every_cell_knows_its_place_on_slides(notebook):
    kinds = {"slide", "subslide", "fragment", "skip", "notes"}
    assert not [
        cell.source for cell in notebook.cells if cell.metadata.get("slideshow", {}).get("slide_type") not in kinds
    ]


def test_cells_are_short_and_the_text_is_too(notebook):
    assert max(len(cell.source.splitlines()) for cell in code(notebook)) <= 25
    prose = " ".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert len(re.findall(r"[A-Za-z][\w'-]*", prose)) <= 1600


def test_links_between_notebooks_lead_somewhere(notebook):
    for cell in notebook.cells:
        for target in re.findall(r"\]\(([^)#]+)\)", cell.source) if cell.cell_type == "markdown" else []:
            assert target.startswith("https://") or (FOLDER / target).exists(), target
