"""`check`: say whether an exercise is solved, and if not, which rule the answer breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tp_teach.launch import RankFailed, RanksStuck
from tp_teach.lesson.exercises import four_ranks

EXERCISES: dict[str, Callable[[Any], str | None]] = {
    "own-row": four_ranks.own_row,
    "who-waits": four_ranks.who_waits,
}


def check(exercise: str, answer: Any) -> None:
    """Print `ok`, or `not yet` with a hint. A wrong answer raises nothing, so that a notebook runs unsolved.

    Raises ValueError for an exercise that does not exist.
    """
    if exercise not in EXERCISES:
        raise ValueError(f"exercise={exercise!r} is not known; there are {', '.join(EXERCISES)}")
    print(f"{exercise}: {verdict(exercise, answer)}")


def verdict(exercise: str, answer: Any) -> str:
    """What `check` prints after the exercise's name."""
    if answer is None or answer is ...:
        return "not yet: there is no answer so far"
    try:
        hint = EXERCISES[exercise](answer)
    except (RankFailed, RanksStuck) as error:
        hint = f"it did not run to its end. {error}"
    except (TypeError, ValueError) as error:  # an answer that cannot be launched, or that is no answer at all
        hint = str(error)
    return "ok" if hint is None else f"not yet: {hint}"
