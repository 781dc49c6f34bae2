"""What many equal layers write down, from what few of them do: row by row, to the byte.

2 layers:   embedding  0  1  head │ head back  1  0  embedding back
3 layers:   embedding  0  1  2  head │ head back  2  1  0  embedding back
                             ↑ one layer more: copies of it fill the rest, up and down
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from itertools import groupby

Rows = dict[str, list[dict]]
"""Rows by table."""
_LAYER = re.compile(r"\blayers\.(\d+)\b")
_PLACE = "peak in "
"""How a moment of `memory` begins that is the peak of one part of the model."""


class NotAlike(ValueError):
    """The layers are not alike, or the rows are not those of layers."""


def foretell(short: Rows, long: Rows, more: int) -> Rows:
    """The rows of `more` layers beyond those of `long`, which has one layer more than `short`.

    What is in `long` and does not depend on layers (losses, times) stays. Raises NotAlike.
    """
    rows = {table: list(found) for table, found in long.items()}
    for table in ("shards", "comm", "flops"):
        rows[table] = _stretch(short[table], long[table], more)
    rows["memory"] = _grow(short["memory"], long["memory"], more)
    return rows


def without_places(rows: Rows) -> Rows:
    """Put the largest of the peaks of the model's parts in the place of the peak."""
    tops: dict[int, dict[str, int]] = {}
    for (step, _), group in groupby(filter(_is_place, rows["memory"]), key=lambda row: (row["step"], row["moment"])):
        held = {row["kind"]: row["bytes"] for row in group}
        if sum(held.values()) > sum(tops.get(step, {}).values()):
            tops[step] = held
    memory = [row for row in rows["memory"] if not _is_place(row)]
    for number, row in enumerate(memory):
        if row["moment"] == "peak" and row["kind"] in tops.get(row["step"], {}):
            memory[number] = row | {"bytes": tops[row["step"]][row["kind"]]}
    return rows | {"memory": memory}


def counted(rows: Rows) -> Rows:
    """What does not depend on a clock, and not on numbers: the tables that are foretold."""
    return {table: found for table, found in without_places(rows).items() if table not in ("steps", "timeline")}


def _is_place(row: dict) -> bool:
    return row["moment"].startswith(_PLACE)


def _stretch(short: list[dict], long: list[dict], more: int) -> list[dict]:
    old, new = _segments(short), _segments(long)
    if [key for key, _ in old] != [key for key, _ in new]:
        raise NotAlike("the phases differ")
    rows = [row for (_, a), (_, b) in zip(old, new, strict=True) for row in _stretch_segment(a, b, more)]
    if long and "index" in long[0]:
        steps = [list(group) for _, group in groupby(rows, key=lambda row: row["step"])]
        rows = [row | {"index": index} for group in steps for index, row in enumerate(group)]
    return rows


def _segments(rows: list[dict]) -> list[tuple[Hashable, list[dict]]]:
    """Runs of rows of one step and phase: in each, layers go one way. Without the numbers of the rows."""
    rows = [{name: value for name, value in row.items() if name != "index"} for row in rows]
    return [(key, list(group)) for key, group in groupby(rows, key=lambda row: (row.get("step"), row.get("phase")))]


def _stretch_segment(short: list[dict], long: list[dict], more: int) -> list[dict]:
    """Find where `long` has a layer more than `short`, and put as many in as are wanted."""
    grown = len(long) - len(short)
    for up in (True, False):
        # Going up, the layers after the new one have moved; going down, those before it.
        before, after = (0, 1) if up else (1, 0)
        pairs = zip(short, long, strict=False)
        head = next((at for at, (a, b) in enumerate(pairs) if _moved(a, before) != b), min(len(short), len(long)))
        tail = long[head + grown :]
        if grown >= 0 and [_moved(row, after) for row in short[head:]] == tail:
            layers = [[_moved(row, by) for row in long[head : head + grown]] for by in range(more + 1)]
            middle = [row for layer in (layers if up else layers[::-1]) for row in layer]
            moved = [_moved(row, before * more) for row in long[:head]]
            return [*moved, *middle, *(_moved(row, after * more) for row in tail)]
    raise NotAlike("the rows of one layer more are not those of a layer")


def _moved(row: dict, by: int) -> dict:
    """The same row of a layer `by` further on; a row of no layer stays."""
    name = "parameter" if "parameter" in row else "module"
    return row | {name: _renamed(row[name], by)}


def _renamed(name: str, by: int) -> str:
    return _LAYER.sub(lambda found: f"layers.{int(found[1]) + by}", name, count=1) if by else name


def _grow(short: list[dict], long: list[dict], more: int) -> list[dict]:
    """Each number of bytes grows by as much a layer as from `short` to `long`.

    A place in one of the first layers is compared with the same one, a place in one of the last with the same from the
    end. Between them bytes go up or down evenly, so that no layer there holds more than the outer ones.
    """
    before = {_key(row): row["bytes"] for row in short}
    count = 1 + max((_layer(row) for row in long), default=-1)
    rows = []
    for row in long:
        layer = _layer(row)
        if count // 2 <= layer < count - count // 2:
            continue  # the middle one of an odd number
        moved = layer >= count // 2
        key = _key(row | {"moment": _renamed(row["moment"], -1)} if moved else row)
        if key not in before:
            raise NotAlike("the moments differ")
        moment = _renamed(row["moment"], more) if moved else row["moment"]
        rows.append(row | {"moment": moment, "bytes": row["bytes"] + more * (row["bytes"] - before[key])})
    return rows


def _key(row: dict) -> tuple:
    return row["step"], row["moment"], row["kind"]


def _layer(row: dict) -> int:
    """The layer that a moment names; -1 for none."""
    found = _LAYER.search(row["moment"])
    return int(found[1]) if found else -1
