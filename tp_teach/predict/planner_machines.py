"""`Machine`: what the planner must know of hardware, with the machines it knows by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import Any

from tp_teach.predict.papers import collective_seconds


@dataclass(frozen=True)
class Link:
    """How ranks reach each other: seconds to start a collective, seconds a step of its ring, bus bandwidth (bytes/s).

    The bus bandwidth is that of nccl-tests (PERFORMANCE.md): the ring bytes that one rank sends, over time.
    """

    start: float
    hop: float
    bus: float

    def latency(self, op: str, ranks: int) -> float:
        """Seconds that do not depend on the size: start + hop x steps, 2(n-1) in an all_reduce, n-1 in the others.

        The form is that of NCCL's own tuning model, src/graph/tuning.cc.
        """
        if ranks == 1:
            return 0.0
        return self.start + self.hop * (ranks - 1) * (2 if op == "all_reduce" else 1)

    def seconds(self, op: str, payload_bytes: int, ranks: int) -> float:
        """Seconds of one collective, alpha and beta. Its payload is the full array."""
        return collective_seconds(op, payload_bytes, ranks, self.latency(op, ranks), self.bus)


@dataclass(frozen=True)
class Machine:
    """One machine, or many of one kind. Rates are of one rank, in operations or bytes a second.

    `matmul` holds pairs of a product's operations and the rate at that size, from small to large. `memory` is what one
    rank may hold, in bytes; `memory_speed` what arithmetic between the products reads and writes, `update_speed` what
    the optimizer does, where that was measured by itself. `link` joins the `node` ranks of a machine, `network`
    machines. `peak` and `cable` are what the vendor prints, in operations and bytes a second. `layer_seconds` and
    `step_seconds` are what a layer and a step cost in Python, whatever their size.
    """

    name: str
    dtype: str
    matmul: tuple[tuple[float, float], ...]
    memory: float
    memory_speed: float
    node: int
    link: Link
    network: Link | None = None
    peak: float | None = None
    cable: float | None = None
    update_speed: float | None = None
    layer_seconds: float = 0.0
    step_seconds: float = 0.0
    sources: tuple[str, ...] = ()

    def rate(self, operations: float) -> float:
        """Operations a second in a product of so many operations: linear between measured sizes, level beyond."""
        if operations <= self.matmul[0][0]:
            return self.matmul[0][1]
        for (small, slow), (large, fast) in pairwise(self.matmul):
            if operations <= large:
                return slow + (fast - slow) * (operations - small) / (large - small)
        return self.matmul[-1][1]

    def joins(self, ranks: int) -> Link:
        """What joins so many neighbouring ranks. Raises ValueError where they are more than the machine has."""
        if ranks <= self.node:
            return self.link
        if self.network is None:
            raise ValueError(f"{ranks} ranks are more than {self.name} has; use at most {self.node}")
        return self.network


def machine(name: str) -> Machine:
    """A machine by name, upper or lower case. Raises ValueError for an unknown name, with the known ones."""
    table = data()
    row = table["machines"].get(name.lower()) if isinstance(name, str) else None
    if row is None:
        known = ", ".join(map(repr, table["machines"]))
        raise ValueError(f"hardware={name!r} is not known; use {known}, or what tp.calibrate returns")
    share, giga, micro = table["matmul_share"], 1e9, 1e-6
    network = None
    if "network_gbytes_per_s" in row:
        starts = row["network_start_us"] * micro, row["network_hop_us"] * micro
        network = Link(*starts, row["network_gbytes_per_s"] * giga)
    return Machine(
        name=row["gpu"],
        dtype="bfloat16",
        matmul=((1.0, share["value"] * row["matmul_tflops"] * 1e12),),
        memory=row["memory_gb"] * giga,
        memory_speed=row["memory_gbytes_per_s"] * giga,
        node=row["ranks_per_node"],
        link=Link(row["start_us"] * micro, row["hop_us"] * micro, row["bus_gbytes_per_s"] * giga),
        network=network,
        peak=row["tflops"] * 1e12,
        cable=row["link_gbytes_per_s"] * giga,
        sources=(*row["sources"], f"{share['value']} of matmul_tflops: {share['source']}"),
    )


def data() -> dict[str, Any]:
    """The file machines.json: machines by name, each number with its source, and what vendors recommend."""
    text = (resources.files("tp_teach.predict") / "data" / "machines.json").read_text(encoding="utf-8")
    return json.loads(text)
