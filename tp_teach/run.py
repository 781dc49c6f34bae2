"""`Run`: what came home from the ranks, as tidy tables."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tp_teach.tables import TABLES, Log

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1


def world_of(mode: str, devices: Sequence[str], reason: str) -> dict[str, Any]:
    """What `Run.world` holds: mode (nccl, gloo, simulated, predicted), size, devices by rank, reason, versions."""
    versions = {"python": platform.python_version(), "torch": importlib.metadata.version("torch")}
    return {"mode": mode, "size": len(devices), "devices": list(devices), "reason": reason, "versions": versions}


class Run:
    """One run of a function on `world["size"]` ranks: measured, simulated or predicted.

    `run[r]` is what rank r returned and `run.output[r]` what it printed. `shards`, `comm`, `memory`, `flops`,
    `steps` and `timeline` are pandas tables; `tp_teach.tables` names their columns and units. `world`
    says where it ran; see `world_of`.
    """

    def __init__(
        self,
        world: Mapping[str, Any],
        tables: Mapping[str, pd.DataFrame | list[dict]],
        values: Sequence[Any] = (),
        output: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.world = dict(world)
        self.values = list(values)
        self.output = list(output)
        self.config = dict(config or {})
        self._rows = {name: tables.get(name, []) for name in TABLES}

    @cached_property
    def shards(self) -> pd.DataFrame:
        """Who holds what: one row for each rank and parameter."""
        return self._table("shards")

    @cached_property
    def comm(self) -> pd.DataFrame:
        """Which bytes moved: one row for each rank and collective of the measured steps."""
        return self._table("comm")

    @cached_property
    def memory(self) -> pd.DataFrame:
        """How many bytes each rank held: one row for each moment and kind."""
        return self._table("memory")

    @cached_property
    def flops(self) -> pd.DataFrame:
        """How many floating-point operations: one row for each rank, phase, module and kind of operation."""
        return self._table("flops")

    @cached_property
    def steps(self) -> pd.DataFrame:
        """How training went: one row for each rank and recorded step."""
        return self._table("steps")

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """When each rank did what: seconds since the epoch, and how long."""
        return self._table("timeline")

    def _table(self, name: str) -> pd.DataFrame:
        # Most launches return values alone. pandas is imported when the first table is wanted.
        import pandas as pd

        columns = TABLES[name]
        return pd.DataFrame(self._rows[name]).reindex(columns=list(columns)).astype(columns).reset_index(drop=True)

    @classmethod
    def from_logs(
        cls, world: Mapping[str, Any], logs: Sequence[Log], values: Sequence[Any] = (), output: Sequence[str] = ()
    ) -> Run:
        """Join the logs of all ranks, in rank order."""
        tables = {name: [row for log in logs for row in log.rows[name]] for name in TABLES}
        config = next((log.config for log in logs if log.config), {})
        return cls(world, tables, values, output, config)

    def __getitem__(self, rank: int) -> Any:
        if not isinstance(rank, int) or not 0 <= rank < len(self.values):
            raise IndexError(f"rank {rank!r} is not in this run; it has ranks 0 to {len(self.values) - 1}")
        return self.values[rank]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __repr__(self) -> str:
        rows = {name: len(self._rows[name]) for name in TABLES}
        held = ", ".join(f"{name} {count}" for name, count in rows.items() if count) or "none"
        return f"Run: {self.world.get('reason', self.world.get('mode'))}. Rows: {held}."

    def compare(self, other: Run) -> pd.DataFrame:
        """Line two runs up, number by number: columns table, rank, what, here, there, equal.

        Compared are each parameter's local bytes; each phase's, module's and operation's number of collectives,
        payload and ring bytes; each phase's, module's and operation's FLOPs, if both runs state any; and the memory of
        each moment and kind that both runs state. A row that one run lacks counts as 0 there. Times and losses are not
        compared.
        """
        import pandas as pd

        parts = []
        facts = {"shards": _shard_facts, "comm": _comm_facts, "memory": _memory_facts, "flops": _flops_facts}
        for table, make in facts.items():
            here = make(getattr(self, table)).rename(columns={"number": "here"})
            there = make(getattr(other, table)).rename(columns={"number": "there"})
            if table == "flops" and (here.empty or there.empty):
                continue
            joined = here.join(there, how="inner" if table == "memory" else "outer")
            joined = joined.fillna(0).astype("Int64").reset_index()
            joined.insert(0, "table", table)
            parts.append(joined)
        rows = pd.concat(parts, ignore_index=True)
        rows["equal"] = rows["here"] == rows["there"]
        return rows

    def differences(self, other: Run) -> str:
        """`compare` in words: how many numbers differ, and one line for each that does, with the ranks it is true of.

        At most 20 lines are given; the table has them all.
        """
        rows = self.compare(other)
        wrong = rows[~rows["equal"]]
        if wrong.empty:
            return f"All {len(rows)} numbers are equal." if len(rows) else "There is nothing to compare."
        lines = [
            f"{what}: {here} here, {there} there, on {_some_ranks(part['rank'].tolist(), rows['rank'].nunique())}"
            for (what, here, there), part in wrong.groupby(["what", "here", "there"], sort=False)
        ]
        more = [f"and {len(lines) - 20} lines more"] if len(lines) > 20 else []
        return "\n".join([f"{len(wrong)} of {len(rows)} numbers differ.", *lines[:20], *more])

    def save(self, path: str | os.PathLike) -> Path:
        """Write the run as one folder: `run.json` and one Parquet file a table.

        An earlier run in that folder is replaced as a whole. Values are kept where they are plain
        data; the others are named in `run.json` under `values_left_out`.

        Raises ValueError when the folder holds something that is not a saved run, or cannot be written.
        """
        path = Path(path).resolve()  # a link keeps pointing to the folder
        draft = make_draft(path)
        try:
            (draft / "run.json").write_text(json.dumps(self._about(), indent=1) + "\n", encoding="utf-8")
            for name in TABLES:
                getattr(self, name).to_parquet(draft / f"{name}.parquet", index=False)
            draft.chmod(0o777 & ~_umask())
            if path.exists():
                old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
                path.replace(old)
                draft.replace(path)
                shutil.rmtree(old)
            else:
                draft.replace(path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return path

    def _about(self) -> dict:
        plain = {rank: value for rank, value in enumerate(self.values) if _is_plain(value)}
        return {
            "format": FORMAT,
            "world": self.world,
            "config": self.config,
            "values": [plain.get(rank) for rank in range(len(self.values))],
            "values_left_out": [rank for rank in range(len(self.values)) if rank not in plain],
            "output": self.output,
        }


def make_draft(path: Path) -> Path:
    """A new, empty folder beside `path`, in which a run is written before it takes its place.

    Raises ValueError when the folder holds something that is not a saved run, or cannot be written.
    """
    if path.exists() and not _is_saved_run(path):
        raise ValueError(f"path={str(path)!r} exists and is not a saved run; name a new folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise ValueError(f"path={str(path)!r} cannot be written: {error.strerror}; name another folder") from None


def load(path: str | os.PathLike) -> Run:
    """Open a folder that `Run.save` wrote, wherever it was made. Nothing in it is unpickled.

    Raises ValueError when the folder is not a saved run, lacks a table or was written by a newer format.
    """
    import pandas as pd

    path = Path(path)
    try:
        about = json.loads((path / "run.json").read_text(encoding="utf-8"))
    except OSError:
        if not path.exists():
            raise ValueError(f"path={str(path)!r} does not exist; looked at {str(path.absolute())!r}") from None
        raise ValueError(f"path={str(path)!r} is not a saved run: it has no run.json that can be read") from None
    except ValueError:
        raise ValueError(f"path={str(path)!r} is not a saved run: its run.json is not JSON") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else about
        raise ValueError(f"path={str(path)!r} has format {found!r}; this version reads format {FORMAT}")
    absent = [key for key in ("world", "values", "output", "config") if key not in about]
    if absent:
        raise ValueError(f"path={str(path)!r} is not a whole run: run.json says no {absent[0]!r}")
    tables = {}
    for name, columns in TABLES.items():
        try:
            tables[name] = pd.read_parquet(path / f"{name}.parquet")
        except (OSError, ValueError):
            raise ValueError(f"path={str(path)!r} is not a whole run: {name}.parquet cannot be read") from None
        lost = [column for column in columns if column not in tables[name]]
        if lost:
            raise ValueError(f"path={str(path)!r} is not a whole run: {name}.parquet has no column {lost[0]!r}")
    return Run(about["world"], tables, about["values"], about["output"], about["config"])


def _shard_facts(shards: pd.DataFrame) -> pd.DataFrame:
    return _facts(shards.assign(what="local bytes of " + shards["parameter"], number=shards["local_bytes"]))


def _comm_facts(comm: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    where = (comm["phase"].fillna("") + " " + comm["module"].fillna("")).str.strip()
    parts = [
        comm.assign(what=f"{name} " + comm["op"] + ", " + where, number=number)
        for name, number in (("calls of", 1), ("payload of", comm["payload_bytes"]), ("wire of", comm["wire_bytes"]))
    ]
    return _facts(pd.concat(parts))


def _memory_facts(memory: pd.DataFrame) -> pd.DataFrame:
    step = "step " + memory["step"].astype(str)
    return _facts(
        memory.assign(what=memory["kind"] + " at " + memory["moment"] + " of " + step, number=memory["bytes"])
    )


def _flops_facts(flops: pd.DataFrame) -> pd.DataFrame:
    where = (flops["phase"].fillna("") + " " + flops["module"].fillna("")).str.strip()
    return _facts(flops.assign(what="FLOPs of " + flops["op"] + ", " + where, number=flops["flops"]))


def _facts(table: pd.DataFrame) -> pd.DataFrame:
    return table.groupby(["rank", "what"])[["number"]].sum()


def _some_ranks(ranks: list[int], world_size: int) -> str:
    if len(ranks) == world_size > 1:
        return "every rank"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _is_plain(value: Any) -> bool:
    if value is None or isinstance(value, bool | int | float | str):
        return True
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return False


def _is_saved_run(path: Path) -> bool:
    """Whether the folder holds a run and nothing else, so that nothing is lost when it is replaced; or nothing."""
    ours = {"run.json", *(f"{name}.parquet" for name in TABLES)}
    return path.is_dir() and {entry.name for entry in path.iterdir()} <= ours


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
