"""`python -m tp_teach.lesson.slides [--pdf]`: a deck of slides from each notebook, and one for the workshop.

Decks are made from the stored outputs; nothing is run. Each is one HTML file that loads nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import nbformat

from tp_teach.lesson.pages.export import Deck
from tp_teach.lesson.pages.series import lessons, workshop


def decks(notebooks: Path, out: Path) -> Iterator[Path]:
    """Write one deck for each notebook, and `workshop.html`; yield each when it is there.

    Raises ValueError when the folder `notebooks` holds no notebook, or one that cannot be shown.
    """
    out.mkdir(parents=True, exist_ok=True)
    series = lessons(notebooks)
    for one in series:
        yield deck(one.notebook, out / f"{one.path.stem}.html")
    yield deck(workshop(series), out / "workshop.html")


def deck(notebook: nbformat.NotebookNode, path: Path) -> Path:
    """Write the deck of one notebook. Raises ValueError for an output that cannot be shown."""
    try:
        html, _ = Deck().from_notebook_node(notebook)
    except ValueError as error:
        raise ValueError(f"{path.stem}: {error}") from error
    path.write_text(html, encoding="utf-8")
    return path


def main() -> None:
    """Make the decks, and print where they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0].partition(": ")[2])
    parser.add_argument("--notebooks", type=Path, default=Path("notebooks"), help="folder with the series")
    parser.add_argument("--out", type=Path, default=Path("build/slides"), help="where the decks go")
    parser.add_argument("--pdf", action="store_true", help="print each deck to PDF too; needs Playwright and Chromium")
    given = parser.parse_args()
    try:
        made = []
        for path in decks(given.notebooks, given.out):
            print(path, flush=True)
            made.append(path)
        if given.pdf:
            from tp_teach.lesson.pages.printing import pdfs

            for path in pdfs(made):
                print(path, flush=True)
    except (ValueError, RuntimeError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
