"""What ranks print, shown where the launch was called: rank 0 as it prints, then the others in rank order."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Literal, TextIO

# torch's native log, such as `[rank1]:[E1130 06:50:57.925 ProcessGroupGloo.cpp:67] …`.
_NATIVE_LOG = re.compile(r"(\[rank\d+\]:)?\[[IWEF]\d{4} ")
# Those of the figures, as near as a terminal's own colours come: blue, yellow, red, magenta, green, cyan.
_COLOURS = (34, 33, 31, 35, 32, 36)
MOST_LINES = 1000
"""Lines shown of one rank in one launch; the rest is kept in `Run.output`."""

Show = Literal["all", "rank0", "none"]


class Output:
    """Reads the files that the ranks print to.

    Rank 0 is shown live. The other ranks wait until the end, so that the order is the same in every run. `first` is
    the number that the first of them is called by.
    """

    def __init__(self, folder: str, world_size: int, show: Show, first: int = 0) -> None:
        self.folder, self.world_size, self.first = Path(folder), world_size, first
        self.shown = {"all": range(world_size), "rank0": range(1), "none": range(0)}[show]
        self.read: dict[Path, int] = {}
        self.kept: list[list[str]] = [[] for _ in range(world_size)]

    def show_rank_0(self) -> None:
        """Print the whole lines that rank 0 has added."""
        self._take(0, "out", sys.stdout, whole_lines=True)

    def show_rest(self, failed: bool) -> list[str]:
        """Print what is left, in rank order; after a failure without torch's native log, which repeats it.

        Returns all output since the last time, by rank.
        """
        for rank in range(self.world_size):
            self._take(rank, "out", sys.stdout)
            # Errors wait for the end: only then it is known whether the launch failed.
            self._take(rank, "err", sys.stderr, hide=_NATIVE_LOG if failed else None)
            more = len(self.kept[rank]) - MOST_LINES
            if rank in self.shown and more > 0:
                _print(self.first + rank, sys.stdout, [f"… and {more:,} lines more, in .output[{rank}] of the run\n"])
        kept, self.kept = self.kept, [[] for _ in range(self.world_size)]
        return ["".join(lines) for lines in kept]

    def _take(
        self, rank: int, name: str, stream: TextIO, whole_lines: bool = False, hide: re.Pattern | None = None
    ) -> None:
        lines = self._new_lines(self.folder / f"{rank}.{name}", whole_lines)
        room = max(0, MOST_LINES - len(self.kept[rank]))
        self.kept[rank] += lines
        if rank in self.shown:
            _print(self.first + rank, stream, [line for line in lines[:room] if not (hide and hide.match(line))])

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
        text = data.decode("utf-8", errors="replace")
        # Not splitlines(), which also cuts at the carriage returns of a progress bar.
        return [f"{line}\n" for line in text.removesuffix("\n").split("\n")] if text else []


def _print(rank: int, stream: TextIO, lines: list[str]) -> None:
    if not lines:
        return
    # A notebook's stream is no terminal, but it shows colours.
    colours = stream.isatty() or type(stream).__module__.startswith("ipykernel")
    prefix = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m[rank {rank}]\x1b[0m" if colours else f"[rank {rank}]"
    text = "".join(f"{prefix} {line}" for line in lines)
    try:
        stream.write(text)
    except UnicodeEncodeError:
        stream.write(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding))
    stream.flush()
