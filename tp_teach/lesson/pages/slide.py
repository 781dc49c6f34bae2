"""`Slide`, its measures, and the ways to put text, code and outputs on one so that nothing runs over its edge."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from bs4 import BeautifulSoup

from tp_teach.lesson.pages.fonts import MONO_EM
from tp_teach.lesson.pages.heights import BOX, CODE_EM, CODE_LINE, blocks, height
from tp_teach.lesson.pages.render import Shown
from tp_teach.lesson.pages.trim import widest, wrapped

# Pixels, as in `templates/deck/deck.css`.
ROOM, TALL = 1136, 532  # of the part of a slide below its title
GAP = 28  # between two parts
AFTER_LINE = 6  # the line above the sentence at the foot, and what rounding takes
BOX_SIDES = 36  # padding left and right of a box of code or output, together

TEXT_SIZES = (32, 30, 28, 26, 24, 22, 20, 18, 16)
SIZES = ((24, 26), (22, 24), (20, 24), (20, 22), (18, 22), (18, 20), (17, 20), (16, 20), (16, 18), (15, 18))
"""Letter sizes of code and of the text beside it, from the best to the least readable."""
READABLE_CODE = 18
"""Letter size of code below which other parts go to other slides, or lines beside the lesson are left out."""


@dataclass
class Slide:
    """One slide: text above, code and its outputs below or side by side, and what they say at the foot."""

    kind: str  # title, question, text, answer, run, figure
    title: str
    section: str = ""
    text: str = ""
    code: str = ""
    shown: list[Shown] = field(default_factory=list)
    after: str = ""
    text_size: int = 24
    code_size: int = 20
    split: float | None = None
    """The part of the width that is code; None: outputs stand below it. Of a figure, 0: it stands below the code."""
    column: int = 0
    """Pixels left of a figure, for words and code; 0: the figure takes the whole width."""
    notes: list[str] = field(default_factory=list)


def text_slides(kind: str, title: str, html: str) -> Iterator[Slide]:
    """Slides of text alone: one where it fits, else as many as it takes."""
    for size in TEXT_SIZES[:-3]:
        if _text_fits(html, size):
            yield Slide(kind, title, text=html, text_size=size)
            return
    pages, size = [""], 22
    for piece in (piece for block in blocks(html) for piece in _pieces(block, size)):
        if pages[-1] and not _text_fits(pages[-1] + piece, size):
            pages.append("")
        pages[-1] += piece
    for page in pages:
        sizes = [size for size in TEXT_SIZES[-4:] if _text_fits(page, size)]
        yield Slide(kind, title, text=page, text_size=sizes[0] if sizes else TEXT_SIZES[-1])


def _text_fits(html: str, size: int) -> bool:
    lines = [pre.get_text() for pre in BeautifulSoup(html, "html.parser").find_all("pre")]
    columns = max((widest(text) for text in lines), default=0)
    return height(html, size, ROOM) <= TALL and columns * MONO_EM * CODE_EM * size + BOX_SIDES <= ROOM


def _pieces(block: str, size: int) -> list[str]:
    """A block cut so that each piece fits on a slide: a list between entries, a table between rows, code between lines.

    A single entry that is too long for a slide stays whole, in smaller letters.
    """
    if height(block, size, ROOM) <= TALL:
        return [block]
    (tag,) = BeautifulSoup(block, "html.parser").contents
    if tag.name in ("ul", "ol") and len(items := tag.find_all("li", recursive=False)) > 1:
        half = len(items) // 2
        first, second = "".join(map(str, items[:half])), "".join(map(str, items[half:]))
        start = int(tag.get("start", 1)) + half
        number = f' start="{start}"' if tag.name == "ol" else ""
        opened = str(tag)[: str(tag).index(">") + 1]
        halves = [f"{opened}{first}</{tag.name}>", f"<{tag.name}{number}>{second}</{tag.name}>"]
        return [piece for half in halves for piece in _pieces(half, size)]
    if tag.name == "table" and len(rows := tag.find_all("tr")) > 2:
        half = (len(rows) + 1) // 2
        halves = ["".join(map(str, part)) for part in (rows[:half], [rows[0], *rows[half:]])]
        return [piece for half in halves for piece in _pieces(f"<table>{half}</table>", size)]
    if pre := tag.find("pre") if tag.name == "div" else tag if tag.name == "pre" else None:
        lines, most = pre.decode_contents().split("\n"), 18
        return [f"<pre>{chr(10).join(lines[at : at + most])}</pre>" for at in range(0, len(lines), most)]
    if tag.name == "p" and len(sentences := re.split(r"(?<=[.?!]) ", tag.decode_contents())) > 1:
        half = len(sentences) // 2
        halves = [f"<p>{' '.join(part)}</p>" for part in (sentences[:half], sentences[half:])]
        return [piece for half in halves for piece in _pieces(half, size)]
    return [block]


def run_slide(title: str, text: str, code: str, shown: list[Shown], after: str) -> Slide | None:
    """Code with what it shows, in the largest letters in which all of it fits, or None if there are none.

    Lines are broken only where they would have to be small otherwise.
    """
    sizes = [
        (size, text_size, whole) for whole in (True, False) for size, text_size in SIZES if size >= 20 or not whole
    ]
    for size, text_size, whole in sizes:
        around = sum(height(part, text_size, ROOM) + GAP for part in (text, after) if part) + AFTER_LINE * bool(after)
        for split, columns in _layouts(code, shown, size):
            arranged = code if whole else wrapped(code, columns)
            parts = [box(arranged, size) if code else 0, _outputs_height(shown, size, split)]
            high = max(parts) if split else sum(parts) + GAP * all(parts)
            if high + around <= TALL and _wide_enough(arranged, shown, size, split):
                return Slide("run", title, "", text, arranged, shown, after, text_size, size, split)
    return None


def _layouts(code: str, shown: list[Shown], size: int) -> Iterator[tuple[float | None, int]]:
    """Ways to lay out, the best first: the part of the width that is code, and the letters in a line of it."""
    whole = columns_of(ROOM, size)
    if not shown or not code:
        yield None, whole
        return
    for split in (0.5, 0.42, 0.58, 0.35, 0.65):
        if widest(code) <= columns_of((ROOM - GAP) * split, size):
            yield split, whole
    yield None, whole
    if size <= 20:
        for split in (0.5, 0.55, 0.6):
            yield split, columns_of((ROOM - GAP) * split, size)


def box(source: str, size: float) -> float:
    """Height of a box of code or output."""
    return (len(source.splitlines()) * CODE_LINE + BOX) * size


def columns_of(room: float, size: float) -> int:
    """Letters in a line of a box."""
    return int((room - BOX_SIDES) / (MONO_EM * size))


def _outputs_height(shown: list[Shown], size: float, split: float | None) -> float:
    room = (ROOM - GAP) * (1 - split) if split else ROOM
    heights = [box(one.text, size) if one.kind == "text" else height(one.html, size, room) for one in shown]
    return sum(heights) + GAP * max(0, len(heights) - 1)


def _wide_enough(code: str, shown: list[Shown], size: float, split: float | None) -> bool:
    left, right = ((ROOM - GAP) * split, (ROOM - GAP) * (1 - split)) if split else (ROOM, ROOM)
    printed = max((widest(one.text) for one in shown if one.kind == "text"), default=0)
    return widest(code) <= columns_of(left, size) and printed <= columns_of(right, size)
