"""Published numbers, with their sources: hardware and tables of papers. Model shapes are TrainConfig's presets."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def hardware() -> dict[str, Any]:
    """GPUs, links and measured all-reduces. Units are in the names; `source` and `status` say how sure a number is."""
    return _read("hardware.json")


def figures() -> dict[str, Any]:
    """Tables and figures by paper: `columns` and `rows`, or values by name."""
    return _read("figures.json")


def gpu(name: str) -> dict[str, Any]:
    """One GPU's row of `hardware()`. Raises ValueError for an unknown name, with the known ones."""
    known = hardware()["gpus"]
    if name not in known:
        raise ValueError(f"gpu={name!r} is not known; use {', '.join(map(repr, known))}")
    return known[name]


def rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of one published table, each by column name."""
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def _read(name: str) -> dict[str, Any]:
    return json.loads((resources.files("tp_teach.predict") / "data" / name).read_text(encoding="utf-8"))
