"""The API reference: every public name of the package, from its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tp_teach as tp
from tp_teach.lesson.pages.render import code, markdown


@dataclass(frozen=True)
class Entry:
    """One name as the reference shows it. `level` is 2 for a public name, 3 for what belongs to one."""

    name: str
    level: int
    signature: str
    text: str
    """Both are HTML."""


def entries() -> Iterator[Entry]:
    """Each name of `tp_teach.__all__`; of a module its functions, of a class its public methods."""
    for name in sorted(tp.__all__, key=str.lower):
        thing = getattr(tp, name)
        yield _entry(f"tp.{name}", 2, thing)
        for member in _members(thing):
            owner = name if inspect.isclass(thing) else f"tp.{name}"
            yield _entry(f"{owner}.{member}", 3, getattr(thing, member))


def _members(thing: Any) -> list[str]:
    if isinstance(thing, ModuleType):
        functions = [
            name
            for name, one in inspect.getmembers(thing, inspect.isfunction)
            if not name.startswith("_") and one.__module__ == thing.__name__
        ]
        return list(getattr(thing, "__all__", functions))
    if not inspect.isclass(thing):
        return []
    return [name for name, one in vars(thing).items() if not name.startswith("_") and _is_documented(one)]


def _is_documented(one: Any) -> bool:
    kinds = (property, classmethod, staticmethod)
    return (inspect.isfunction(one) or isinstance(one, kinds)) and bool(inspect.getdoc(one))


def _entry(name: str, level: int, thing: Any) -> Entry:
    return Entry(name, level, code(_signature(name, thing)), markdown(inspect.getdoc(thing) or ""))


def _signature(name: str, thing: Any) -> str:
    """How it is called, without the quotes of annotations; over several lines where one would be long."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    if inspect.isclass(thing):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
        if issubclass(thing, BaseException):
            return name
    parts = [_parameter(parameter) for parameter in signature.parameters.values()]
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = signature.return_annotation
    arrow = "" if result is inspect.Signature.empty else f" -> {_word(result)}"
    line = f"{name}({', '.join(parts)}){arrow}"
    return line if len(line) <= 88 else f"{name}(\n    " + ",\n    ".join(parts) + f",\n){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    typed = "" if parameter.annotation is inspect.Parameter.empty else f": {_word(parameter.annotation)}"
    if parameter.default is inspect.Parameter.empty:
        return f"{stars}{parameter.name}{typed}"
    return f"{parameter.name}{typed} = {parameter.default!r}"


def _word(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
