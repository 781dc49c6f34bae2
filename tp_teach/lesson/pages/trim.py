"""The lesson's lines only: what a slide leaves out of code and of what it printed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from textwrap import dedent

from tp_teach.lesson.pages.render import plain

# A reader's own answer, which on a slide nobody has given: `print("sum: I predicted", my_sum, "and it is", total)`.
ANSWER = re.compile(r"I predicted\b.*?\band ", re.DOTALL)
MOST_LINES = 14
"""Lines of output that a slide shows."""


def lesson_lines(source: str) -> str:
    """Code without its assertions, the reader's own answers in what it prints, and double blank lines."""
    lines = source.splitlines()
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a magic
        return source
    for statement in reversed(list(_statements(tree))):
        first, last = statement.lineno - 1, statement.end_lineno
        if isinstance(statement, ast.Assert):
            del lines[first:last]
        elif "I predicted" in "\n".join(lines[first:last]):
            lines[first:last] = _without_answer("\n".join(lines[first:last])).splitlines()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Statements in order, also those in loops and conditions; not in functions, and no assertion that stands alone."""
    for name in ("body", "orelse"):
        block = getattr(tree, name, [])
        for statement in block:
            if isinstance(statement, ast.For | ast.While | ast.If | ast.With):
                yield from _statements(statement)
            elif len(block) > 1 or not isinstance(statement, ast.Assert):
                yield statement


def _without_answer(statement: str) -> str:
    shorter = ANSWER.sub("", statement)
    try:
        ast.parse(dedent(shorter))
    except SyntaxError:
        return statement
    return shorter


def drawing_lines(source: str) -> str:
    """Code that draws a figure without what only arranges its numbers.

    Kept are the last statement, the launches, and what these use; `# …` stands for what is left out.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a magic
        return source
    lines = source.splitlines()
    used, kept = set(), []
    for statement in reversed(body):
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        piece = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
        if "launch(" in piece or used & (names | {getattr(statement, "name", "")}):
            used |= names
        elif statement is not body[-1]:
            piece = "# …"
        kept += [piece] if [piece] != kept[-1:] else []
    return "\n".join(reversed(kept))


def lesson_output(text: str, checks: bool) -> str:
    """What a cell printed, without the reader's own answers, and at most `MOST_LINES` of it.

    `checks` says that the cell checks an exercise: then nothing is left, as nobody has answered it.
    """
    if checks:
        return ""
    lines = [re.sub(r"I predicted\b.*?\band ", "", line) for line in text.rstrip("\n").splitlines()]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"… and {len(lines) - MOST_LINES + 1} lines more"]
    return "\n".join(lines)


def wrapped(source: str, columns: int) -> str:
    """Code in lines of at most `columns` letters where it can be broken after a comma or at a space."""
    return "\n".join(piece for line in source.splitlines() for piece in _pieces(line, columns))


def _pieces(line: str, columns: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    pieces = []
    while len(line) > columns:
        start = len(line) - len(line.lstrip())
        spaces = [at for at in _spaces(line) if start + columns // 3 < at < columns]
        after_comma = [at for at in spaces if line[at - 1] == ","]
        if not spaces:
            break
        cut = max(after_comma or spaces) + 1
        pieces.append(line[:cut].rstrip())
        line = indent + line[cut:].lstrip()
    return [*pieces, line]


def _spaces(line: str) -> list[int]:
    """Where a line of code has spaces outside of its strings, and before its comment."""
    found, quote = [], ""
    for at, letter in enumerate(line):
        if letter == quote:
            quote = ""
        elif not quote and letter in "\"'":
            quote = letter
        elif not quote and letter == "#":
            break
        elif not quote and letter == " ":
            found.append(at)
    return found


def widest(text: str) -> int:
    """Letters in the longest line."""
    return max((len(plain(line)) for line in text.splitlines()), default=0)
