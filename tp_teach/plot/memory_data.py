"""The memory of the measured step, by rank, moment and kind."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pandas as pd

from tp_teach.plot.rows import rank_sets
from tp_teach.plot.words import counted, exact, listed, ranks_in_words
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
    """Bytes by kind at one moment, for each rank; `beside`: those of a run to compare with, if any."""

    name: str
    bytes: dict[int, dict[str, int]]
    beside: dict[int, dict[str, int]] = field(default_factory=dict)

    def stack(self, rank: int) -> int:
        """Bytes of all stacked kinds on a rank."""
        return sum(self.bytes[rank].get(kind, 0) for kind in STACKED)

    def height(self, rank: int) -> int:
        """The same, of the run that has more."""
        return max(self.stack(rank), sum(self.beside.get(rank, {}).get(kind, 0) for kind in STACKED))


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


def side_by_side(moments: list[Moment], others: list[Moment]) -> list[Moment]:
    """The moments, each with what another run holds then. Raises ValueError when the runs have other ranks."""
    here, there = ranks_of(moments), ranks_of(others)
    if here != there:
        raise ValueError(
            f"the runs have {counted(len(here), 'rank')} and {counted(len(there), 'rank')}; "
            "compare runs of the same number of ranks"
        )
    held = {moment.name: moment.bytes for moment in others}
    return [replace(moment, beside=held.get(moment.name, {})) for moment in moments]


def verdict(moments: list[Moment]) -> str:
    """How far the two runs are apart, in parameters, gradients, optimizer state and activations."""
    apart = [
        (abs(held.get(kind, 0) - moment.beside[rank].get(kind, 0)), f"{kind}, rank {rank}, {moment.name}")
        for moment in moments
        if moment.name in SAID_MOMENTS
        for rank, held in moment.bytes.items()
        if rank in moment.beside
        for kind in SAID
    ]
    most, where = max(apart, key=lambda gap: gap[0], default=(0, ""))
    if most == 0:
        return f"All {len(apart)} numbers that both state are equal to the byte."
    wrong = sum(size > 0 for size, _ in apart)
    return f"{wrong} of {len(apart)} numbers that both state differ, most by {most:,} bytes ({where})."


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
