"""A real IPython kernel, started as Jupyter starts one."""

import os
import re
from pathlib import Path

from jupyter_client.manager import KernelManager

import tp_teach

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Kernel:
    def __init__(self, **variables: str) -> None:
        # Under pytest this variable would tell ipykernel not to watch the output of child processes.
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        environment |= variables
        environment["PYTHONPATH"] = str(Path(tp_teach.__file__).parents[1])
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=environment)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.pid = self.manager.provisioner.pid

    def run(self, cell: str) -> str:
        """What the cell shows: its output, then its traceback."""
        number = self.start(cell)
        return self.finish(number)

    def start(self, cell: str, **metadata: str) -> str:
        if not metadata:
            return self.client.execute(cell)
        content = {"code": cell, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def finish(self, number: str) -> str:
        shown = []
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != number:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                shown.append(content["text"])
            elif kind == "execute_result":
                shown.append(content["data"]["text/plain"])
            elif kind == "error":
                shown.append("\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                return _COLOUR.sub("", "".join(shown)).strip()

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.is_alive():
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
