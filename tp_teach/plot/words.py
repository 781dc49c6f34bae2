"""Names, ranks and bytes in words, for labels and for alt text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from tp_teach.plot.style import in_binary


def spans(numbers: Iterable[int]) -> str:
    """Whole numbers as runs: `0–3`, `0, 2–3`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 0–3`."""
    return f"rank{'s' if len(set(ranks)) > 1 else ''} {spans(ranks)}"


def exact(count: int) -> str:
    """Bytes for alt text: the whole number, and the binary unit where it says more."""
    return f"{count:,} bytes" + (f" ({in_binary(count)})" if count >= 1024 else "")


def counted(count: int, noun: str) -> str:
    """`1 call`, `4 calls`, `2 copies`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("py") else f"{count} {noun}s"


def listed(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def fold_numbers(names: Iterable[str]) -> dict[str, list[str]]:
    """Dotted names that differ only in their numbers, under one label: `layers.0–3.fc1.weight`."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in dict.fromkeys(names):
        pattern = tuple("*" if part.isdigit() else part for part in name.split("."))
        alike.setdefault(pattern, []).append(name)
    return {_label(pattern, group): group for pattern, group in alike.items()}


def _label(pattern: tuple[str, ...], names: list[str]) -> str:
    split = [name.split(".") for name in names]
    values = [sorted({int(parts[i]) for parts in split}) if part == "*" else [] for i, part in enumerate(pattern)]
    every = 1
    for numbers in values:
        every *= len(numbers) or 1
    if every != len(names):  # not a full grid of numbers: a span would name some that are not there
        return ".".join(pattern)
    return ".".join(spans(numbers) if numbers else part for part, numbers in zip(pattern, values, strict=True))


def fold_siblings(labels: Iterable[str]) -> dict[str, list[str]]:
    """Labels that differ in one of their last two parts, under one: `final_ln.{weight, bias}`."""
    groups = {label: [label] for label in labels}
    for back in (1, 2):
        alike: dict[tuple[str, ...], list[str]] = {}
        for label in groups:
            parts = label.split(".")
            at = len(parts) - back
            rest = [*parts[:at], "\0", *parts[at + 1 :]] if at > 0 else parts
            alike.setdefault(tuple(rest), []).append(label)
        groups = {
            _braces(rest, same): [label for part in same for label in groups[part]] for rest, same in alike.items()
        }
    return groups


def _braces(rest: tuple[str, ...], labels: list[str]) -> str:
    if len(labels) == 1:
        return labels[0]
    at = rest.index("\0")
    return ".".join([*rest[:at], "{" + ", ".join(label.split(".")[at] for label in labels) + "}", *rest[at + 1 :]])


def width_of(text: str, size: float, weight: str = "normal") -> float:
    """The width of one line of text, in inches; `size` in points."""
    return text_to_path.get_text_width_height_descent(text, FontProperties(size=size, weight=weight), False)[0] / 72


def wrap(pieces: Sequence[str], width: float, size: float, weight: str = "normal", joint: str = "") -> list[str]:
    """Set pieces, joined by `joint`, in lines at most `width` inches wide. A piece is never broken."""
    lines: list[str] = []
    for piece in pieces:
        longer = lines[-1] + joint + piece if lines else piece
        if lines and width_of(longer.rstrip(), size, weight) <= width:
            lines[-1] = longer
        else:
            lines.append(piece.lstrip() if lines else piece)
    return [line.rstrip() for line in lines]


def wrap_words(text: str, width: float, size: float, weight: str = "normal") -> list[str]:
    """Break a sentence at its spaces into lines at most `width` inches wide."""
    return wrap(text.split(" "), width, size, weight, joint=" ")


def wrap_name(name: str, width: float, size: float, weight: str = "normal") -> list[str]:
    """Break a dotted name after its dots, and inside braces at spaces."""
    pieces = name.replace(".", ".\0").replace(" ", " \0").split("\0")
    return wrap(pieces, width, size, weight)
