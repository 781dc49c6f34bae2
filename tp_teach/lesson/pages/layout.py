"""A notebook's cells as slides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from bs4 import BeautifulSoup, Tag
from nbformat import NotebookNode

from tp_teach.lesson.pages.cover import title_slide
from tp_teach.lesson.pages.figure import figure_slide
from tp_teach.lesson.pages.render import Shown, markdown, outputs, text_shown
from tp_teach.lesson.pages.slide import READABLE_CODE, ROOM, Slide, box, columns_of, run_slide, text_slides
from tp_teach.lesson.pages.trim import lesson_lines, lesson_output, wrapped

READABLE = 24
"""Letter size of text below which code does not share its slide."""
WIDEST = columns_of(ROOM, READABLE_CODE)
"""Letters in a line of what a cell printed; longer lines are broken."""
SHORT = 420
"""Letters of text that may stand above code on one slide; more get a slide of their own."""


@dataclass
class Unit:
    """Text, or code with what it shows."""

    text: str = ""
    code: str = ""
    shown: list[Shown] = field(default_factory=list)


@dataclass
class Group:
    """What the notebook puts on one slide and the ones below it: cells from one `slide` or `subslide` to the next."""

    kind: str = "text"
    title: str = ""
    section: str = ""
    units: list[Unit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def slides(notebook: NotebookNode) -> list[Slide]:
    """All slides of a notebook. Cells marked `skip` are on none, cells marked `notes` are notes of the slide before."""
    found: list[Slide] = []
    for group in _groups(notebook):
        made = list(_of_group(group))
        for slide in made:
            slide.kind = "answer" if group.kind == "answer" and slide.kind != "figure" else slide.kind
            slide.section = "" if slide.title == group.section else group.section
        if made:
            made[0].notes += group.notes
        elif found:
            found[-1].notes += group.notes
        found += made
    return found


def _groups(notebook: NotebookNode) -> Iterator[Group]:
    group = Group()
    for cell in notebook.cells:
        place = cell.metadata.get("slideshow", {}).get("slide_type", "skip")
        if place == "skip":
            continue
        if place in ("slide", "subslide"):
            yield group
            group = Group(title=group.title, section=group.section)
        if place == "notes":
            group.notes.append(markdown(cell.source))
        elif cell.cell_type == "code":
            group.units.append(_code_unit(cell))
        elif cell.cell_type == "markdown":
            _add_text(group, cell.source)
    yield group


def _code_unit(cell: NotebookNode) -> Unit:
    checks = "tp.check(" in cell.source
    shown = []
    for one in outputs(cell):
        text = wrapped(lesson_output(one.text, checks), WIDEST) if one.kind == "text" else one.text
        shown += [text_shown(text) if one.kind == "text" else one] if text else []
    return Unit(code=lesson_lines(cell.source), shown=shown)


def _add_text(group: Group, source: str) -> None:
    """Take a text cell apart: headings name the slide, a `details` is an exercise's answer."""
    soup = BeautifulSoup(markdown(source), "html.parser")
    for heading in soup.find_all(["h1", "h2", "h3"], recursive=False)[:1]:
        if heading.find_previous_sibling() is None:
            group.title = heading.extract().decode_contents()
            group.kind = {"h1": "title", "h2": "question", "h3": "text"}[heading.name]
            group.section = group.title if heading.name == "h2" else "" if heading.name == "h1" else group.section
    if answer := soup.find("details", recursive=False):
        summary = answer.find("summary").extract().get_text()
        group.kind, group.title = "answer", f"{summary}: {group.title.removeprefix(summary + ': ')}"
        group.units += _answer(answer)
        answer.extract()
    first = soup.find(True, recursive=False)
    if re.match(r"<p><strong>\d+\. ", str(first)):
        group.kind, group.title = "text", first.find("strong").extract().get_text().rstrip(".")
    _mark(soup)
    if text := str(soup).strip():
        group.units.append(Unit(text=text))


def _answer(details: Tag) -> Iterator[Unit]:
    """An exercise's answer as text and code, each as if in a cell of its own."""
    for block in details.find_all(True, recursive=False):
        code = block.get_text() if block.name == "pre" or "highlight" in block.get("class", []) else ""
        yield Unit(code=lesson_lines(code)) if code else Unit(text=str(block))


