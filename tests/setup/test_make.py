"""The Makefile and setup.sh, without installing anything."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
FIRST = "notebooks/00_four_ranks_in_a_cell.ipynb"

# These tests mostly run below `make test`: what that make was told is not for the makes started here.
# The environment that runs the tests stands in for .venv, and nothing is set up.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
MAKE = ["make", "--no-print-directory", "-C", str(ROOT), "SETUP=true", f"BIN={Path(sys.executable).parent}"]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str, **environment: str) -> str:
    command = [*MAKE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**ENVIRONMENT, **environment}, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_style_format_and_order_of_imports():
    make("lint")


def test_help_lists_every_target():
    (phony,) = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"lab", "test", "format", "lint", "clean", "help"} <= set(phony.split())
    assert re.findall(r"^  make ([\w-]+)\s+\w", make("help"), re.MULTILINE) == phony.split()


def test_every_target_that_uses_the_environment_sets_it_up_first():
    for target in ("lab", "test", "slides", "slides-pdf", "site", "lint", "format"):
        assert make("-n", target).splitlines()[0].endswith(" true"), target


def test_arguments_are_passed_on():
    assert make("-n", "test", "ARGS=-k launch").endswith("-m pytest -n 2 -k launch\n")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems open a browser without these variables")
def test_a_browser_is_opened_only_on_a_screen():
    assert "--no-browser" in make("-n", "lab", DISPLAY="", WAYLAND_DISPLAY="")
    assert "--no-browser" not in make("-n", "lab", DISPLAY=":0", WAYLAND_DISPLAY="")
    assert "--no-browser" not in make("-n", "lab", DISPLAY="", WAYLAND_DISPLAY="wayland-0")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def lab(tmp_path):
    """A running `make lab` in a session of its own: its process group and the file with its output."""
    output = tmp_path / "output"
    # Only the user's own Jupyter files are kept away, so that no setting of theirs changes the address.
    environment = {**ENVIRONMENT, "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    environment |= {f"JUPYTER_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    command = [*MAKE, "lab", f"ARGS=--port={free_port()} --no-browser"]
    with output.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
    try:
        yield process, output
    finally:
        if group(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)


def group(leader: int) -> list[psutil.Process]:
    """The living processes of a process group."""
    members = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            pass
    return members


def listening(leader: int) -> set[tuple]:
    """The addresses at which a process group listens."""
    connections = [connection for member in group(leader) for connection in member.net_connections()]
    return {tuple(connection.laddr) for connection in connections if connection.status == psutil.CONN_LISTEN}


def until(condition, seconds: float):
    """The first true value of `condition()`, or its last value when the time is up."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return value


