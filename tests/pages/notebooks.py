"""Notebooks made for the tests, with what is hard to put on a slide or a page."""

import base64
import io
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image


def place(kind: str) -> dict:
    return {"slideshow": {"slide_type": kind}}


def text(source: str, kind: str = "slide") -> nbformat.NotebookNode:
    return new_markdown_cell(source, metadata=place(kind))


def code(source: str, *outputs: nbformat.NotebookNode, kind: str = "fragment") -> nbformat.NotebookNode:
    return new_code_cell(source, outputs=list(outputs), metadata=place(kind))


def printed(words: str) -> nbformat.NotebookNode:
    return new_output("stream", name="stdout", text=words)


def picture(width: int, height: int, alt: str = "a grey picture") -> nbformat.NotebookNode:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "#888888").save(buffer, "PNG")
    data = {"image/png": base64.b64encode(buffer.getvalue()).decode(), "text/plain": alt}
    about = {"image/png": {"alt": alt, "width": width, "height": height}} if alt else {}
    return new_output("display_data", data=data, metadata=about)


TITLE = text("# 07 · A title\n\nWhat is it about?\n\n| | |\n|---|---|\n| **Takes** | a minute |\n\nFor the speaker.")
WORDS = "Every rank holds its own part of the matrix and adds what the others bring, without a word being said. "
LINES = "".join(
    f"result_{n} = tp.launch(function_number_{n}, argument, world_size=4, check=False)\n" for n in range(40)
)


def hard() -> nbformat.NotebookNode:
    """What would run over the edge of a slide, if slides were not cut."""
    rows = "\n".join(f"| row {n} | {WORDS[:60]} | {n} |" for n in range(25))
    items = "\n".join(f"{n}. {WORDS}" for n in range(1, 15))
    wide = "print(" + ", ".join(f"first_argument_{n}" for n in range(12)) + ")"
    table = "<table><tr><th>a</th><th>b</th></tr>" + "<tr><td>1</td><td>2</td></tr>" * 5 + "</table>"
    cells = [
        text("# 08 · " + "A very long title of a notebook that takes three lines " * 2 + "\n\n" + WORDS * 3),
        text(
            "## Text that is long\n\n**Question.** Where?\n\n" + (WORDS * 9 + "\n\n") * 2 + "**Predict.** " + WORDS * 3
        ),
        text("## One paragraph\n\n" + WORDS * 30),
        text("## A list\n\n" + items),
        text("## A table\n\n| a | b | c |\n|---|---|---|\n" + rows),
        text("## Code in text\n\n```text\n" + "├── x ──► y\n" * 30 + "```"),
        text("## Long code"),
        code(LINES, printed("a line of output\n" * 50)),
        text("## Wide code"),
        code(wide, printed("0123456789 " * 14 + "\n"), picture(1000, 600), picture(1000, 1300), picture(3000, 500)),
        text(WORDS * 8, "fragment"),
        text("## A figure with much said about it"),
        code("\n".join([wide] * 3), picture(1000, 700)),
        text(WORDS * 10, "fragment"),
        text("## A table that a cell shows"),
        code("frame", new_output("execute_result", data={"text/html": table, "text/plain": "a b"}, execution_count=1)),
        text("## An error"),
        code("1 / 0", new_output("error", ename="E", evalue="e", traceback=["\x1b[31mE\x1b[0m: " + "long " * 60] * 3)),
        mathematics(),
    ]
    return new_notebook(cells=cells)


def mathematics() -> nbformat.NotebookNode:
    return text(
        "## Mathematics\n\nA ring sends $\\frac{2(n-1)}{n} \\cdot P$ bytes, at $5 a GiB:\n\n"
        "$$\\sum_{r=0}^{n-1} \\mathbf{x}_r W_r = \\begin{bmatrix} a & b \\\\ c & d \\end{bmatrix} \\geq \\sqrt{2}$$"
    )


def series(folder: Path, *notebooks: nbformat.NotebookNode) -> Path:
    """A folder of notebooks, named by the number in their title."""
    for notebook in notebooks:
        number = notebook.cells[0].source[2:4]
        nbformat.write(notebook, folder / f"{number}_a_name.ipynb")
    return folder
