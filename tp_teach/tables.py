"""The tables of a `Run`: their columns and units, and where a rank writes its rows.

Measured, simulated and predicted runs share these definitions, so this module imports neither torch
nor pandas: a rank needs no pandas, and a prediction needs no torch.

Units: bytes are whole bytes, seconds are seconds, shapes are text such as `(96, 384)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from fractions import Fraction

INTEGER, REAL, TEXT = "Int64", "float64", "string"

TABLES: dict[str, dict[str, str]] = {
    "shards": {
        "rank": INTEGER,
        "parameter": TEXT,
        "placement": TEXT,
        "global_shape": TEXT,
        "local_shape": TEXT,
        "offset": TEXT,
        "dtype": TEXT,
        "local_bytes": INTEGER,
        "global_bytes": INTEGER,
    },
    "comm": {
        "rank": INTEGER,
        "step": INTEGER,
        "index": INTEGER,
        "phase": TEXT,
        "module": TEXT,
        "op": TEXT,
        "group": TEXT,
        "group_size": INTEGER,
        "dtype": TEXT,
        "shape": TEXT,
        "payload_bytes": INTEGER,
        "wire_bytes": INTEGER,
        "seconds": REAL,
    },
    "memory": {
        "rank": INTEGER,
        "step": INTEGER,
        "moment": TEXT,
        "kind": TEXT,
        "bytes": INTEGER,
    },
    "flops": {
        "rank": INTEGER,
        "step": INTEGER,
        "phase": TEXT,
        "module": TEXT,
        "op": TEXT,
        "flops": INTEGER,
    },
    "steps": {
        "rank": INTEGER,
        "step": INTEGER,
        "loss": REAL,
        "grad_norm": REAL,
        "seconds": REAL,
        "tokens": INTEGER,
    },
    "timeline": {
        "rank": INTEGER,
        "name": TEXT,
        "kind": TEXT,
        "start": REAL,
        "seconds": REAL,
    },
}

MOMENTS = ("init", "forward", "backward", "step", "peak")
"""When memory is looked at: before the step, after forward, backward and optimizer, and when it was most."""
KINDS = ("parameters", "gradients", "optimizer", "activations", "temporary")
"""What bytes are for. Beside these, `memory` holds what a CUDA allocator says: allocated and reserved."""


def wire_bytes(op: str, payload_bytes: int, group_size: int) -> int:
    """Bytes that one rank sends when the collective runs as a ring.

    `payload_bytes` follows the convention of nccl-tests (its PERFORMANCE.md, "Bus bandwidth"): the
    full array, so the output of an all_gather and the input of a reduce_scatter. With n ranks, one
    rank sends 2(n-1)/n of the payload in an all_reduce; (n-1)/n in an all_gather, reduce_scatter,
    all_to_all, gather or scatter; all of it in a broadcast, reduce or send; nothing in a recv or a
    barrier. A payload that n does not divide makes unequal ring chunks; the mean over the ranks is
    given, rounded to the nearest byte.

    Raises ValueError for an operation that has no ring formula here.
    """
    n = group_size
    part = Fraction(n - 1, n)
    share = {
        "all_reduce": 2 * part,
        "all_gather": part,
        "reduce_scatter": part,
        "all_to_all": part,
        "gather": part,
        "scatter": part,
        "broadcast": Fraction(min(1, n - 1)),
        "reduce": Fraction(min(1, n - 1)),
        "send": Fraction(1),
        "recv": Fraction(0),
        "barrier": Fraction(0),
    }
    if op not in share:
        raise ValueError(f"op={op!r} has no ring formula; known are {', '.join(share)}")
    return round(share[op] * payload_bytes)


class Log:
    """What one rank wrote down: rows by table, and the configuration it ran with."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.rows: dict[str, list[dict]] = {table: [] for table in TABLES}
        self.config: dict = {}

    def add(self, table: str, rows: Iterable[Mapping]) -> None:
        """Append rows; `rank` is filled in, a column that is left out stays empty.

        Raises ValueError for a column that the table does not have.
        """
        columns = TABLES[table]
        for row in rows:
            unknown = sorted(set(row) - set(columns))
            if unknown:
                raise ValueError(f"table {table!r} has no column {unknown[0]!r}; its columns are {', '.join(columns)}")
            row = {"rank": self.rank, **row}
            # Shards belong to no step: a model that is measured twice holds them once.
            if table != "shards" or row not in self.rows[table]:
                self.rows[table].append(row)


# The log of the rank that runs here. A context variable, not a global: a process that is no rank has
# none, and two ranks in one process (a simulation) would not share one.
current_log: ContextVar[Log | None] = ContextVar("tp_teach_log", default=None)


def record(table: str, rows: Iterable[Mapping]) -> None:
    """Write rows to this rank's log. Outside a launched rank there is no log, and this does nothing."""
    log = current_log.get()
    if log is not None:
        log.add(table, rows)


def record_config(config: Mapping) -> None:
    """Write the configuration to this rank's log, so that a saved run says what it ran."""
    log = current_log.get()
    if log is not None:
        log.config = dict(config)
