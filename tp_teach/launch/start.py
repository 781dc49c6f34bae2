"""A rank's first lines: they load the rest of tp_teach and say so when it does not load.

They and the fork server's own modules are the only ones that an edit does not reach before the server starts anew.
"""

import os
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

HOME = os.path.dirname(os.path.dirname(__file__))
"""The folder of this tp_teach."""


def enter(rank: int, line: Connection, lifeline: Connection, home: str, options: dict[str, Any]) -> None:
    """The body of a rank's process. `home` is the launcher's `HOME`, `options` the fields of `LaunchOptions`."""
    preload = sys.modules.get("tp_teach.launch.preload")
    if preload is not None and (home != HOME or preload.edited()):
        preload.forget()
    try:
        from tp_teach.launch import worker

        told = worker.LaunchOptions(**options)
    except BaseException as error:
        where = traceback.format_exception_only(error)[:-1] or traceback.format_tb(error.__traceback__)[-1:]
        # Plain data: the classes for a failure may be what does not load.
        line.send((f"could not load tp_teach: {type(error).__name__}: {error}", "".join(where).rstrip()))
        return
    worker.main(rank, line, lifeline, told)
