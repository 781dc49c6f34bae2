"""The comparison of stored outputs can fail: notebooks whose outputs are missing or wrong do not pass."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook, new_output

ROOT = Path(__file__).parents[2]


def test_a_cell_passes_only_with_its_own_output_stored(tmp_path):
    for name, stored in {"right": ["4\n"], "wrong": ["5\n"], "none": []}.items():
        outputs = [new_output("stream", name="stdout", text=text) for text in stored]
        cell = new_code_cell("print(2 + 2)", execution_count=1, outputs=outputs)
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        nbformat.write(new_notebook(cells=[cell], metadata=kernel), tmp_path / f"{name}.ipynb")
    options = "-p conftest --nbval --nbval-current-env -p no:cacheprovider -v --rootdir"
    command = [sys.executable, "-m", "pytest", *options.split(), tmp_path, tmp_path]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    results = dict(re.findall(r"(\w+)::ipynb::Cell 0 (PASSED|FAILED)", printed))
    assert results == {"right": "PASSED", "wrong": "FAILED", "none": "FAILED"}, printed
