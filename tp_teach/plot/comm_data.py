"""What one measured step sent: the `comm` table folded into one row for each phase and collective."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd

from tp_teach.plot.rows import rank_sets
from tp_teach.plot.style import in_binary
from tp_teach.plot.words import exact, fold_numbers, fold_siblings, listed, ranks_in_words

MOST_SETS = 3


@dataclass(frozen=True)
class Calls:
    """The calls of one collective in one phase, as one rank issued them. Sizes in bytes.

    `ranks` are those that issued exactly these calls. Where too many ranks differ, `ranks` holds all of
    them, the sizes are of the rank that sent most, and `least` is what the others go down to.
    """

    ranks: tuple[int, ...]
    phase: str
    op: str
    group: str
    payloads: tuple[int, ...]
    wire: int
    modules: tuple[str, ...]
    least: int | None = None

    @property
    def payload(self) -> int:
        """Payload of all calls together, in bytes."""
        return sum(self.payloads)

    @property
    def sizes(self) -> str:
        """Number and size of the calls: `4 × 384 KiB`."""
        by_size = {size: self.payloads.count(size) for size in self.payloads}
        if len(by_size) <= 2:
            return " + ".join(f"{count} × {in_binary(size)}" for size, count in by_size.items())
        return f"{len(self.payloads)} calls, {in_binary(min(by_size))} to {in_binary(max(by_size))}"

    @property
    def where(self) -> list[str]:
        """The modules that issued the calls, folded: `layers.0–3`."""
        return list(fold_siblings(fold_numbers(name for name in self.modules if name)))


def one_step(rows: pd.DataFrame) -> tuple[pd.DataFrame, int | None]:
    """The rows of the last measured step, and its number; none where the rows name no step."""
    steps = rows["step"].dropna()
    if steps.empty:
        return rows, None
    last = int(steps.max())
    return rows[rows["step"] == last], last


def calls_of(rows: pd.DataFrame) -> list[Calls]:
    """The calls by phase and collective, in the order of their first call; ranks that differ apart."""
    rows = rows.fillna({"phase": "other", "module": "", "group": ""}).sort_values(["rank", "index"], kind="stable")
    names = _groups(rows)
    rows = rows.assign(group=[names[group] for group in rows["group"]])
    found: dict[tuple, dict[int, Calls]] = {}
    for (rank, phase, op, shown), part in rows.groupby(["rank", "phase", "op", "group"], sort=False):
        sizes = tuple(int(size) for size in part["payload_bytes"])
        calls = Calls((), phase, op, shown, sizes, int(part["wire_bytes"].sum()), tuple(part["module"]))
        found.setdefault((phase, op, shown), {})[int(rank)] = calls
    order = {phase: position for position, phase in reversed(list(enumerate(rows["phase"])))}
    keys = sorted(found, key=lambda key: order[key[0]])
    ranks = sorted({int(rank) for rank in rows["rank"]})
    return [calls for key in keys for calls in _by_ranks(found[key], ranks)]


def _groups(rows: pd.DataFrame) -> dict[str, str]:
    """What to call each process group: one name for the groups along one axis of a mesh, none for the whole world.

    A group is text such as `0,2`; groups along one axis have equal sizes and distances between their ranks.
    """
    alike: dict[tuple, list[str]] = {}
    for group in sorted(set(rows["group"])):
        ranks = [int(rank) for rank in re.findall(r"\d+", group)]
        axis = (len(ranks), *(after - before for before, after in pairwise(ranks))) if ranks else (group,)
        alike.setdefault(axis, []).append(group)
    if len(alike) == 1 and rows["group_size"].max() == rows["rank"].nunique():
        return dict.fromkeys(rows["group"], "")
    names = {}
    for groups in alike.values():
        shown = " and ".join(groups) if len(groups) < 3 else f"{groups[0]} to {groups[-1]}"
        names.update(dict.fromkeys(groups, f"{'groups' if len(groups) > 1 else 'group'} {shown}"))
    return names


def _by_ranks(by_rank: dict[int, Calls], everyone: list[int]) -> list[Calls]:
    sets = rank_sets(dict(by_rank))
    if len(sets) <= MOST_SETS:
        return [_with(by_rank[ranks[0]], ranks) for ranks in sets]
    most = max(by_rank.values(), key=lambda calls: calls.payload)
    silent = len(by_rank) < len(everyone)
    return [_with(most, list(by_rank), 0 if silent else min(calls.payload for calls in by_rank.values()))]


def _with(calls: Calls, ranks: Sequence[int], least: int | None = None) -> Calls:
    return Calls(tuple(ranks), calls.phase, calls.op, calls.group, calls.payloads, calls.wire, calls.modules, least)


def totals(rows: pd.DataFrame) -> dict[int, tuple[int, int, int]]:
    """For each rank: number of calls, payload and wire bytes."""
    return {
        int(rank): (len(part), int(part["payload_bytes"].sum()), int(part["wire_bytes"].sum()))
        for rank, part in rows.groupby("rank")
    }


def in_words(calls: Calls, everyone: Sequence[int]) -> str:
    """One sentence of alt text, with exact bytes."""
    head = f"{calls.phase.capitalize()}: {len(calls.payloads)} × {calls.op}"
    head += f" ({calls.group})" if calls.group else ""
    head += f" in {listed(calls.where)}" if calls.where else ""
    if calls.least is not None:
        return f"{head}; ranks differ, payload from {exact(calls.least)} to {exact(calls.payload)}."
    head += "" if list(calls.ranks) == list(everyone) else f" on {ranks_in_words(calls.ranks)} only"
    by_size = {size: calls.payloads.count(size) for size in calls.payloads}
    if len(by_size) == 1:
        each = f", each {exact(calls.payloads[0])}" if len(calls.payloads) > 1 else ""
    elif len(by_size) == 2:
        each = ", " + listed([f"{count} of {exact(size)}" for size, count in by_size.items()])
    else:
        each = f", from {exact(min(by_size))} to {exact(max(by_size))}"
    return f"{head}{each}, payload {exact(calls.payload)}, wire {exact(calls.wire)}."
