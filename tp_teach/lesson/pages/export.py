"""nbconvert exporters with templates of this package: `Deck` makes slides, `Page` a page of a notebook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from nbconvert.exporters import TemplateExporter
from nbformat import NotebookNode
from traitlets import default

from tp_teach.lesson.pages import fonts, render
from tp_teach.lesson.pages.layout import slides

TEMPLATES = Path(__file__).parent / "templates"


class _Exporter(TemplateExporter):
    """What decks and pages share: one HTML file, and nothing that is loaded."""

    export_from_notebook = None  # offered by its full name only, not in JupyterLab's menu
    output_mimetype = "text/html"

    @default("file_extension")
    def _html(self) -> str:
        return ".html"

    @default("template_file")
    def _index(self) -> str:
        return "index.html.j2"

    @default("extra_template_basedirs")
    def _own_templates(self) -> list[str]:
        return [str(TEMPLATES)]

    def _create_environment(self) -> Any:
        environment = super()._create_environment()
        environment.globals |= {"asset": asset, "part": part}
        environment.filters |= {"python_html": render.code, "page_text": render.markdown}
        return environment


class Deck(_Exporter):
    """A notebook as one file of slides. Nothing is run: outputs are those that are stored."""

    @default("template_name")
    def _deck(self) -> str:
        return "deck"

    def from_notebook_node(
        self, nb: NotebookNode, resources: dict | None = None, **kwargs: Any
    ) -> tuple[str, dict[str, Any]]:
        """The deck as text, and what nbconvert keeps beside it."""
        made = slides(nb)
        title = made[0].title if made else "Slides"
        formulas = "<math" in "".join(slide.title + slide.text + slide.after for slide in made)
        letters = fonts.css(mathematics=formulas)
        resources = {**(resources or {}), "slides": made, "title": title, "fonts": letters}
        return super().from_notebook_node(nb, resources, **kwargs)


class Page(_Exporter):
    """A notebook as a page of the site, beside `style.css`. Nothing is run: outputs are those that are stored."""

    @default("template_name")
    def _page(self) -> str:
        return "page"

    def from_notebook_node(
        self, nb: NotebookNode, resources: dict | None = None, **kwargs: Any
    ) -> tuple[str, dict[str, Any]]:
        """The page as text, and what nbconvert keeps beside it."""
        resources = {"series": [], "around": [], **(resources or {}), "cells": [page_cell(cell) for cell in nb.cells]}
        return super().from_notebook_node(nb, resources, **kwargs)


def page_cell(cell: NotebookNode) -> dict[str, Any]:
    """One cell as the page's template takes it. Headings can be linked to."""
    if cell.cell_type == "code":
        return {"code": cell.source, "shown": render.outputs(cell)}
    html = render.markdown(cell.source) if cell.cell_type == "markdown" else ""
    return {"text": re.sub(r"<h([23])>(.*?)</h\1>", _linked, html)}


def _linked(heading: re.Match) -> str:
    level, text = heading.groups()
    anchor = re.sub(r"[^\w]+", "-", re.sub(r"<[^>]+>|&\w+;", "", text).lower()).strip("-")
    return f'<h{level} id="{anchor}">{text}</h{level}>'


def page_style() -> str:
    """The one style sheet of the site, letters included."""
    return "\n".join([fonts.css(mathematics=True), part("colours.css"), part("page/page.css")])


def asset(name: str) -> str:
    """A file of `assets/` as it stands within a page."""
    lines = (fonts.ASSETS / name).read_text(encoding="utf-8").splitlines()
    # A browser would end the script at the first </script>, also within a string.
    return "\n".join(line for line in lines if "sourceMappingURL" not in line).replace("</script", "<\\/script")


def part(name: str) -> str:
    """A style sheet of `templates/`."""
    return (TEMPLATES / name).read_text(encoding="utf-8")
