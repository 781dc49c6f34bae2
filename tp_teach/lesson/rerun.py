"""`python -m tp_teach.lesson.rerun NOTEBOOK …`: run notebooks and store their outputs, in one canonical form.

Running a notebook again changes only what its cells print or draw: times, widget state, the machine's language
version and the front end's own metadata are left out of the file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

CELL_TIMEOUT = 120
"""Seconds that one cell may take."""

WIDGET = "application/vnd.jupyter.widget-view+json"


def rerun(path: Path) -> None:
    """Run a notebook in a new kernel, in its own folder, and replace the file when every cell has run.

    Raises CellExecutionError when a cell raises, and leaves the file as it was.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    with client.setup_kernel():
        for number, cell in enumerate(notebook.cells):
            # As nbval runs them: without history, so that messages name cells alike.
            client.execute_cell(cell, number, store_history=False)
    write(notebook, path)


def write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write in canonical form, all at once."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(nbformat.writes(canonical(notebook), version=4) + "\n")
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def canonical(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with cells numbered from 1, and without what changes from machine to machine."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    count = 0
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        cell.metadata = {key: cell.metadata[key] for key in ("slideshow", "tags") if cell.metadata.get(key)}
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            for output in cell.outputs:
                # A widget lives in its kernel; its picture stays. Without the widget's state, the key shows an error.
                output.get("data", {}).pop(WIDGET, None)
                if output.output_type == "execute_result":
                    output.execution_count = count
    return notebook


def main(arguments: list[str]) -> int:
    """Run each notebook named, in order."""
    for argument in arguments:
        print(argument, flush=True)
        rerun(Path(argument))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
