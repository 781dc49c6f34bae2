"""The ring, step by step: which rank sends which chunk to its right neighbour, and what it holds afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from tp_teach.plot.words import counted, listed

OPS = ("all_reduce", "reduce_scatter", "all_gather")
FEWEST, MOST = 2, 8

Held = tuple[tuple[frozenset[int], ...], ...]
"""For each rank and each chunk: the ranks whose numbers are in it."""


@dataclass(frozen=True)
class Move:
    """One message of a step: `chunk` goes from `sender` to `receiver`, with the numbers of the ranks in `parts`."""

    sender: int
    receiver: int
    chunk: int
    parts: frozenset[int]


@dataclass(frozen=True)
class Step:
    """What every rank sends at the same time in one `phase`, and what the ranks hold after it. Step 0 is the start."""

    number: int
    phase: str
    moves: tuple[Move, ...]
    held: Held


def steps_of(n: int, op: str) -> list[Step]:
    """The start and every step of a ring of `n` ranks: 2(n-1) for an all_reduce, n-1 for its two halves.

    Every rank sends 1/n of the array in each step (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", section 4). After the reduce-scatter, rank r holds the sum of chunk r.

    Raises ValueError for another operation, or a number of ranks that cannot be drawn.
    """
    if op not in OPS:
        raise ValueError(f"op={op!r} has no ring here; use {', '.join(map(repr, OPS[:-1]))} or {OPS[-1]!r}")
    if isinstance(n, bool) or not isinstance(n, int) or not FEWEST <= n <= MOST:
        raise ValueError(f"n={n!r} does not work; use a whole number of ranks from {FEWEST} to {MOST}")
    own = op == "all_gather"
    start = tuple(
        tuple(frozenset({rank} if not own or chunk == rank else ()) for chunk in range(n)) for rank in range(n)
    )
    steps = [Step(0, "", (), start)]
    for phase, first in (("reduce_scatter", 1), ("all_gather", 0)):
        if op in (phase, "all_reduce"):
            for turn in range(n - 1):
                steps.append(_next(steps[-1], phase, first + turn))
    return steps


def _next(before: Step, phase: str, back: int) -> Step:
    """One step on: rank r sends chunk r - `back`; who receives it adds it (reduce_scatter) or keeps it (all_gather)."""
    n = len(before.held)
    held = [list(chunks) for chunks in before.held]
    moves = []
    for rank in range(n):
        chunk, receiver = (rank - back) % n, (rank + 1) % n
        parts = before.held[rank][chunk]
        moves.append(Move(rank, receiver, chunk, parts))
        held[receiver][chunk] = parts | before.held[receiver][chunk] if phase == "reduce_scatter" else parts
    return Step(before.number + 1, phase, tuple(moves), tuple(map(tuple, held)))


def in_words(op: str, steps: list[Step]) -> str:
    """Alt text of the whole ring: what rank 0 sends in each step; the others do the same, one chunk further."""
    n = len(steps[0].held)
    said = [f"Ring {op} with {n} ranks in {counted(len(steps) - 1, 'step')}, the array cut into {n} chunks."]
    for phase, does in (("reduce_scatter", "adds it to its own"), ("all_gather", "keeps it")):
        found = [step for step in steps if step.phase == phase]
        if found:
            chunks = listed([str(step.moves[0].chunk) for step in found])
            when = f"Step {found[0].number}" if len(found) == 1 else f"Steps {found[0].number} to {found[-1].number}"
            plural = "s" if len(found) > 1 else ""
            said.append(f"{when}, {phase}: rank 0 sends chunk{plural} {chunks} to rank 1, which {does}.")
    said.append("Every other rank sends to the next in the same way, one chunk number further for each rank.")
    return " ".join([*said, outcome(op)])


def outcome(op: str) -> str:
    """What is true after the last step."""
    return {
        "all_reduce": "At the end every rank holds every chunk of the sum.",
        "reduce_scatter": "At the end rank r holds chunk r of the sum.",
        "all_gather": "At the end every rank holds every rank's chunk.",
    }[op]


def step_in_words(op: str, steps: list[Step], number: int) -> str:
    """Alt text of one step: every message."""
    step = steps[number]
    n = len(step.held)
    head = f"Ring {op} with {n} ranks, step {number} of {len(steps) - 1}, {step.phase}:"
    return f"{head} {listed([message(move) for move in step.moves])}."


def message(move: Move) -> str:
    """`rank 3 sends chunk 2 to rank 0`."""
    return f"rank {move.sender} sends chunk {move.chunk} to rank {move.receiver}"
