"""Read one dispatched torch operation as a collective: its name, group, shape, dtype and payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from tp_teach.tables import wire_bytes

NAMESPACES = ("_c10d_functional", "c10d", "_dtensor")
# These follow or prepare a collective; counting them would count it twice.
_NOT_COLLECTIVES = ("wait_tensor", "_wrap_tensor_autograd", "check_for_nan", "mesh_get_process_group")
# torch's names, without `_coalesced` and outer underscores, where they are not the field's.
_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgather_base": "all_gather",
    "allgather_into_tensor": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "isend": "send",
    "irecv": "recv",
    "recv_any_source": "recv",
    "monitored_barrier": "barrier",
}
_KNOWN = {*_NAMES.values(), "all_reduce", "broadcast", "reduce", "gather", "scatter"}
_OUTPUT_FIRST = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


@dataclass(frozen=True)
class Collective:
    """`shape` and `dtype` are those of the tensor that this rank hands in, or receives into (recv, broadcast).

    Of several tensors that travel in one call, `shape` lists the different shapes and `payload_bytes` adds all up.
    `payload_bytes` is the full array: the output of an all_gather or gather, the input of a reduce_scatter, scatter or
    all_to_all. `ranks` are those of the group; of a send or recv they are the two that meet, the lower first, or the
    whole group when a recv takes from any rank, for then nobody knows the sender before it arrives.
    """

    op: str
    ranks: tuple[int, ...]
    dtype: str
    shape: str
    payload_bytes: int

    def row(self) -> dict:
        """What a row of the table `comm` says of it."""
        return {
            "op": self.op,
            "group": ",".join(map(str, self.ranks)),
            "group_size": len(self.ranks),
            "dtype": self.dtype,
            "shape": self.shape,
            "payload_bytes": self.payload_bytes,
            "wire_bytes": wire_bytes(self.op, self.payload_bytes, len(self.ranks)),
        }


def read(func: Any, args: tuple, kwargs: dict) -> list[Collective]:
    """The collectives that `func(*args, **kwargs)` is: none for any other operation, several for a batch of sends.

    An object (`all_gather_object`, `broadcast_object_list`) travels as it does in torch: its size, then its bytes.

    Raises NotImplementedError for a communication operation that is not known here, rather than miss its bytes.
    """
    if func.namespace not in NAMESPACES or func._opname in _NOT_COLLECTIVES:
        return []
    name = func._opname.strip("_").removesuffix("_coalesced")
    group = _group((*args, *kwargs.values()))
    if name == "batch_p2p_ops":
        kinds, peers, _, tensors = args[:4]
        return [_met(_NAMES[k], group, [t], peer) for k, peer, t in zip(kinds, peers, tensors, strict=True)]
    op = _NAMES.get(name, name)
    if op not in _KNOWN:
        raise NotImplementedError(f"tp.measure does not know the communication operation {func}")
    ranks = tuple(dist.get_process_group_ranks(group))
    if op == "barrier":
        return [Collective(op, ranks, "", "", 0)]
    if op in ("send", "recv"):
        anyone = name == "recv_any_source"
        peer = None if anyone else args[2 if func.namespace == "c10d" else 1]
        return [_met(op, group, tensors_in(args[0]), peer)]
    if func.namespace == "c10d" and op in _OUTPUT_FIRST:
        into, given = tensors_in(args[0]), tensors_in(args[1])
    else:
        into, given = [], tensors_in(args[0])
    payload = _bytes(given)
    if op in ("all_gather", "gather"):
        # The functional form makes its output itself; only the root of a gather has one.
        payload = _bytes(into) or payload * len(ranks)
    elif op == "scatter":
        payload = payload or _bytes(into) * len(ranks)
    return [_collective(op, ranks, given or into, payload)]


def _met(op: str, group: dist.ProcessGroup, tensors: list[torch.Tensor], peer: int | None) -> Collective:
    """A send or recv; `peer` is a rank of the group."""
    ranks = dist.get_process_group_ranks(group)
    if peer is not None:
        ranks = sorted((ranks[group.rank()], ranks[peer]))
    return _collective(op, tuple(ranks), tensors, _bytes(tensors))


def _collective(op: str, ranks: tuple[int, ...], tensors: list[torch.Tensor], payload: int) -> Collective:
    shapes = dict.fromkeys(str(tuple(tensor.shape)) for tensor in tensors)
    return Collective(op, ranks, str(tensors[0].dtype).removeprefix("torch."), ", ".join(shapes), payload)


def complete(result: Any = None) -> None:
    """Wait until what a collective returned is there, and a GPU has done all that it was told."""
    for leaf in tree_leaves(result):
        if isinstance(leaf, torch.ScriptObject) and "Work" in str(leaf._type()):
            dist.Work.unbox(leaf).wait()
        elif isinstance(leaf, torch.Tensor):
            torch.ops._c10d_functional.wait_tensor(leaf)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors of nested lists, tuples and dictionaries."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _group(values: tuple) -> dist.ProcessGroup:
    for value in values:
        if isinstance(value, dist.ProcessGroup):
            return value
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return dist.ProcessGroup.unbox(value)
    # The group's name is the last text; a reduction's name comes before it.
    name = [value for value in values if isinstance(value, str)][-1]
    return torch._C._distributed_c10d._resolve_process_group(name)
