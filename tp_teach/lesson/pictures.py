"""`python -m tp_teach.lesson.pictures`: the pictures of the two READMEs.

They are stored outputs of notebooks, and a slide of the workshop, which needs Playwright and Chromium.
"""

from __future__ import annotations

import argparse
import tempfile
from base64 import b64decode
from pathlib import Path

from tp_teach.lesson.pages.layout import slides
from tp_teach.lesson.pages.printing import opened
from tp_teach.lesson.pages.series import Lesson, lessons, workshop
from tp_teach.lesson.slides import deck

STORED = {
    "shards": ("00", "Shard map, 4 ranks, measured."),
    "memory": ("00", "Memory by kind over one training step, 4 ranks, measured beside predicted."),
    "ring": ("01", "Ring all_reduce with 4 ranks in 6 steps"),
    "parity": ("06", "Difference between the loss of 4 runs and the reference"),
}
"""Notebook of each stored picture, and how its alt text begins."""
SLIDE = "Row parallel"
"""Title of the slide that is shown."""


def stored(series: list[Lesson], name: str) -> bytes:
    """A picture as it is stored in its notebook. Raises ValueError when no output begins with its alt text."""
    number, alt = STORED[name]
    for cell in (cell for one in series if one.number == number for cell in one.notebook.cells):
        for data in (output.get("data", {}) for output in cell.get("outputs", [])):
            if "image/png" in data and data.get("text/plain", "").startswith(alt):
                return b64decode(data["image/png"])
    raise ValueError(f"notebook {number} has no picture whose alt text begins with {alt!r}, for {name}.png")


def slide(series: list[Lesson]) -> bytes:
    """The first slide named `SLIDE` that has a figure, in the workshop's deck. Raises ValueError when there is none."""
    whole = workshop(series)
    places = [at for at, one in enumerate(slides(whole)) if one.title == SLIDE and one.kind == "figure"]
    if not places:
        raise ValueError(f"the workshop has no slide named {SLIDE!r} with a figure")
    with tempfile.TemporaryDirectory() as folder:
        path = deck(whole, Path(folder) / "workshop.html")
        with opened() as page:
            page.goto(f"{path.as_uri()}#/{places[0]}")
            page.wait_for_function("Reveal.isReady()")
            page.evaluate("document.querySelectorAll('.fragment').forEach(part => part.classList.add('visible'))")
            page.evaluate("document.fonts.ready.then(() => Promise.all([...document.images].map(i => i.decode())))")
            return page.screenshot()


def main() -> None:
    """Write the pictures, and print where they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0].partition(": ")[2])
    parser.add_argument("--notebooks", type=Path, default=Path("notebooks"), help="folder with the series")
    folder = parser.parse_args().notebooks
    try:
        series = lessons(folder)
        made = {name: stored(series, name) for name in STORED}
        made["slide"] = slide(series)
    except (ValueError, RuntimeError) as error:
        parser.exit(1, f"{error}\n")
    for name, data in made.items():
        path = folder / "pictures" / f"{name}.png"
        path.write_bytes(data)
        print(path)


if __name__ == "__main__":
    main()
