"""The private folder of a launch, and those that killed launchers had no time to remove."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import forkserver
from pathlib import Path

from tp_teach.launch.interrupts import held

try:
    import fcntl
except ImportError:  # Windows, where nothing is swept
    fcntl = None


@contextmanager
def folder() -> Iterator[str]:
    """A new folder for one launch, removed after it. The system holds its lock as long as this process lives."""
    made = tempfile.TemporaryDirectory(prefix="tp_teach-", ignore_cleanup_errors=True)
    with ExitStack() as clear_up:
        clear_up.callback(made.cleanup)
        new = clear_up.enter_context(open(os.path.join(made.name, "new"), "xb"))
        if fcntl is not None:
            with suppress(OSError):  # some network file systems have no locks
                fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # It gets its name when it is held, so that nobody takes this folder for one left behind.
                os.rename(new.name, os.path.join(made.name, "lock"))
        try:
            yield made.name
        finally:
            with held():
                clear_up.close()


def sweep() -> None:
    """Remove this user's folders whose lock nobody holds."""
    for path in Path(tempfile.gettempdir()).glob("tp_teach-*/lock") if fcntl is not None else ():
        with suppress(OSError), path.open("rb+") as lock:
            if path.parent.stat().st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)


def remove_socket() -> None:
    """In the fork server: remove its socket, with the folder that was made for it."""
    address = forkserver._forkserver._forkserver_address
    with suppress(OSError, TypeError):
        os.unlink(address)
        os.rmdir(os.path.dirname(address))