def _mark(soup: BeautifulSoup) -> None:
    """Give the question its class, and put the prediction, with all that follows it, into a box."""
    for paragraph in soup.find_all("p", recursive=False):
        start = paragraph.get_text()
        if start.startswith("Question."):
            paragraph["class"] = "question"
            paragraph.find("strong").extract()
        elif start.startswith("Predict"):
            card = soup.new_tag("div", attrs={"class": "predict"})
            rest = list(paragraph.find_next_siblings())
            paragraph.wrap(card)
            card.extend(rest)
            break


def _of_group(group: Group) -> Iterator[Slide]:
    units = list(group.units)
    if group.kind == "title":
        yield title_slide(group.title, "".join(unit.text for unit in group.units))
        return
    text = "".join(unit.text for unit in _take(units, lambda unit: not unit.code))
    # What is to be predicted must not stand beside the figure that tells it; printed output waits for a key.
    tells = 'class="predict"' in text and any(one.kind == "figure" for unit in units for one in unit.shown)
    alone = tells or (group.kind == "question" and 'class="' in text)
    if text and (alone or not units or len(BeautifulSoup(text, "html.parser").get_text()) > SHORT):
        *before, last = text_slides(group.kind, group.title, text)
        yield from before
        yield _with_bare_code(last, units)
        text = ""
    while units:
        code = _take(units, lambda unit: bool(unit.code) and not unit.shown)
        code += [units.pop(0)] if units and units[0].code else []
        after = "".join(unit.text for unit in _take(units, lambda unit: not unit.code))
        yield from _run(group.title, text, code, after)
        text = ""


def _with_bare_code(slide: Slide, units: list[Unit]) -> Slide:
    """Code that shows nothing, and on which nothing is said, stands below the text before it if there is room."""
    code = [unit for unit in units if unit.code and not unit.shown]
    fits = run_slide(slide.title, slide.text, _joined(code), [], "") if code and len(code) == len(units) else None
    if fits and fits.text_size >= READABLE:
        units.clear()
        fits.kind = slide.kind
        return fits
    return slide


def _joined(cells: list[Unit]) -> str:
    return "\n\n".join(cell.code for cell in cells if cell.code)


def _take(units: list[Unit], wanted) -> list[Unit]:
    """Remove and return the first units that are wanted."""
    taken = []
    while units and wanted(units[0]):
        taken.append(units.pop(0))
    return taken


def _run(title: str, text: str, cells: list[Unit], after: str) -> Iterator[Slide]:
    """Code cells, of which the last may show something, on as few slides as they fit on."""
    shown = cells[-1].shown
    code = _joined(cells)
    slide = _together(title, text, code, shown, after)
    bare = len(cells) == 1 and not text and not shown
    if slide and (slide.code_size >= READABLE_CODE or not code or bare):
        yield slide
    elif text:
        yield from text_slides("text", title, text)
        yield from _run(title, "", cells, after)
    elif len(cells) > 1:
        yield from _run(title, "", cells[:1], "")
        yield from _run(title, "", cells[1:], after)
    elif shown and code:
        # What is said stands with what is shown, of which it mostly speaks.
        printed = [one for one in shown if one.kind == "text"] if len(shown) > 1 else []
        yield from _run(title, "", [Unit(code=code, shown=printed)], "")
        rest = [one for one in shown if one not in printed]
        for number, one in enumerate(rest, start=1):
            yield from _run(title, "", [Unit(shown=[one])], after if number == len(rest) else "")
    elif after and (slide := _together(title, "", code, shown, "")):
        yield slide
        yield from text_slides("text", title, after)
    else:
        yield from _cut(title, code, shown, after)


def _together(title: str, text: str, code: str, shown: list[Shown], after: str) -> Slide | None:
    """All of it on one slide, or None."""
    if [one.kind for one in shown] == ["figure"]:
        return figure_slide(title, text, code, shown[0], after)
    return None if any(one.kind == "figure" for one in shown) else run_slide(title, text, code, shown, after)


def _cut(title: str, code: str, shown: list[Shown], after: str) -> Iterator[Slide]:
    """Code or one output that fits on no slide whole: in pieces, in the smallest letters."""
    source, size = code or shown[0].text, 16
    lines = wrapped(source, columns_of(ROOM, size)).splitlines()
    lines = [line[at : at + 110] for line in lines for at in range(0, max(1, len(line)), 110)]
    while lines:
        most = next(count for count in range(22, 0, -1) if box("x\n" * count, size) <= 500)
        piece, lines = "\n".join(lines[:most]), lines[most:]
        yield Slide("run", title, code=piece if code else "", shown=[] if code else [text_shown(piece)], code_size=size)
    if after:
        yield from text_slides("text", title, after)
