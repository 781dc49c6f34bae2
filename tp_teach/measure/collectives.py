"""Read one dispatched torch operation as a collective: its name, group, shape, dtype and payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

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

    `payload_bytes` is the full array: the output of an all_gather, the input of a reduce_scatter.
    """

    op: str
    ranks: tuple[int, ...]
    dtype: str
    shape: str
    payload_bytes: int


def read(func: Any, args: tuple, kwargs: dict) -> Collective | None:
    """The collective that `func(*args, **kwargs)` is, or None for any other operation.

    Raises NotImplementedError for a communication operation that is not known here, rather than miss its bytes.
    """
    if func.namespace not in NAMESPACES:
        return None
    name = func._opname.strip("_").removesuffix("_coalesced")
    if func._opname in _NOT_COLLECTIVES:
        return None
    op = _NAMES.get(name, name)
    if op not in _KNOWN:
        raise NotImplementedError(f"tp.measure does not know the communication operation {func}")
    ranks = tuple(dist.get_process_group_ranks(_group((*args, *kwargs.values()))))
    if op == "barrier":
        return Collective(op, ranks, "", "", 0)
    if func.namespace == "c10d" and op in _OUTPUT_FIRST:
        into, given = _tensors(args[0]), _tensors(args[1])
    else:
        into, given = [], _tensors(args[0])
    payload = _bytes(given)
    if op in ("all_gather", "gather"):
        # The functional form makes its output itself; only the root of a gather has one.
        payload = _bytes(into) or payload * len(ranks)
    elif op == "scatter":
        payload = payload or _bytes(into) * len(ranks)
    first = (given or into)[0]
    return Collective(op, ranks, str(first.dtype).removeprefix("torch."), str(tuple(first.shape)), payload)


def _tensors(tree: Any) -> list[torch.Tensor]:
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
