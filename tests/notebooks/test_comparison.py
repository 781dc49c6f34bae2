"""The comparison of stored outputs can fail: notebooks whose outputs are missing or wrong do not pass."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("stored", "passes"),
    [(["4\n"], True), (["5\n"], False), ([], False)],
    ids=["right output", "wrong output", "no output stored"],
)
def test_a_cell_passes_only_with_its_own_output_stored(tmp_path, stored, passes):
    outputs = [new_output("stream", name="stdout", text=text) for text in stored]
    cell = new_code_cell("print(2 + 2)", execution_count=1, outputs=outputs)
    notebook = new_notebook(cells=[cell], metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    nbformat.write(notebook, tmp_path / "one.ipynb")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "conftest",
        "--nbval",
        "--nbval-current-env",
        "-p",
        "no:cacheprovider",
    ]
    result = subprocess.run([*command, "--rootdir", tmp_path, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert "1 passed" in result.stdout if passes else "1 failed" in result.stdout, result.stdout
