"""How high a text will be on a slide, so that slides are cut before a browser sees them.

The factors are those of `templates/deck/deck.css`; a test in a browser compares.
"""

from __future__ import annotations

from bs4 import BeautifulSoup, NavigableString, Tag

from tp_teach.lesson.pages.fonts import MONO_EM, width

LINE = 1.4  # line height of text, in letter sizes
CODE_LINE = 1.35  # line height of code, in its own letter sizes
CODE_EM = 0.9  # letter size of code within text
GAP = 0.6  # between two blocks, in letter sizes
QUESTION = 1.2  # letter size of a section's question, in that of the text around
BOX = 1.1  # padding above and below in a box of code, in its own letter sizes
INDENT = 1.5  # of a list
CELL = 0.45  # padding above and below in a table's cell, together
CELL_SIDES = 1.0  # padding left and right in a table's cell, together


def blocks(html: str) -> list[str]:
    """The top-level elements of a text."""
    return [str(tag) for tag in BeautifulSoup(html, "html.parser").children if str(tag).strip()]


def height(html: str, size: float, room: float) -> float:
    """Pixels that a text needs in letters of `size` pixels, `room` pixels wide."""
    parts = [_block(tag, size, room) for tag in BeautifulSoup(html, "html.parser").children if str(tag).strip()]
    return sum(parts) + GAP * size * max(0, len(parts) - 1)


def _block(tag: Tag | NavigableString, size: float, room: float) -> float:
    name = tag.name if isinstance(tag, Tag) else ""
    if name and "question" in tag.get("class", []):
        size *= QUESTION
    if name in ("ul", "ol"):
        items = [_item(item, size, room - INDENT * size) for item in tag.find_all("li", recursive=False)]
        return sum(items) + 0.3 * size * len(items)
    if name == "pre" or (name == "div" and tag.find("pre")):
        lines = tag.get_text().rstrip("\n").splitlines()
        return (len(lines) * CODE_LINE + BOX) * size * CODE_EM
    if name == "table":
        return _table(tag, size, room)
    if name in ("div", "blockquote", "details"):
        return height(tag.decode_contents(), size, room - 2 * size) + 1.6 * size
    if name == "p" and (formula := tag.find("math", display="block")):
        rows = 1 + len(formula.find_all("mtr"))
        return LINE * size * lines_of(tag, room / size) + 2.2 * size * rows
    fraction = 0.5 if isinstance(tag, Tag) and tag.find("mfrac") else 0
    return (LINE * lines_of(tag, room / size) + fraction) * size


def _item(item: Tag, size: float, room: float) -> float:
    inner = [child for child in item.children if str(child).strip()]
    split = [child for child in inner if isinstance(child, Tag) and child.name in ("p", "ul", "ol", "pre", "div")]
    text = [child for child in inner if child not in split]
    first = LINE * size * lines_of(text, room / size) if text else 0
    return first + sum(_block(child, size, room) for child in split)


def _table(table: Tag, size: float, room: float) -> float:
    rows = [row.find_all(["td", "th"]) for row in table.find_all("tr")]
    natural: dict[int, float] = {}
    for row in rows:
        for column, cell in enumerate(row):
            natural[column] = max(natural.get(column, 1), length(cell) + CELL_SIDES)
    shrink = min(1, room / size / sum(natural.values()))
    # A browser gives narrow columns all they need; so only the wide ones are made narrower here.
    spare = room / size - sum(one for one in natural.values() if one < room / size / len(natural))
    wide = sum(one for one in natural.values() if one >= room / size / len(natural))
    ems = {
        column: one if shrink == 1 or one < room / size / len(natural) else one * spare / wide
        for column, one in natural.items()
    }
    total = 0.0
    for row in rows:
        high = max((lines_of(cell, ems[column] - CELL_SIDES) for column, cell in enumerate(row)), default=0)
        total += LINE * high + CELL if high else 0
    return total * size + len(rows) + 1  # a line of a pixel below each row, two below the first


def lines_of(content: Tag | NavigableString | list, ems: float) -> int:
    """Lines that a run of text takes, `ems` letter sizes wide."""
    lines, used = 1, 0.0
    for word in _words(content):
        if used and used + word > ems:
            lines, used = lines + 1, 0.0
        used += word + width(" ")
    return lines if used else 0


def length(content: Tag | NavigableString) -> float:
    """Width of a text on one line, in letter sizes."""
    return sum(word + width(" ") for word in _words(content))


def _words(content: Tag | NavigableString | list) -> list[float]:
    """Widths of the words. Pieces of a word in different letters count as one."""
    words, open_word = [], False
    for text, bold, mono in _runs(content, False, False):
        for number, word in enumerate(text.replace("\n", " ").split(" ")):
            wide = len(word) * MONO_EM * CODE_EM + 0.3 if mono else width(word, bold)
            if number == 0 and open_word and words:
                words[-1] += wide if word else 0
            elif word:
                words.append(wide)
        open_word = not text.endswith((" ", "\n"))
    return words


def _runs(content: Tag | NavigableString | list, bold: bool, mono: bool) -> list[tuple[str, bool, bool]]:
    if isinstance(content, NavigableString):
        return [(str(content), bold, mono)]
    if isinstance(content, Tag):
        if content.name == "math":
            return [] if content.get("display") == "block" else [(content.get_text(), True, mono)]
        if content.name == "br":
            return [(" ", bold, mono)]
        bold, mono = bold or content.name in ("strong", "b", "th"), mono or content.name == "code"
    return [run for child in content for run in _runs(child, bold, mono)]
