"""`sentence`: a picture that says why there is no figure."""

from __future__ import annotations

from tp_teach.plot.page import Page
from tp_teach.plot.picture import Picture, neutral
from tp_teach.plot.style import LABEL, MARGIN, WIDTH
from tp_teach.plot.words import wrap_words


@neutral()
def sentence(words: str) -> Picture:
    """`words` in a frame. The alt text is `words`."""
    page = Page()
    lines = wrap_words(words, WIDTH - 4 * MARGIN, LABEL)
    height = page.lines(2 * MARGIN, 2 * MARGIN, lines, LABEL) + 2 * MARGIN
    page.box(MARGIN, MARGIN, WIDTH - 2 * MARGIN, height - 2 * MARGIN, fill=False, edgecolor="#BB5566", linewidth=2)
    return page.picture(height, words)
