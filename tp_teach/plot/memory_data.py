"""The memory of the measured step, by rank, moment and kind."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from tp_teach.plot.rows import rank_sets
from tp_teach.plot.words import exact, listed, ranks_in_words
from tp_teach.tables import KINDS, MOMENTS

STACKED = KINDS
ASIDE = ("allocated", "reserved")  # what an allocator says; it contains the stacked kinds
# Alt text is compared between machines: temporary storage, the peak and the allocator differ with the device.
SAID = ("parameters", "gradients", "optimizer", "activations")
SAID_MOMENTS = ("init", "forward", "backward", "step")
MOST_DRAWN = 8
FEW = 4


@dataclass(frozen=True)
class Moment:
    """Bytes by kind at one moment, for each rank."""

    name: str
    bytes: dict[int, dict[str, int]]

    def stack(self, rank: int) -> int:
        """Bytes of all stacked kinds on a rank."""
        return sum(self.bytes[rank].get(kind, 0) for kind in STACKED)


def moments_of(rows: pd.DataFrame) -> list[Moment]:
    """The moments of the measured step: the step that has rows of kind `parameters`; of several, the last.

    Raises ValueError when no step has them.
    """
    rows = rows.assign(step=rows["step"].fillna(-1))
    measured = set(rows.loc[rows["kind"] == "parameters", "step"])
    if not measured:
        raise ValueError(
            "this run has no measured step in `memory`: wrap the training step in `tp.measure(model, optimizer)`"
        )
    found = []
    for name in [*MOMENTS, *sorted(set(rows["moment"].dropna()) - set(MOMENTS))]:
        part = rows[(rows["moment"] == name) & rows["step"].isin(measured)]
        part = part[part["step"] == part["step"].max()]
        if part["kind"].isin(STACKED).any():
            by_rank: dict[int, dict[str, int]] = {}
            for rank, kind, size in zip(part["rank"], part["kind"], part["bytes"], strict=True):
                by_rank.setdefault(int(rank), {})[str(kind)] = int(size)
            found.append(Moment(name, by_rank))
    # On a CPU training records the live bytes of a step beside the measurement; one moment alone compares to nothing.
    marked = [m for m in found if any(kind in held for held in m.bytes.values() for kind in ASIDE)]
    for held in marked[0].bytes.values() if len(marked) == 1 else ():
        for kind in ASIDE:
            held.pop(kind, None)
    return found


def ranks_of(moments: list[Moment]) -> list[int]:
    """Every rank that has rows."""
    return sorted({rank for moment in moments for rank in moment.bytes})


def are_alike(moments: list[Moment]) -> bool:
    """Whether every rank has the same bytes of every stacked kind at every moment."""
    return len(_sets(moments, STACKED)) == 1


def say_alike(moments: list[Moment]) -> bool:
    """Whether the alt text says the same of every rank."""
    return len(_sets([moment for moment in moments if moment.name in SAID_MOMENTS], SAID)) <= 1


def drawn_ranks(moments: list[Moment]) -> tuple[list[int], str]:
    """The ranks to draw, and a sentence on those that are not."""
    ranks = ranks_of(moments)
    if len(ranks) <= FEW:
        return ranks, ""
    if are_alike(moments):
        return ranks[:FEW], f"{ranks_in_words(ranks[FEW:]).capitalize()} hold the same."
    if len(ranks) <= MOST_DRAWN:
        return ranks, ""
    most = {rank: max(moment.stack(rank) for moment in moments if rank in moment.bytes) for rank in ranks}
    low, high = min(ranks, key=lambda rank: most[rank]), max(ranks, key=lambda rank: most[rank])
    return [low, high], f"Of {len(ranks)} ranks, the one that needs least ({low}) and the one that needs most ({high})."


def _sets(moments: list[Moment], kinds: tuple[str, ...]) -> list[list[int]]:
    return rank_sets(
        {
            rank: [[moment.bytes.get(rank, {}).get(kind, 0) for kind in kinds] for moment in moments]
            for rank in ranks_of(moments)
        }
    )


def in_words(moment: Moment) -> str:
    """One sentence of alt text with exact bytes, or nothing for a moment that differs with the device."""
    if moment.name not in SAID_MOMENTS:
        return ""
    parts = []
    for ranks in _sets([moment], SAID):
        sizes = [(kind, moment.bytes[ranks[0]].get(kind, 0)) for kind in SAID]
        held = listed([f"{kind} {exact(size)}" for kind, size in sizes if size]) or "nothing"
        parts.append(held if len(ranks) == len(moment.bytes) else f"{ranks_in_words(ranks)}: {held}")
    return f"{moment.name.capitalize()}: {'; '.join(parts)}."
