"""The exercises of notebook 04: the solution passes, and typical wrong answers get the hint that helps."""

import pytest
import torch
import torch.distributed as dist

from tp_teach.lesson.check import verdict
from tp_teach.lesson.exercises.nb04_seeds import RULES


def generator(seed):
    return torch.Generator().manual_seed(seed)


def own(draw, step):
    return draw(generator(1000 * dist.get_rank() + step))


def by_broadcast(draw, step):
    if dist.get_rank() == 0:
        tokens, labels = draw(generator(step))
    else:
        tokens, labels = torch.empty(32, 8, dtype=torch.long), torch.empty(32, dtype=torch.long)
    dist.broadcast(tokens, src=0)
    dist.broadcast(labels, src=0)
    return tokens, labels


def by_seed(draw, step):
    return draw(generator(step))


def all_read(draw, step):
    tokens, labels = own(draw, step)
    dist.broadcast(tokens, src=0)
    dist.broadcast(labels, src=0)
    return tokens, labels


def tokens_only(draw, step):
    tokens, labels = own(draw, step)
    dist.broadcast(tokens, src=0)
    return tokens, labels


def one_seed(draw, step):
    return draw(generator(0))


def no_labels(draw, step):
    return draw(generator(step))[0]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            (by_broadcast, by_seed),
            "ok: by broadcast 1 read, 2 collectives and 2,304 bytes a step (the batch has 2,304)",
        ),
        ((own, own), "by_broadcast: rank 1 works on other tokens"),
        ((by_broadcast, own), "by_seed: rank 1 works on other tokens"),
        ((tokens_only, by_seed), "other labels"),
        ((all_read, by_seed), "rank 1 reads data as well"),
        ((by_seed, by_seed), "rank 1 reads data as well"),
        ((by_broadcast, all_read), "by_seed: it sends something"),
        ((by_broadcast, one_seed), "steps 0 and 1 get the same batch"),
        ((by_broadcast, no_labels), "return a pair"),
        (by_seed, "a pair of functions"),
    ],
)
def test_same_batch(answer, says):
    said = verdict("same-batch", answer)
    assert says in said and said.startswith("ok") == says.startswith("ok")


RIGHT = {name: right for name, (right, _) in RULES.items()}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (RIGHT, "ok"),
        (RIGHT | {"loss": " Equal"}, "ok"),
        (dict.fromkeys(RULES), "write 'equal' or 'different' for: tokens, embedding"),
        (RIGHT | {"loss": "maybe"}, "for: loss"),
        (RIGHT | {"mask on the stream": "different"}, "7 of 8 are right. Look again at mask on the stream"),
        (dict.fromkeys(RULES, "equal"), "5 of 8 are right. Look again at part of fc1"),
        ({"loss": "equal"}, "a dict with the keys"),
    ],
)
def test_equal_or_different(answer, says):
    said = verdict("equal-or-different", answer)
    assert says in said and (said == "ok") == (says == "ok")


def right_shard(rows, columns):
    return torch.randn(rows, columns).chunk(dist.get_world_size())[dist.get_rank()]


def same_numbers(rows, columns):
    return torch.randn(rows // dist.get_world_size(), columns)


def seed_a_rank(rows, columns):
    torch.manual_seed(dist.get_rank())
    return torch.randn(rows // dist.get_world_size(), columns)


def own_generator(rows, columns):
    return torch.randn(rows // dist.get_world_size(), columns, generator=generator(dist.get_rank()))


def whole(rows, columns):
    return torch.randn(rows, columns)


def columns_instead(rows, columns):
    return torch.randn(rows, columns).chunk(dist.get_world_size(), 1)[dist.get_rank()]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (right_shard, "ok"),
        (same_numbers, "drawn from the same seed"),
        (seed_a_rank, "what the ranks draw next"),
        (own_generator, "not the matrix of one rank"),
        (whole, "rank 0 keeps 4: (4, 6); got (12, 6)"),
        (columns_instead, "got (12, 2)"),
        (lambda rows, columns: None, "got NoneType"),
        (3, "the function itself"),
    ],
)
def test_own_shard(answer, says):
    said = verdict("own-shard", answer)
    assert says in said and (said == "ok") == (says == "ok")
