"""`python -m tp_teach.lesson.site`: the series as static pages, with a map and the API reference.

Pages are made from the stored outputs; nothing is run, and nothing is loaded from a network.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbformat.v4 import new_notebook

from tp_teach.lesson.pages.export import Page, page_style
from tp_teach.lesson.pages.reference import entries
from tp_teach.lesson.pages.series import WORKSHOP, Lesson, lessons


def pages(notebooks: Path, out: Path) -> Iterator[Path]:
    """Write `index.html`, `reference.html`, one page for each notebook and `style.css`; yield each page.

    Raises ValueError when the folder `notebooks` holds no notebook, or one that cannot be shown.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "style.css").write_text(page_style(), encoding="utf-8")
    series = lessons(notebooks)
    exporter = Page()

    def write(name: str, title: str, notebook: Any = None, **resources: Any) -> Path:
        resources |= {"here": name, "title": title, "series": series}
        try:
            html, _ = exporter.from_notebook_node(notebook or new_notebook(), resources)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        (out / f"{name}.html").write_text(html, encoding="utf-8")
        return out / f"{name}.html"

    yield write("index", "Tensor parallelism", workshop=WORKSHOP)
    for number, one in enumerate(series):
        yield write(one.path.stem, f"{one.number} · {one.name}", one.notebook, around=_around(series, number))
    yield write("reference", "Reference", entries=list(entries()))


def _around(series: list[Lesson], number: int) -> list[tuple[str, Lesson]]:
    before = [("Before", series[number - 1])] if number else []
    return before + [("Next", one) for one in series[number + 1 : number + 2]]


def main() -> None:
    """Make the pages, and print where they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0].partition(": ")[2])
    parser.add_argument("--notebooks", type=Path, default=Path("notebooks"), help="folder with the series")
    parser.add_argument("--out", type=Path, default=Path("build/site"), help="where the pages go")
    given = parser.parse_args()
    try:
        for path in pages(given.notebooks, given.out):
            print(path, flush=True)
    except ValueError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
