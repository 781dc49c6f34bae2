"""What ranks print, shown in the notebook: rank 0 as it prints, then the others in rank order."""

from __future__ import annotations

import re
import sys
from pathlib import Path

# torch's native log, such as `[rank1]:[E1130 06:50:57.925 ProcessGroupGloo.cpp:67] …`.
_NATIVE_LOG = re.compile(r"(\[rank\d+\]:)?\[[IWEF]\d{4} ")


class Output:
    """Reads the files that the ranks print to.

    Rank 0 is shown live. The other ranks wait until the end, so that the order is the same in every run.
    """

    def __init__(self, folder: str, world_size: int) -> None:
        self.folder, self.world_size = Path(folder), world_size
        self.kept: list[list[str]] = [[] for _ in range(world_size)]
        self.read: dict[Path, int] = {}

    def show_rank_0(self) -> None:
        """Print the whole lines that rank 0 has added."""
        self._show(0, whole_lines=True)

    def show_rest(self, failed: bool) -> list[str]:
        """Print what is left, in rank order; after a failure without torch's native log, which repeats it.

        Returns all output, by rank.
        """
        for rank in range(self.world_size):
            self._show(rank, whole_lines=False, hide=_NATIVE_LOG if failed else None)
        return ["".join(lines) for lines in self.kept]

    def _show(self, rank: int, whole_lines: bool, hide: re.Pattern | None = None) -> None:
        for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
            # Errors of rank 0 wait for the end: only then it is known whether the launch failed.
            if name == "err" and whole_lines:
                continue
            lines = self._new_lines(self.folder / f"{rank}.{name}", whole_lines)
            self.kept[rank] += lines
            lines = [line for line in lines if not (hide and hide.match(line))]
            if lines:
                stream.write("".join(f"[rank {rank}] {line}" for line in lines))
                stream.flush()

    def _new_lines(self, path: Path, whole_lines: bool) -> list[str]:
        try:
            with path.open("rb") as file:
                file.seek(self.read.get(path, 0))
                data = file.read()
        except FileNotFoundError:
            return []
        if whole_lines:
            data = data[: data.rfind(b"\n") + 1]
        self.read[path] = self.read.get(path, 0) + len(data)
        lines = data.decode("utf-8", errors="replace").splitlines()
        return [f"{line}\n" for line in lines]
