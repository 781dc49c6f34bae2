"""Ways to put one figure on a slide, with the code that drew it and the sentence that reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from tp_teach.lesson.pages.heights import height
from tp_teach.lesson.pages.render import Shown
from tp_teach.lesson.pages.slide import AFTER_LINE, GAP, READABLE_CODE, ROOM, SIZES, TALL, Slide, box, columns_of
from tp_teach.lesson.pages.trim import drawing_lines, widest, wrapped

NARROW, WIDE = 330, 540  # the column left of a figure: at least, and at most
FIGURE = 380  # the least height for a figure below code


def figure_slide(title: str, text: str, code: str, shown: Shown, after: str) -> Slide | None:
    """The figure as large as it can be, or None where code and words leave no room for it.

    Where the code cannot be read beside it, lines that only arrange the figure's numbers are left out; then the notes
    have the code as a whole.
    """
    width, tall = _size(shown.html)
    for lines in dict.fromkeys((code, drawing_lines(code))):
        for lay_out in (_across, _beside, _below_code):
            if slide := lay_out(text, lines, after, tall / width):
                slide.title, slide.shown = title, [shown]
                slide.notes = [] if lines == code else [f"<pre>{escape(code)}</pre>"]
                return slide
    return None


def _size(html: str) -> tuple[int, int]:
    found = re.search(r'width="(\d+)" height="(\d+)"', html)
    return (int(found[1]), int(found[2])) if found else (1000, 600)


def _across(text: str, code: str, after: str, ratio: float) -> Slide | None:
    """A flat figure, which is `ratio` times as high as wide, over the whole width."""
    for size, text_size, arranged in _arranged(code, ROOM):
        high = [height(part, text_size, ROOM) for part in (text, after) if part]
        high += [box(arranged, size)] if code else []
        if ROOM * ratio + sum(high) + GAP * len(high) + AFTER_LINE * bool(after) <= TALL:
            return Slide("figure", "", "", text, arranged, [], after, text_size, size)
    return None


def _beside(text: str, code: str, after: str, ratio: float) -> Slide | None:
    """The figure at the right; words and code in a column at the left, which takes what a high figure leaves."""
    column = _column(TALL, ratio)
    for size, text_size, arranged in _arranged(code, column):
        high = [height(part, text_size, column) for part in (text, after) if part]
        high += [box(arranged, size)] if code else []
        if sum(high) + GAP * max(0, len(high) - 1) <= TALL:
            return Slide("figure", "", "", text, arranged, [], after, text_size, size, None, column * bool(high))
    return None


def _below_code(text: str, code: str, after: str, ratio: float) -> Slide | None:
    """For code too wide, or words too many, for one column: code over the whole width, the rest below it."""
    for size, text_size, arranged in _arranged(code, ROOM):
        left = TALL - (box(arranged, size) + GAP if code else 0)
        column = _column(left, ratio)
        high = [height(part, text_size, column) for part in (text, after) if part]
        if sum(high) + GAP * max(0, len(high) - 1) <= left and (left >= FIGURE or not code):
            return Slide("figure", "", "", text, arranged, [], after, text_size, size, 0, column * bool(high))
    return None


def _column(tall: float, ratio: float) -> int:
    return round(min(WIDE, max(NARROW, ROOM - GAP - tall / ratio)))


def _arranged(code: str, room: float) -> Iterator[tuple[int, int, str]]:
    """Letter sizes of code and text, and the code in lines that fit; code beside a figure is readable or not there."""
    for size, text_size in SIZES[2:]:
        lines = wrapped(code, columns_of(room, size))
        if not code or (size >= READABLE_CODE and widest(lines) <= columns_of(room, size)):
            yield size, text_size, lines
