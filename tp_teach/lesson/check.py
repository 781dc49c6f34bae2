"""`check`: say whether an exercise is solved, and if not, which rule the answer breaks."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tp_teach.launch import RankFailed, RanksStuck
from tp_teach.lesson import exercises


class Solved(str):
    """What an exercise returns for a right answer that has a cost: the answer's cost beside the target."""


def check(exercise: str, answer: Any) -> None:
    """Print `ok`, or `not yet` with a hint. A wrong answer raises nothing, so that a notebook runs unsolved.

    Raises ValueError for an exercise that does not exist.
    """
    known = all_exercises()
    if exercise not in known:
        raise ValueError(f"exercise={exercise!r} is not known; there are {', '.join(known)}")
    print(f"{exercise}: {verdict(exercise, answer)}")


def verdict(exercise: str, answer: Any) -> str:
    """What `check` prints after the exercise's name."""
    if answer is None or answer is ...:
        return "not yet: there is no answer so far"
    try:
        hint = all_exercises()[exercise](answer)
    except (RankFailed, RanksStuck) as error:
        hint = f"it did not run to its end. {error}"
    except (TypeError, ValueError) as error:  # an answer that cannot be launched, or that is no answer at all
        hint = str(error)
    if hint is None:
        return "ok"
    return f"ok: {hint}" if isinstance(hint, Solved) else f"not yet: {hint}"


def all_exercises() -> dict[str, Callable[[Any], str | None]]:
    """Every exercise by name: a function from an answer to a hint, or to None or `Solved` when it is right."""
    found = {}
    for module in sorted(pkgutil.iter_modules(exercises.__path__), key=lambda module: module.name):
        found |= import_module(f"{exercises.__name__}.{module.name}").EXERCISES
    return found
