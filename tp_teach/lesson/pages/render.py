"""One cell's source or output as HTML, the same for decks and pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import Any

from latex2mathml.converter import convert
from nbconvert.filters import ansi2html, strip_ansi
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

IMAGES = ("image/png", "image/jpeg")


def markdown(source: str) -> str:
    """HTML of a text cell. Mathematics becomes MathML, which browsers show without a script.

    Raises ValueError for a TeX command that is not known.
    """
    return MarkdownWithMath(renderer=_Renderer(escape=False, exclude_anchor_links=True)).render(source)


def code(source: str) -> str:
    """HTML of Python code, with classes for colours."""
    return highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).rstrip("\n")


@dataclass(frozen=True)
class Shown:
    """One output of a cell. `kind` is `text`, `figure` or `table`; `text` is what it says in words."""

    kind: str
    html: str
    text: str


def outputs(cell: NotebookNode) -> list[Shown]:
    """What a code cell shows. Neighbouring texts are one, and what shows nothing is left out.

    A widget is shown as the figure that is stored beside it. Raises ValueError for an output of another kind, and for a
    figure without alt text.
    """
    found: list[Shown] = []
    for output in cell.get("outputs", []):
        shown = _shown(output)
        if shown.kind == "text" and found and found[-1].kind == "text":
            shown = text_shown(found.pop().text + shown.text)
        if shown.html.strip():
            found.append(shown)
    return found


def text_shown(text: str) -> Shown:
    """Printed text, with the colours that it has in a terminal."""
    return Shown("text", ansi2html(text.rstrip("\n")), text)


def plain(text: str) -> str:
    """Printed text without its colours."""
    return strip_ansi(text)


def _shown(output: NotebookNode) -> Shown:
    if output.output_type == "stream":
        return text_shown(output.text)
    if output.output_type == "error":
        return text_shown("\n".join(output.traceback) + "\n")
    data = output.data
    for kind in IMAGES:
        if kind in data:
            return _figure(data[kind], kind, output.metadata.get(kind, {}))
    if "image/svg+xml" in data:
        return _figure(None, "image/svg+xml", output.metadata.get("image/svg+xml", {}), data["image/svg+xml"])
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL)
        return Shown("table", html, data.get("text/plain", ""))
    if "text/markdown" in data:
        return Shown("table", markdown(data["text/markdown"]), data["text/markdown"])
    if "text/plain" in data:
        return text_shown(data["text/plain"] + "\n")
    raise ValueError(f"an output of {', '.join(data)} cannot be shown; store a picture or a text beside it")


def _figure(base64: str | None, kind: str, about: dict[str, Any], svg: str = "") -> Shown:
    alt = about.get("alt", "")
    if not alt:
        raise ValueError("a figure has no alt text; say in words what it shows, in the output's metadata")
    if base64 is None:
        return Shown("figure", f'<div role="img" aria-label="{escape(alt)}">{svg}</div>', alt)
    size = "".join(f' {name}="{about[name]}"' for name in ("width", "height") if name in about)
    data = base64.replace("\n", "")
    return Shown("figure", f'<img alt="{escape(alt)}"{size} src="data:{kind};base64,{data}">', alt)


class _Renderer(IPythonRenderer):
    def link(self, text: str, url: str, title: str | None = None) -> str:
        return super().link(text, re.sub(r"^([\w.-]+)\.ipynb(?=#|$)", r"\1.html", url), title)

    def inline_math(self, body: str) -> str:
        return _mathml(body, "inline")

    def block_math(self, body: str) -> str:
        return _mathml(body, "block")

    def latex_environment(self, name: str, body: str) -> str:
        return _mathml(rf"\begin{{{name}}}{body}\end{{{name}}}", "block")


def _mathml(tex: str, display: str) -> str:
    html = convert(tex.strip(), display=display)
    if unknown := re.search(r"\\[A-Za-z]+", html):
        raise ValueError(f"the formula {tex.strip()} uses {unknown.group()}, which is not known here")
    return html
