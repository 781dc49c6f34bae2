"""The ring figure is the ring: who sends what, what the ranks hold, and that the sums come out."""

from __future__ import annotations

import pytest

from tp_teach.plot import ring
from tp_teach.plot.ring_data import steps_of

from .measure import faults, texts


def play(n, op, chunks):
    """Numbers sent as the steps say, each rank knowing only what it has and what arrives."""
    held = [list(row) for row in chunks]
    for step in steps_of(n, op)[1:]:
        sent = [(move.receiver, move.chunk, held[move.sender][move.chunk]) for move in step.moves]
        for receiver, chunk, number in sent:
            held[receiver][chunk] = number + (held[receiver][chunk] if step.phase == "reduce_scatter" else 0)
    return held


@pytest.mark.parametrize("n", range(2, 9))
def test_following_the_steps_gives_the_sums(n):
    chunks = [[10**rank * (chunk + 1) for chunk in range(n)] for rank in range(n)]
    sums = [sum(column) for column in zip(*chunks, strict=True)]
    assert play(n, "all_reduce", chunks) == [sums] * n
    scattered = play(n, "reduce_scatter", chunks)
    assert [scattered[rank][rank] for rank in range(n)] == sums
    own = [[sums[chunk] if chunk == rank else None for chunk in range(n)] for rank in range(n)]
    assert play(n, "all_gather", own) == [sums] * n


@pytest.mark.parametrize("n", range(2, 9))
def test_every_rank_sends_and_receives_once_a_step(n):
    for op, count in (("all_reduce", 2 * (n - 1)), ("reduce_scatter", n - 1), ("all_gather", n - 1)):
        steps = steps_of(n, op)
        assert len(steps) - 1 == count
        for step in steps[1:]:
            assert [move.sender for move in step.moves] == list(range(n))
            assert sorted(move.receiver for move in step.moves) == list(range(n))


@pytest.mark.parametrize("n, step", [(2, None), (3, None), (4, None), (8, None), (3, 2), (4, 1), (8, 9)])
def test_it_can_be_read(n, step):
    assert faults(ring(n, step=step)) == []


@pytest.mark.parametrize("op", ["reduce_scatter", "all_gather"])
def test_one_half_of_it_can_be_read(op):
    picture = ring(4, op)
    assert faults(picture) == []
    other = {"reduce_scatter": "all_gather", "all_gather": "reduce_scatter"}[op]
    assert not any(other in words for words, _, _ in texts(picture))


def test_alt_text_says_who_sends_what():
    assert "Steps 1 to 3, reduce_scatter: rank 0 sends chunks 3, 2 and 1 to rank 1, which adds it" in ring(4).alt
    assert ring(3, step=1).alt == (
        "Ring all_reduce with 3 ranks, step 1 of 4, reduce_scatter: rank 0 sends chunk 2 to rank 1, "
        "rank 1 sends chunk 0 to rank 2 and rank 2 sends chunk 1 to rank 0."
    )


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="n=9 does not work; use a whole number of ranks from 2 to 8"):
        ring(9)
    with pytest.raises(ValueError, match="op='reduce' has no ring here; use 'all_reduce', "):
        ring(4, "reduce")
    with pytest.raises(ValueError, match="step=7 is not in a ring all_reduce of 4 ranks; its steps are 1 to 6"):
        ring(4, step=7)
