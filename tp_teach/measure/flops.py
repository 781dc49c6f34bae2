"""How many floating-point operations a rank really does: matrix products, counted at this rank's local shapes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import bmm_flop, flop_registry, sdpa_backward_flop, sdpa_flop

from tp_teach.measure.simulated import tries_shapes

_ATEN = torch.ops.aten


def _mv_flop(matrix: torch.Tensor, vector: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    return 2 * matrix.numel()


def _addbmm_flop(added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    return bmm_flop(a.shape, b.shape)


# What torch's registry misses: the attention kernels of a CPU, and products that are no matrix times a matrix.
_FORMULAS = {
    **flop_registry,
    _ATEN._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,
    _ATEN.mv: _mv_flop,
    _ATEN.dot: _mv_flop,
    _ATEN.addbmm: _addbmm_flop,
}


class FlopCount:
    """Sums floating-point operations by phase, module and kind of operation.

    A multiply-add counts as 2, so a product of (m, k) and (k, n) counts 2 m k n; everything that is no matrix product
    (norms, activations, softmax, biases, the optimizer) counts 0, as in Megatron-LM (Narayanan et al. 2021, section
    5.1) and PaLM (Chowdhery et al. 2022, appendix B). Shapes are those of local tensors. torch's own FlopCounterMode
    counts a DTensor's product at the global shape: as many times too much as there are ranks that share it.

    Kinds: `matmul` (mm, addmm, bmm ... with or without a bias), `attention` and `attention_backward` (a fused kernel
    of `scaled_dot_product_attention`), `convolution` and `convolution_backward`.

    Fused attention counts all pairs of queries and keys, causal or not, as torch does for the CUDA kernels, and also on
    a CPU: with b samples, h query heads, s queries and keys and head size d, the two products of the forward are
    4 b h s^2 d, and the five of the backward, which computes the scores again, 10 b h s^2 d. Where attention is written
    out, or takes torch's unfused path (the meta device), its backward is four products of kind `matmul`: 8 b h s^2 d.
    """

    def __init__(self) -> None:
        self._sums: Counter[tuple[str, str, str]] = Counter()

    def add(self, phase: str, module: str, func: Any, args: tuple, kwargs: dict, result: Any) -> None:
        """Count one operation, if it is a product and really happens."""
        formula = _FORMULAS.get(func._overloadpacket)
        if formula is not None and not (_is_fake(result) and tries_shapes()):
            self._sums[phase, module, _kind(func._opname)] += formula(*args, **kwargs, out_val=result)

    def rows(self, step: int) -> list[dict]:
        """Rows of the table `flops`; a sum of zero has none."""
        columns = ("phase", "module", "op")
        return [
            {"step": step, **dict(zip(columns, key, strict=True)), "flops": n} for key, n in self._sums.items() if n
        ]


def _kind(name: str) -> str:
    for kind in ("attention", "conv"):
        if kind in name:
            kind = "convolution" if kind == "conv" else kind
            return f"{kind}_backward" if name.endswith("_backward") else kind
    return "matmul"


def _is_fake(result: Any) -> bool:
    return any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(result))
