"""The exercises of notebook 01: the solution passes, and typical wrong answers get the hint that helps."""

import pytest
import torch
import torch.distributed as dist

from tp_teach.lesson.check import verdict


def exchange(give, take):
    rank, n = dist.get_rank(), dist.get_world_size()
    to_right = dist.P2POp(dist.isend, give, (rank + 1) % n)
    from_left = dist.P2POp(dist.irecv, take, (rank - 1) % n)
    for work in dist.batch_isend_irecv([to_right, from_left]):
        work.wait()


def ring(x, steps, first=1):
    """The first half of the ring; rank r ends with chunk r if `first` is 1."""
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.chunk(n)
    arriving = torch.empty_like(chunks[0])
    for step in range(steps):
        exchange(chunks[(rank - first - step) % n], arriving)
        chunks[(rank - first - 1 - step) % n].add_(arriving)
    return chunks[rank]


def right(x):
    return ring(x, dist.get_world_size() - 1).float()


def directly(x):
    """To every rank its chunk: as few bytes as the ring."""
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.chunk(n)
    others = [other for other in range(n) if other != rank]
    arriving = {other: torch.empty_like(chunks[0]) for other in others}
    sends = [dist.isend(chunks[other], other) for other in others]
    for other in others:
        dist.recv(arriving[other], other)
    for work in sends:
        work.wait()
    return chunks[rank] + sum(arriving.values())


def the_stub(x):
    dist.all_reduce(x)
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def whole_arrays(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, passing = x.clone(), x
    for _ in range(n - 1):
        arriving = torch.empty_like(x)
        exchange(passing, arriving)
        total, passing = total + arriving, arriving
    return total.chunk(n)[rank]


def one_step_less(x):
    return ring(x, dist.get_world_size() - 2)


def one_step_more(x):
    return ring(x, dist.get_world_size())


def own_twice(x):
    own = x.chunk(dist.get_world_size())[dist.get_rank()].clone()
    return right(x) + own


def other_chunk(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    ring(x, n - 1, first=0)
    return x.chunk(n)[(rank + 1) % n]


def whole(x):
    ring(x, dist.get_world_size() - 1)
    return x


def always_four(x):
    rank = dist.get_rank()
    chunks = x.chunk(4)
    arriving = torch.empty_like(chunks[0])
    for step in range(3):
        exchange(chunks[(rank - 1 - step) % 4], arriving)
        chunks[(rank - 2 - step) % 4].add_(arriving)
    return chunks[rank]


def no_return(x):
    ring(x, dist.get_world_size() - 1)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (right, "ok: none of 4 ranks sends more than 0.75 arrays"),
        (directly, "ok: none of 4 ranks sends more than 0.75 arrays"),
        (None, "no answer"),
        (7, "the function itself"),
        (the_stub, "`all_reduce` does the work"),
        (whole_arrays, "one of 4 ranks sends 3.00 arrays; 0.75 is enough"),
        (one_step_less, "rank 0 returned a sum in which the numbers of rank"),
        (one_step_more, "one of 4 ranks sends 1.00 arrays; 0.75 is enough"),
        (own_twice, "a chunk to which rank 0's numbers were added 2 times"),
        (other_chunk, "rank 0 returned the sum of chunk 1"),
        (whole, "returned the whole array"),
        (always_four, "with 3 ranks, rank 0 returned the shape (30,)"),
        (no_return, "`return`"),
    ],
)
def test_reduce_scatter(answer, says):
    said = verdict("reduce-scatter", answer)
    assert says in said and said.startswith("ok") == (answer in (right, directly))


MIB = {"all_reduce": 112, "reduce_scatter": 56, "all_gather": 448}
STEPS = {"all_reduce": 14, "reduce_scatter": 7, "all_gather": 7}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((MIB, STEPS), "ok"),
        (MIB, "a pair"),
        ((dict.fromkeys(MIB), STEPS), "all six"),
        (({**MIB, "broadcast": 64}, STEPS), "one number each"),
        (({**MIB, "all_gather": 56}, STEPS), "what each rank brings"),
        (({**MIB, "all_reduce": 128}, STEPS), "n-1 chunks, not n"),
        (({**MIB, "all_reduce": 56}, STEPS), "one half"),
        (({**MIB, "reduce_scatter": 112}, STEPS), "whole all_reduce"),
        (({**MIB, "reduce_scatter": 7}, STEPS), "how large one is"),
        ((MIB, {**STEPS, "all_reduce": 7}), "the steps are not"),
    ],
)
def test_ring_bytes(answer, says):
    said = verdict("ring-bytes", answer)
    assert says in said and (said == "ok") == (says == "ok")
