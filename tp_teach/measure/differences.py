"""`parity`: are these the same tensors? One row a tensor, the worst first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch.distributed.tensor import DTensor

TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}
"""How far the same sum in another order may end, by dtype, as a part of the reference's largest magnitude.

A sharded model adds the same numbers in another order, and each addition rounds by at most half of the dtype's spacing
eps. float32 (eps 1.2e-7) and float64 (eps 2.2e-16) have room for some eighty and some thousands of such roundings in
a row: a few layers and steps of training. 16-bit matrix products add in float32 and round once at their end, so there
is room for one to two spacings (bfloat16 7.8e-3, float16 9.8e-4). A dtype with fewer bits has its own spacing.
Whole numbers and booleans have no rounding: only exact is close.
"""
COLUMNS = ("name", "exact", "close", "max_abs", "max_rel", "tolerance", "note")
MOST_ROWS = 30


class Parity(pd.DataFrame):
    """A table that prints as plain lines, however wide; the worst rows come first, so the rest is only counted."""

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame  # what is selected from it is an ordinary table

    def __repr__(self) -> str:
        if self.empty:
            return "no tensors to compare"
        rows = [[_cell(value) for value in row] for row in self.head(MOST_ROWS).itertuples(index=False)]
        widths = [max(map(len, column)) for column in zip(self.columns, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in [list(self.columns), *rows]]
        rest = self["close"].iloc[MOST_ROWS:]
        return "\n".join(lines + ([f"… and {len(rest)} more, {int(rest.sum())} of them close"] if len(rest) else []))


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value in (True, False) and not isinstance(value, float):
        return "yes" if value else "no"
    return "" if value != value else "0" if value == 0 else f"{value:.1e}"


def parity(a: Any, b: Any, rtol: float | None = None, atol: float = 0.0) -> Parity:
    """Compare `a` with the reference `b`: two tensors, or two mappings of tensors such as state or gradient dicts.

    A DataFrame with one row a tensor, the worst first: name; exact (all numbers equal); close; max_abs (largest
    difference); max_rel (max_abs divided by the reference's largest magnitude); tolerance; note. Close means that
    max_abs is at most tolerance times that magnitude. The tolerance is that of the dtype (`TOLERANCES` says why), of
    the coarser one where two dtypes meet; `rtol` replaces it. Whole numbers and booleans are close only if exact.

    A tensor that is zero but for rounding, such as the gradient of a key's bias, has no magnitude to compare with:
    differences up to `atol` are close too.

    A name that one side lacks, a gradient that is None on one side, and shapes that differ are rows with a note, and
    not close. NaN equals NaN and inf equals inf in the same place; elsewhere they differ by inf.

    Tensors may be plain or DTensors. A DTensor is gathered, which is a collective: every rank must call `parity`, with
    the same names.

    Raises TypeError for anything but tensors and mappings of them.
    """
    left, right = _named(a, "a"), _named(b, "b")
    with torch.no_grad():
        rows = [_row(name, left, right, rtol, atol) for name in dict.fromkeys([*right, *left])]
    rows.sort(key=_worst_first)
    return Parity([row for row, _ in rows], columns=list(COLUMNS))


def _named(given: Any, which: str) -> dict[str, torch.Tensor | None]:
    if isinstance(given, torch.Tensor):
        return {"tensor": given}
    if not isinstance(given, Mapping):
        what = "a module: pass its state_dict()" if isinstance(given, torch.nn.Module) else f"a {type(given).__name__}"
        raise TypeError(f"{which} is {what}; parity compares tensors, or mappings of names to tensors")
    for name, value in given.items():
        if not isinstance(value, torch.Tensor | None):
            raise TypeError(f"{which}[{name!r}] is a {type(value).__name__}; parity compares tensors")
    return {str(name): value for name, value in given.items()}


Row = tuple[dict, bool]
"""A row of the table, and whether its tensors could be compared."""


def _row(name: str, left: dict, right: dict, rtol: float | None, atol: float) -> Row:
    row = dict.fromkeys(COLUMNS, float("nan")) | {"name": name, "exact": False, "close": False, "note": ""}
    obstacle = _obstacle(name, left, right)
    if obstacle:
        return row | {"note": obstacle}, False
    if right[name] is None:
        return row | {"exact": True, "close": True, "note": "None in both"}, True
    here, there = _whole(left[name]), _whole(right[name])
    rounded = [dtype for dtype in (here.dtype, there.dtype) if dtype.is_floating_point or dtype.is_complex]
    tolerance = _tolerance(rounded) if rtol is None or not rounded else rtol
    worst, note = _difference(here, there)
    size = _magnitude(there)
    exact = worst == 0.0
    close = exact or (bool(rounded) and worst <= max(tolerance * size, atol))
    numbers = {"max_abs": worst, "max_rel": 0.0 if exact else worst / size if size else float("inf")}
    return row | numbers | {"exact": exact, "close": close, "tolerance": tolerance, "note": note}, True


def _obstacle(name: str, left: dict, right: dict) -> str:
    """Why two tensors cannot be compared number by number; empty if they can. DTensors are not yet gathered here."""
    for which, side, other in (("a", left, right), ("b", right, left)):
        if name not in side:
            return f"not in {which}"
        if side[name] is None and other.get(name) is not None:
            return f"None in {which}"
        if side[name] is not None and side[name].is_meta:
            return f"{which} is on the meta device and has no numbers"
    here, there = left[name], right[name]
    if here is not None and here.shape != there.shape:
        return f"shapes {tuple(here.shape)} and {tuple(there.shape)}"
    return ""


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return (whole.to_dense() if whole.layout is not torch.strided else whole).detach().cpu()


def _difference(here: torch.Tensor, there: torch.Tensor) -> tuple[float, str]:
    """The largest absolute difference, and what else is to be said of the two."""
    notes = [f"{_word(here)} against {_word(there)}"] if here.dtype != there.dtype else []
    x, y = _wide(here), _wide(there)
    both = x.isnan() & y.isnan()
    notes += [f"{int(both.sum())} NaN in both"] if both.any() else []
    equal = here == there if here.dtype == there.dtype and here.dtype.itemsize > 1 else x == y
    apart = ~(equal | both)
    if not apart.any():
        return 0.0, "; ".join(notes)
    gaps = (x - y).abs()[apart]
    if not gaps.isfinite().all():
        return float("inf"), "; ".join([*notes, f"{int((~gaps.isfinite()).sum())} NaN or inf on one side"])
    # Whole numbers beyond 2**53 can differ where float64 does not tell them apart.
    return float(gaps.max()) or 1.0, "; ".join(notes)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _magnitude(tensor: torch.Tensor) -> float:
    """The largest absolute value among the finite numbers; 0 if there are none."""
    sizes = _wide(tensor).abs()
    sizes = sizes[sizes.isfinite()]
    return float(sizes.max()) if sizes.numel() else 0.0


def _tolerance(dtypes: list[torch.dtype]) -> float:
    return max((TOLERANCES.get(dtype.to_real(), torch.finfo(dtype).eps) for dtype in dtypes), default=0.0)


def _word(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _worst_first(pair: Row) -> tuple:
    row, comparable = pair
    excess = row["max_rel"] / row["tolerance"] if row["tolerance"] else row["max_abs"]
    return comparable, row["close"], row["exact"], -excess if excess == excess else 0.0