def status(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.skipif(sys.platform == "win32", reason="needs process groups")
def test_lab_serves_the_first_notebook_on_loopback_with_a_token(lab):
    process, output = lab
    address = re.compile(rf"(http://127\.0\.0\.1:(\d+))/lab/tree/{re.escape(FIRST)}\?(token=\w{{20,}})")
    printed = until(lambda: address.search(output.read_text()) or process.poll() is not None, seconds=60)
    assert isinstance(printed, re.Match), output.read_text()
    server, port, token = printed.groups()

    # The address is printed a moment before the server listens there.
    assert until(lambda: ("127.0.0.1", int(port)) in listening(process.pid), seconds=30)
    assert status(printed.group()) == 200
    assert status(f"{server}/api/contents/{FIRST}?content=0&{token}") == 200, f"there is no {FIRST}"
    assert status(f"{server}/api/contents/{FIRST}?content=0") == 403
    assert {host for host, _ in listening(process.pid)} == {"127.0.0.1"}

    os.killpg(process.pid, signal.SIGTERM)
    assert until(lambda: not group(process.pid), seconds=20), "something is left of make lab"


def run_setup(folder: Path, **environment: str) -> subprocess.CompletedProcess:
    shutil.copy(ROOT / "setup.sh", folder)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    command = ["sh", str(folder / "setup.sh")]
    return subprocess.run(command, capture_output=True, text=True, env={**ENVIRONMENT, **environment}, timeout=60)


def stand_in(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_an_unknown_build_is_refused(tmp_path):
    refused = run_setup(tmp_path, TORCH="gpu")
    assert refused.returncode != 0 and refused.stderr == "TORCH=gpu is not one of auto, cpu and cuda.\n"
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("fault", ["sys.version_info = (3, 9)", "sys.modules['ensurepip'] = None", "missing"])
def test_a_python_that_does_not_suit_is_refused_in_one_sentence(tmp_path, fault):
    python = tmp_path / "python"
    if fault != "missing":
        stand_in(python, f"exec '{sys.executable}' -c \"import sys; {fault}; $2\"")
    refused = run_setup(tmp_path, PYTHON=str(python))
    assert refused.returncode != 0 and not (tmp_path / ".venv").exists()
    (sentence,) = refused.stderr.splitlines()
    assert sentence.startswith(f"{python} does not suit: ") and "3.10, 3.11, 3.12 or 3.13" in sentence


# A Python whose `-m venv` makes a .venv with a pip that only notes what it is asked, and fails for the
# requirements named in $FAIL.
RECORDER = """
case "$1 $2" in
    "-c "*) exec '{python}' "$@" ;;
    "-m venv") rm -rf .venv && mkdir -p .venv/bin && cp "$0" .venv/bin/python
        echo "#!$PWD/.venv/bin/python" >.venv/bin/pip ;;
    "-m pip") for last in "$@"; do :; done
        echo "$last" >>"$PWD/asked"
        case " $FAIL " in *" $last "*) exit 1 ;; esac ;;
esac
"""


class Setup:
    """setup.sh in a folder of its own, where making a .venv and installing are only noted."""

    def __init__(self, folder: Path):
        self.folder, self.asked = folder, folder / "asked"
        (folder / "bin").mkdir()
        self.python = stand_in(folder / "bin/python", RECORDER.format(python=sys.executable))

    def __call__(self, fails: str = "", **environment: str) -> list[str]:
        """The requirements that pip was asked for, in order."""
        self.asked.write_text("")
        environment = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "PYTHON": self.python} | environment
        self.done = run_setup(self.folder, FAIL=fails, **environment)
        return [asked for asked in self.asked.read_text().splitlines() if not asked.startswith("pip")]


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path)


def test_the_build_is_chosen(setup):
    cpu, cuda = ["torch==2.13.0+cpu", ".[test]"], ["torch===2.13.0", ".[test]"]
    stand_in(setup.folder / "bin/nvidia-smi", "echo 'No devices found'")
    assert setup(TORCH="auto") == cpu
    assert setup(TORCH="cuda") == cuda
    assert setup(TORCH="cpu") == cpu
    stand_in(setup.folder / "bin/nvidia-smi", "echo 'GPU 0: an NVIDIA GPU (UUID: GPU-0)'")
    assert setup(TORCH="auto") == cuda
    assert setup(TORCH="cuda") == []


def test_without_a_cpu_build_the_standard_one_is_taken(setup):
    assert setup("torch==2.13.0+cpu", TORCH="cpu") == ["torch==2.13.0+cpu", "torch==2.13.0", ".[test]"]
    assert setup.done.returncode == 0 and "no CPU build" in setup.done.stdout


def test_setup_runs_again_only_when_something_changed(setup):
    assert setup(TORCH="cpu") and setup(TORCH="cpu") == []
    stamp = setup.folder / ".venv/installed"
    stamp.write_text(stamp.read_text().replace("cpu ", "cpu 1"))  # as after a pull that changes the pins
    assert setup(TORCH="cpu") and setup(TORCH="cpu") == []
    (setup.folder / ".venv/bin/python").unlink()
    assert setup(TORCH="cpu") and setup(TORCH="cpu") == []
    (setup.folder / ".venv/bin/pip").write_text("#!/elsewhere/.venv/bin/python\n")  # as after moving the folder
    assert setup(TORCH="cpu") and setup(TORCH="cpu") == []


def test_a_failed_install_is_tried_again(setup):
    assert setup(TORCH="cpu")
    assert setup(".[test]", TORCH="cuda") and setup.done.returncode != 0
    assert setup(TORCH="cpu") and setup.done.returncode == 0
