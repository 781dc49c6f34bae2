"""Bytes that training keeps for one parameter: who counts what, and why answers differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Bytes a parameter, by kind. `assumes` says what must be so for the sum to be right."""

    weights: int
    gradients: int
    master: int
    moments: int
    assumes: str
    source: str

    @property
    def total(self) -> int:
        """Bytes a parameter, everything together."""
        return self.weights + self.gradients + self.master + self.moments


RECIPES = {
    "no gradients": Recipe(
        2, 0, 0, 8, "bf16 weights and two float32 moments; gradients are used up as they arrive", "scaling book"
    ),
    "bf16": Recipe(2, 2, 0, 4, "everything in bf16, moments too: what tp.train does with dtype bfloat16", "tp.train"),
    "bf16, float32 moments": Recipe(
        2, 2, 0, 8, "bf16 weights and gradients, float32 moments, no master copy", "computed here"
    ),
    "float32": Recipe(4, 4, 0, 8, "everything in float32: what tp.train does with dtype float32", "tp.train"),
    "mixed": Recipe(
        2, 2, 4, 8, "16-bit weights and gradients, float32 master weights and moments", "Rajbhandari et al. 2020, 3.1"
    ),
    "megatron": Recipe(
        2, 4, 4, 8, "as mixed, but gradients are added up in float32 alone", "Korthikanti et al. 2022, figure 1"
    ),
    "both gradients": Recipe(
        2, 6, 4, 8, "as mixed, with a float32 copy of the gradients beside the bf16 ones", "computed here"
    ),
    "float64": Recipe(8, 8, 0, 16, "everything in float64: what tp.train does with dtype float64", "tp.train"),
}
"""Totals 10, 8, 12, 16, 16, 18, 20 and 32. AdamW keeps two moments a parameter (Loshchilov and Hutter 2019)."""
