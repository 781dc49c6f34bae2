"""The notebooks of the series as they stand in a folder, and the workshop cut."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell, new_notebook

WORKSHOP = ("00", "02", "03", "04", "05", "10", "11")
"""Notebooks of the three-hour workshop; those that do not exist yet are left out."""


@dataclass(frozen=True)
class Lesson:
    """One notebook: its file, its number and name, and what its first paragraph says."""

    path: Path
    notebook: nbformat.NotebookNode
    number: str
    name: str
    lead: str
    """In markdown."""


def lessons(folder: Path) -> list[Lesson]:
    """The notebooks of a folder, in order. Raises ValueError when there are none, or one has no title."""
    found = [lesson(path) for path in sorted(folder.glob("[0-9][0-9]_*.ipynb"))]
    if not found:
        raise ValueError(f"{folder} holds no notebook named like 00_four_ranks_in_a_cell.ipynb")
    return found


def lesson(path: Path) -> Lesson:
    """Read one notebook, whose first cell starts with `# 00 · Its name`."""
    notebook = nbformat.read(path, as_version=4)
    first = notebook.cells[0].source if notebook.cells else ""
    title = re.match(r"# (\d\d) · (.+)\n+", first)
    if not title:
        raise ValueError(f"{path} does not start with a title like: # 00 · Four ranks in a cell")
    lead = first[title.end() :].split("\n\n")[0]
    return Lesson(path, notebook, title[1], title[2].strip(), lead)


def workshop(series: list[Lesson]) -> nbformat.NotebookNode:
    """The notebooks of the workshop as one, behind a title and a list of its parts."""
    chosen = [one for one in series if one.number in WORKSHOP]
    parts = "\n".join(f"- **{one.number}** {one.name}" for one in chosen)
    title = (
        "# Tensor parallelism in three hours\n\nOne model on several devices: who holds what, which bytes move, "
        "how much memory each rank needs, and how to know it before it runs."
    )
    place = {"slideshow": {"slide_type": "slide"}}
    cells = [new_markdown_cell(title, metadata=place), new_markdown_cell(f"## The parts\n\n{parts}", metadata=place)]
    cells += [cell for one in chosen for cell in one.notebook.cells]
    numbered = [{**cell, "id": f"workshop-{number}"} for number, cell in enumerate(cells)]
    return new_notebook(cells=nbformat.from_dict(numbered))
