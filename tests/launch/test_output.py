"""What ranks print arrives here: by rank, in rank order, whole."""

import contextlib
import io
import os
import sys

import pytest
import torch.distributed as dist

import tp_teach as tp


def test_lines_arrive_prefixed_and_in_rank_order(capsys):
    def speak():
        # The last rank speaks first.
        for turn in reversed(range(dist.get_world_size())):
            if turn == dist.get_rank():
                print("rank", turn)
                print("again")
            dist.barrier()

    run = tp.launch(speak, world_size=3)
    expected = "".join(f"[rank {rank}] rank {rank}\n[rank {rank}] again\n" for rank in range(3))
    assert capsys.readouterr().out == expected
    assert run.output == [f"rank {rank}\nagain\n" for rank in range(3)]


def test_native_output_and_output_of_children_arrive(capsys):
    def native():
        os.write(1, b"native\n")
        os.system("echo child")

    tp.launch(native, world_size=1)
    assert capsys.readouterr().out == "[rank 0] native\n[rank 0] child\n"


def test_errors_go_to_the_error_stream(capsys):
    tp.launch(lambda: print("careful", file=sys.stderr), world_size=1)
    assert capsys.readouterr() == ("", "[rank 0] careful\n")


def test_a_long_line_without_an_end_arrives_whole(capsys):
    def long_line():
        sys.stdout.write("x" * 1_000_000)

    tp.launch(long_line, world_size=2)
    assert capsys.readouterr().out == "".join(f"[rank {rank}] {'x' * 1_000_000}\n" for rank in range(2))


def test_any_alphabet_arrives(capsys):
    tp.launch(lambda: print("π é 日本 🙂"), world_size=1)
    assert capsys.readouterr().out == "[rank 0] π é 日本 🙂\n"


def test_rank_0_is_heard_while_it_works(tmp_path):
    heard = tmp_path / "heard"

    class Ear(io.StringIO):
        def write(self, text):
            heard.touch()
            return super().write(text)

    def speak_then_wait():
        print("are you there?")
        while not heard.exists():
            pass
        return True

    with contextlib.redirect_stdout(Ear()):
        assert tp.launch(speak_then_wait, world_size=2).values == [True, True]


def test_what_was_printed_before_a_failure_is_shown(capsys):
    def speak_and_fail():
        print("so far", dist.get_rank())
        dist.barrier()
        raise ValueError("no further")

    with pytest.raises(tp.RankFailed):
        tp.launch(speak_and_fail, world_size=2)
    assert capsys.readouterr().out == "[rank 0] so far 0\n[rank 1] so far 1\n"


def test_a_rank_may_close_its_output(capsys):
    def close():
        print("last words")
        sys.stdout.flush()
        os.close(1)
        return "still here"

    assert tp.launch(close, world_size=1).values == ["still here"]
    assert capsys.readouterr().out == "[rank 0] last words\n"


@pytest.mark.parametrize("fails", [True, False])
def test_torchs_native_log_is_hidden_only_after_a_failure(capsys, fails):
    line = "[rank0]:[E1130 06:50:57.925 ProcessGroupGloo.cpp:67] Rank 0 could not"

    def log():
        os.write(2, f"{line}\nown words\n".encode())
        if fails:
            raise ValueError("failed")

    with contextlib.suppress(tp.RankFailed):
        tp.launch(log, world_size=1)
    expected = ["own words"] if fails else [line, "own words"]
    assert capsys.readouterr().err.splitlines() == [f"[rank 0] {text}" for text in expected]


@pytest.mark.parametrize(("show", "shown"), [("all", [0, 1]), ("rank0", [0]), ("none", [])])
def test_show_says_whose_output_is_shown_and_all_is_kept(capsys, show, shown):
    run = tp.launch(lambda: print("here"), world_size=2, show=show)
    assert capsys.readouterr().out == "".join(f"[rank {rank}] here\n" for rank in shown)
    assert run.output == ["here\n", "here\n"]


def test_very_long_output_is_cut_with_a_count(capsys):
    run = tp.launch(lambda: print("\n".join(map(str, range(1500)))), world_size=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[999] == "[rank 0] 999" and lines[1000:] == ["[rank 0] … and 500 lines more, in .output[0] of the run"]
    assert run.output[0].splitlines() == list(map(str, range(1500)))
