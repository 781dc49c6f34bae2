"""`tp.progress`: a bar where the launch was called, and nothing that differs from run to run."""

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import tp_teach as tp
from tests.launch.kernel import Kernel

PROGRAM = """
import time
import tp_teach as tp

def work():
    bar = tp.progress(range(20))
    for step in bar:
        time.sleep(0.03)
        bar.note = f"loss {1 / (step + 1):.2f}"
    return step

print(tp.launch(work, world_size=2).values)
"""


def test_it_gives_every_item_on_every_rank_and_outside_a_launch():
    def items():
        return list(tp.progress("abc"))

    assert items() == ["a", "b", "c"]
    assert tp.launch(items, world_size=2).values == [["a", "b", "c"]] * 2


def test_a_file_sees_nothing_of_it(capsys):
    tp.launch(lambda: [time.sleep(0.15) for _ in tp.progress(range(2))], world_size=1)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_count_rate_time_left_and_note_and_then_nothing(tmp_path):
    script = tmp_path / "work.py"
    script.write_text(PROGRAM)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(Path(tp.__file__).parents[1])}
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, stderr=theirs, env=environment, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.stdout == b"[19, 19]\n"
    assert re.search(r"\r\d+ of 20, [\d.]+ a second, \d+ s left, loss 0\.\d\d", shown)
    assert shown.endswith("\r") and not shown.split("\r")[-2].strip(), "the bar was not taken away"


def test_a_notebook_stores_the_same_before_and_after():
    kernel = Kernel()
    try:
        kernel.run(PROGRAM.split("\nprint")[0])
        number = kernel.start("run = tp.launch(work, world_size=2)")
        bundles = []
        while True:
            message = kernel.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != number:
                continue
            if message["msg_type"] in ("display_data", "update_display_data"):
                bundles.append(message["content"]["data"])
            if message["content"].get("execution_state") == "idle":
                break
    finally:
        kernel.close()
    assert bundles[0] == bundles[-1] == {"text/plain": "", "text/html": ""}
    drawn = [bundle["text/html"] for bundle in bundles[1:-1]]
    assert any("<progress" in text and "of 20" in text and "loss" in text for text in drawn)
