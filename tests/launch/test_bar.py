"""`tp.progress`: a bar where the launch was called, and nothing that differs from run to run."""

import os
import pty
import re
import sys
import time

import tp_teach as tp


def work():
    bar = tp.progress(range(20))
    for step in bar:
        time.sleep(0.03)
        bar.note = f"loss {1 / (step + 1):.2f}"
    return step


def test_it_gives_every_item_on_every_rank_and_outside_a_launch():
    def items():
        return list(tp.progress("abc"))

    assert items() == ["a", "b", "c"]
    assert tp.launch(items, world_size=2).values == [["a", "b", "c"]] * 2


def test_a_file_sees_nothing_of_it(capsys):
    tp.launch(lambda: [time.sleep(0.15) for _ in tp.progress(range(2))], world_size=1)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_count_rate_time_left_and_note_and_then_nothing(monkeypatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert tp.launch(work, world_size=2).values == [19, 19]
        shown = os.read(ours, 100_000).decode()
        monkeypatch.undo()
    os.close(ours)
    assert re.search(r"\r\d+ of 20, [\d.]+ a second, \d+ s left, loss 0\.\d\d", shown)
    assert shown.endswith("\r") and not shown.split("\r")[-2].strip(), "the bar was not taken away"
