"""JupyterLab as a learner has it on a first day, on a copy of the notebooks."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import psutil
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Locator, Page

from tests.launch.processes import wait_until

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "build" / "browser"
NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


class Lab:
    """A running JupyterLab. `folder` holds its notebooks."""

    def __init__(self, process: subprocess.Popen, address: str, folder: Path) -> None:
        self.process = process
        self.address, self.token = address.split("/lab?token=")
        self.folder = folder

    def write(self, name: str, *cells: str) -> None:
        """A notebook of these cells."""
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}}
        notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata=kernel)
        nbformat.write(notebook, self.folder / name)

    def open(self, page: Page, name: str) -> None:
        """Open a notebook, without the tabs of the test before, and wait for its kernel."""
        page.goto(f"{self.address}/lab/tree/{name}?reset&token={self.token}")
        idle(page).wait_for(timeout=60_000)

    def ask(self, method: str, path: str) -> list[dict] | None:
        request = urllib.request.Request(f"{self.address}/api/{path}?token={self.token}", method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or "null")

    def listens(self) -> bool:
        try:
            return self.ask("GET", "status") is not None
        except urllib.error.URLError:
            return False

    def kernel(self) -> int:
        """The process of the one kernel that runs."""
        (kernel,) = (
            one for one in psutil.Process(self.process.pid).children() if "ipykernel_launcher" in one.cmdline()
        )
        return kernel.pid

    def shut_down_kernels(self) -> None:
        for session in self.ask("GET", "sessions"):
            self.ask("DELETE", f"sessions/{session['id']}")


@contextmanager
def running_lab(folder: Path, settings: dict[str, dict]) -> Iterator[Lab]:
    """JupyterLab in a new folder, on loopback, with these settings of its plug-ins."""
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    for name, values in settings.items():
        file = folder / "JUPYTERLAB_SETTINGS_DIR" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    # Without the theme, the open tabs and the settings of whoever runs the tests.
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    environment = {**os.environ, **{name: str(folder / name) for name in folders}}
    # Under pytest this variable would tell ipykernel not to watch the output of child processes.
    environment.pop("PYTEST_CURRENT_TEST", None)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=folder / "notebooks", env=environment, stdout=file, stderr=file, start_new_session=True
        )
    try:
        address = re.compile(r"http://127\.0\.0\.1:\d+/lab\?token=\w+")
        wait_until(lambda: address.search(log.read_text()) or process.poll() is not None, seconds=60)
        found = address.search(log.read_text())
        assert found, log.read_text()
        lab = Lab(process, found[0], folder / "notebooks")
        wait_until(lab.listens)  # the address is printed a moment before
        yield lab
    finally:
        process.terminate()
        process.wait(timeout=30)


def idle(page: Page) -> Locator:
    return page.get_by_text("Python 3 (ipykernel) | Idle")


def choose(page: Page, menu: str, entry: str) -> None:
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.locator(".lm-Menu-itemLabel").get_by_text(entry, exact=True).click()  # its shortcut stands beside it


def cell(page: Page, number: int) -> Locator:
    """The code cell of this number, from 1."""
    return page.locator(".jp-CodeCell").nth(number - 1)


def run_cell(page: Page, number: int) -> Locator:
    cell(page, number).locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    return cell(page, number)


def run_all(page: Page) -> list[str]:
    """Run All, from cleared outputs, until every cell has run or one has stopped the rest by its error: the prompts."""
    choose(page, "Edit", "Clear Outputs of All Cells")
    page.wait_for_function(f"({PROMPTS})().every(prompt => prompt === '[ ]:')")
    choose(page, "Run", "Run All Cells")
    page.wait_for_function(
        f"({PROMPTS})().every((prompt, number) => prompt !== '[*]:' && (number || prompt !== '[ ]:'))",
        timeout=180_000,
        polling=500,  # milliseconds; each drawn frame would cost more than the cells
    )
    idle(page).wait_for(timeout=60_000)
    return page.evaluate(PROMPTS)


PROMPTS = """() => [...document.querySelectorAll(".jp-CodeCell .jp-InputArea-prompt")].map(one => one.textContent)"""
# JupyterLab 4.6 shows an error as what was written to standard error.
ERROR = "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type='application/vnd.jupyter.stderr']"
