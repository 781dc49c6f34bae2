"""Which bytes live on this rank, and what they are for: unique local storages, counted from birth to death."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch._subclasses import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from tp_teach.measure.simulated import simulated
from tp_teach.tables import KINDS


@dataclass
class StorageRecord:
    """One storage. Its kind is settled by what it turns out to be for; until then it is temporary.

    `born` tells a storage that an operation made from one that was there before.
    """

    nbytes: int
    kind: str = "temporary"
    born: bool = False


class StorageTracker:
    """The live storages of one rank, by kind, and the largest sum they reached.

    Views, tied weights and re-used buffers share a storage, so they count once. Activations are what autograd saves:
    under autocast also the bfloat16 copies of weights, under activation checkpointing of each block its input alone.
    Temporary are what a block computes again in the backward, the parameters that FSDP2 makes whole for a while, and
    the buckets of native data parallelism.
    What native code allocates and frees within one operation is not seen; a compiled block is one such operation, so
    that its peak may be missed.
    """

    def __init__(self) -> None:
        self._live: dict[int, tuple[weakref.ref, StorageRecord]] = {}
        self._resized: set[int] = set()
        self._total = 0
        self.place = ""
        self._most: dict[str, int] = {}
        self._at_most: dict[str, list[StorageRecord]] = {}

    def add(self, tensors: Iterable[torch.Tensor], kind: str | None = None, born: bool = False) -> None:
        """Count tensors, if their storages are not yet counted; name their kind, unless it is settled.

        Only what was `born` under measurement becomes an activation: a batch that autograd saves lives anyway.
        """
        for storage in itertools.chain.from_iterable(map(storages, tensors)):
            key = storage._cdata
            if key not in self._live:
                piece = StorageRecord(storage.nbytes(), born=born)
                self._live[key] = (weakref.ref(storage, lambda _, key=key: self._gone(key)), piece)
                self._total += piece.nbytes
            piece = self._live[key][1]
            if kind and piece.kind == "temporary" and (piece.born or kind != "activations"):
                piece.kind = kind
        self._read_sizes()
        if self._total > self._most.get(self.place, -1):
            self._most[self.place], self._at_most[self.place] = self._total, self.now()

    def add_resized(self, tensors: list[torch.Tensor]) -> None:
        """Count tensors whose storages are emptied and filled again: parameters that FSDP2 makes whole for a while.

        They are temporary, though autograd saves them.
        """
        self.add(tensors)
        for storage in itertools.chain.from_iterable(map(storages, tensors)):
            self._live[storage._cdata][1].born = False
            self._resized.add(storage._cdata)

    def now(self) -> list[StorageRecord]:
        """The pieces that live now. Read their kinds at the end, when they are settled."""
        self._read_sizes()
        return [piece for _, piece in self._live.values()]

    def at_peak(self) -> list[StorageRecord]:
        """The pieces that lived when their sum was largest."""
        return self._at_most[max(self._most, key=self._most.__getitem__)] if self._most else []

    def at_peaks(self) -> dict[str, list[StorageRecord]]:
        """The same for each `place` that was set while tensors were added."""
        return self._at_most

    def _read_sizes(self) -> None:
        for key in tuple(self._resized):
            ref, piece = self._live.get(key, (lambda: None, None))
            storage = ref()
            if storage is not None and storage.nbytes() != piece.nbytes:
                # A new piece: what was noted at an earlier moment keeps its size.
                self._live[key] = ref, replace(piece, nbytes=storage.nbytes())
                self._total += storage.nbytes() - piece.nbytes

    def _gone(self, key: int) -> None:
        self._resized.discard(key)
        self._total -= self._live.pop(key)[1].nbytes


def storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """This rank's storages behind a tensor: one, or those of a sparse tensor's indices and values.

    None for a tensor without memory: DTensor tries operations on such ones, to learn placements and shapes.

    Raises NotImplementedError for the compressed sparse layouts, rather than miss their bytes.
    """
    # By attribute: to_local() and detach() are operations, and would themselves be measured.
    mine = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    mine = mine.elem if isinstance(mine, AsyncCollectiveTensor) else mine
    if mine.device.type == "meta" or (isinstance(mine, FakeTensor) and not simulated()):
        return []
    if mine.layout is torch.strided:
        return [mine.untyped_storage()]
    if mine.layout is torch.sparse_coo:
        with _disable_current_modes(), torch.no_grad():
            return [part.untyped_storage() for part in (mine._indices(), mine._values())]
    raise NotImplementedError(f"tp.measure does not know the memory of a tensor of layout {mine.layout}")


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, list[torch.Tensor]]:
    """The tensors that live from step to step, by kind."""
    parameters = list(model.parameters())
    return {
        "parameters": parameters,
        "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
        "optimizer": [leaf for leaf in tree_leaves(dict(optimizer.state)) if isinstance(leaf, torch.Tensor)]
        if optimizer
        else [],
        "temporary": list(model.buffers()),
    }


def memory_rows(step: int, moment: str, pieces: list[StorageRecord]) -> list[dict]:
    """Rows of the table `memory` for one moment: bytes by kind, zeros included."""
    bytes_of = Counter(dict.fromkeys(KINDS, 0))
    for piece in pieces:
        bytes_of[piece.kind] += piece.nbytes
    return [{"step": step, "moment": moment, "kind": kind, "bytes": number} for kind, number in bytes_of.items()]


def allocated_rows(device: torch.device, step: int, moment: str) -> list[dict]:
    """What the device's allocator says: allocated and reserved on CUDA, live tensor bytes as allocated on a CPU.

    At the moment `peak` these are the CUDA allocator's largest numbers since they were last reset; a CPU has none. A
    simulated rank has no allocator and no rows.
    """
    if simulated():
        held = {}
    elif device.type != "cuda":
        held = {"allocated": live_tensor_bytes()} if moment != "peak" else {}
    elif moment == "peak":
        held = {
            "allocated": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.max_memory_reserved(device),
        }
    else:
        held = {"allocated": torch.cuda.memory_allocated(device), "reserved": torch.cuda.memory_reserved(device)}
    return [{"step": step, "moment": moment, "kind": kind, "bytes": number} for kind, number in held.items()]


def live_tensor_bytes() -> int:
    """Bytes of all tensors that Python knows in this process; shared storages count once."""
    found = {}
    for thing in gc.get_objects():
        # type(), not isinstance(): some objects answer isinstance by running code of their own.
        if issubclass(type(thing), torch.Tensor):
            found |= {storage._cdata: storage.nbytes() for storage in storages(thing)}
    return sum(found.values())


def restored(saved: tuple[torch.Tensor, int]) -> torch.Tensor:
    """Hand a saved tensor back. With hooks in place autograd leaves this check to them."""
    tensor, version = saved
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{tensor.dtype} {tuple(tensor.shape)} is at version {tensor._version}, expected version {version}"
        )
    return tensor
