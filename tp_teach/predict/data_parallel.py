"""What a second, data-parallel dimension of the mesh adds: its own collectives, woven into those of the model.

torch has one machinery for both kinds, and it works block by block, with embeddings, final norm and head as one more
block, the root. Gradients become the groups' mean over the ranks that stand at one place of the tensor-parallel groups.

- ddp: one all-reduce a block, when its backward ends, of all its gradients on this rank as one flat array.
- fsdp: each parameter's first dimension is cut once more, over the data-parallel ranks (Zhao et al. 2023, PyTorch FSDP,
  section 3; Rajbhandari et al. 2020, ZeRO stage 3). One all-gather a block before its forward, and again before its
  backward, where it is asked for one block ahead; the root is gathered once. One reduce-scatter a block after its
  backward. The flat array is made of equal parts: a first dimension that does not divide is filled up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tp_teach.model.config import TrainConfig
from tp_teach.predict.collectives import Call, Pass
from tp_teach.predict.parameters import parameters

ROOT = ""


def weave(config: TrainConfig, ranks: int, model: Pass) -> list[Call]:
    """The calls of one forward and backward in order, with those of the data-parallel groups."""
    if config.data_parallel == 1:
        return [
            *model.embedding,
            *_flat(model.layers),
            *model.head,
            *model.head_back,
            *model.final_norm_back,
            *_flat(reversed(model.layers_back)),
            *model.embedding_back,
        ]
    groups = _Groups(config, ranks)
    found = [*groups.gather("forward", ROOT, ROOT), *model.embedding]
    for number, calls in enumerate(model.layers):
        found += [*groups.gather("forward", f"layers.{number}", f"layers.{number}"), *calls]
    found += [*model.head, *groups.gather("backward", "head", f"layers.{len(model.layers) - 1}"), *model.head_back]
    for number, calls in reversed([*enumerate(model.layers_back)]):
        layer = f"layers.{number}"
        if number > 0:
            found += groups.gather("backward", layer, f"layers.{number - 1}")
        found += [*groups.norms_last(calls, layer), groups.reduce(layer)]
    found += model.embedding_back
    return [*found, *groups.norms_last(model.final_norm_back, ROOT), groups.reduce(ROOT)]


class _Groups:
    """The calls over the data-parallel ranks."""

    def __init__(self, config: TrainConfig, ranks: int) -> None:
        self.config, self.parts = config, config.data_parallel
        self.fsdp = config.data_parallel_kind == "fsdp"
        self.sizes: dict[str, int] = {}
        for name, parameter in parameters(config).items():
            block = ".".join(name.split(".")[:2]) if name.startswith("layers.") else ROOT
            self.sizes[block] = self.sizes.get(block, 0) + parameter.held(config, ranks)

    def gather(self, phase: str, module: str, block: str) -> list[Call]:
        """A block's parameters, asked for in `module`; nothing in ddp, where every group has them."""
        if not self.fsdp:
            return []
        size = self.sizes[block]
        return [Call(phase, module, "all_gather", self.config.dtype, (size,), size * self.parts, over="dp")]

    def reduce(self, block: str) -> Call:
        """A block's gradients."""
        op, parts = ("reduce_scatter", self.parts) if self.fsdp else ("all_reduce", 1)
        return Call("backward", block, op, self.config.dtype, (self.sizes[block] * parts,), over="dp")

    def norms_last(self, calls: list[Call], block: str) -> list[Call]:
        """The same calls; the gradients of norms are brought to their layout with the block's, at its end."""
        norms = [call for call in calls if call.module.endswith("norm")]
        others = [call for call in calls if call not in norms]
        return others + [replace(call, module=block) for call in norms]


def _flat(lists: Iterable[list[Call]]) -> list[Call]:
    return [call for calls in lists for call in calls]
