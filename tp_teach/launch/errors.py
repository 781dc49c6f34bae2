"""What a launch raises when a rank fails. The first line of each message says it all."""

from __future__ import annotations

import signal


class LaunchError(RuntimeError):
    """A launch that brought no result home. In a notebook only its message is shown, not the launcher's frames."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class RankFailed(LaunchError):
    """One rank raised, or ended without an answer.

    `rank` is that rank, `error` the name of the exception's class (None if the process ended), `reason` the
    exception's text or what ended the process, `traceback` the rank's own lines, `others` what the others did.
    """

    def __init__(self, rank: int, reason: str, error: str | None = None, traceback: str = "", others: str = "") -> None:
        self.rank, self.reason, self.error = rank, reason, error
        self.traceback, self.others = traceback, others
        first = f"rank {rank} raised {error}{f': {reason}' if reason else ''}" if error else f"rank {rank} {reason}"
        super().__init__("\n".join(part for part in (first, traceback, others) if part))

    def __reduce__(self) -> tuple:
        return type(self), (self.rank, self.reason, self.error, self.traceback, self.others)


class RanksStuck(LaunchError):
    """Some ranks waited for others longer than the timeout.

    `states` says where each rank stood: a list of `RankState`, by rank. `missing` are the ranks that were waited for.
    """

    def __init__(self, states: list, timeout: float) -> None:
        self.states, self.timeout = states, timeout
        self.missing = [state.rank for state in states if not state.waits_in]
        waiting = [state.rank for state in states if state.waits_in]
        if self.missing and waiting:
            first = f"{ranks(waiting)} waited {timeout:g} s for {ranks(self.missing)}"
        else:
            first = f"the ranks waited {timeout:g} s, but did not meet in one call"
        width = max(len(state.doing) for state in states)
        table = "\n".join(f"  rank {s.rank}  {s.doing:<{width}}  {s.line}".rstrip() for s in states)
        super().__init__(f"{first}\n{table}")

    def __reduce__(self) -> tuple:
        return type(self), (self.states, self.timeout)


def meanwhile(states: list) -> str:
    """One line that says what ranks did: `meanwhile: ranks 0 and 1 waited in barrier, rank 3 had returned`."""
    groups: dict[str, list[int]] = {}
    for state in states:
        groups.setdefault(state.did, []).append(state.rank)
    return "meanwhile: " + ", ".join(f"{ranks(who)} {did}" for did, who in groups.items()) if groups else ""


def ranks(numbers: list[int]) -> str:
    """`rank 2`, `ranks 0 and 3`, `ranks 0, 1 and 3`."""
    words = [str(number) for number in numbers]
    if len(words) == 1:
        return f"rank {words[0]}"
    return f"ranks {', '.join(words[:-1])} and {words[-1]}"


def why_ended(exitcode: int, check: bool) -> str:
    """What ended a process that left no report, in words; `check` says whether torch compared collectives."""
    if exitcode == 255:
        return "ended without an answer, and the fork server that it came from is gone too, or it exited with code 255"
    if exitcode >= 0:
        return f"ended without an answer, with exit code {exitcode}: something in it called exit"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    meaning = {
        "SIGKILL": "someone killed it, or the system did because memory ran out",
        "SIGSEGV": "native code touched memory that is not its own"
        # torch 2.13: DETAIL checks and DistributedDataParallel together, even in one process
        + (
            "; torch's checks of collectives do that under DistributedDataParallel, so try check=False" if check else ""
        ),
        "SIGABRT": "native code gave up; often a collective that did not fit its peers",
        "SIGTERM": "someone asked it to end",
    }.get(name)
    return f"was ended by {name}" + (f": {meaning}" if meaning else "")
