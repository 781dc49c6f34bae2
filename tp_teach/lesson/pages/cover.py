"""The title slide of a notebook, from its first cell."""

from __future__ import annotations

from bs4 import BeautifulSoup

from tp_teach.lesson.pages.heights import LINE, height, length, lines_of
from tp_teach.lesson.pages.slide import Slide

COVER, FACT = 968, 0.83
"""Width of what stands on a title slide, and letter size of its table in that of its text."""


def title_slide(title: str, html: str) -> Slide:
    """The notebook's name, its first paragraph and its table. What else the first cell says goes to the notes."""
    soup = BeautifulSoup(html, "html.parser")
    lead, table = soup.find("p"), soup.find("table")
    rows = [row.find_all("td") for row in table.find_all("tr")] if table else []
    facts = "".join(f"<dt>{row[0].get_text()}</dt><dd>{row[1].decode_contents()}</dd>" for row in rows if len(row) == 2)
    text = str(lead.extract()) if lead else ""
    if table:
        table.extract()
    rest = [str(soup).strip()] if str(soup).strip() else []
    after = f"<dl>{facts}</dl>" if facts else ""
    size = next((size for size in (28, 26, 24, 22, 20) if _cover_height(title, text, rows, size) <= 580), 18)
    return Slide("title", title, text=text, after=after, text_size=size, notes=rest)


def _cover_height(title: str, text: str, rows: list, size: float) -> float:
    """Pixels that a title slide needs; distances as in `templates/deck/deck.css`."""
    name = title.partition(" · ")[2] or title
    fact, most = size * FACT, max((length(row[0]) for row in rows if row), default=0)
    facts = [lines_of(row[1], (COVER - 28) / fact - most) for row in rows if len(row) == 2]
    heading = 42 + lines_of(BeautifulSoup(name, "html.parser"), COVER / 62) * 70 + 28
    return heading + height(text, size, COVER) + 58 + sum(LINE * fact * lines + 8 for lines in facts)
