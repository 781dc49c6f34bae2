"""Exercises of notebook 04, Same batch, right seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tp_teach.launch import launch
from tp_teach.lesson.check import Solved
from tp_teach.measure import measure

Batch = tuple[torch.Tensor, torch.Tensor]
Loader = Callable[[Callable[[torch.Generator], Batch], int], Batch]
RANKS = 3
BATCH, LENGTH, VOCAB, CLASSES = 32, 8, 256, 10


def draw(generator: torch.Generator) -> Batch:
    """32 samples of 8 tokens; the first token decides the label."""
    tokens = torch.randint(VOCAB, (BATCH, LENGTH), generator=generator)
    return tokens, tokens[:, 0] % CLASSES


def same_batch(answer: tuple[Loader, Loader]) -> str | None:
    """Give all ranks one batch in two ways: rank 0 reads and broadcasts, or every rank reads the same."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(map(callable, answer)):
        return "the answer is a pair of functions, `(by_broadcast, by_seed)`"
    run = launch(_load, answer, world_size=RANKS, timeout=5, check=False)
    for number, name in enumerate(("by_broadcast", "by_seed")):
        hint = _about_batches([told[number] for told in run])
        if hint:
            return f"{name}: {hint}"
    sent = run.comm[run.comm["rank"] == 0].groupby("step")["payload_bytes"].agg(["count", "sum"])
    if run[1][0]["reads"]:
        return "by_broadcast: rank 1 reads data as well; only rank 0 needs to, the others receive"
    if 1 in sent.index:
        return "by_seed: it sends something; ranks that read the same batch need no collective"
    calls, size = sent.loc[0]
    least = BATCH * (LENGTH + 1) * 8
    return Solved(
        f"by broadcast 1 read, {calls} collective{'' if calls == 1 else 's'} and {size:,} bytes a step "
        f"(the batch has {least:,}); by seed {RANKS} reads and no byte"
    )


def _load(loaders: tuple[Loader, Loader]) -> list[dict[str, Any]]:
    told = []
    for number, loader in enumerate(loaders):
        reads = []

        def counted(generator: torch.Generator, reads: list = reads) -> Batch:
            reads.append(1)
            return draw(generator)

        with measure(nn.Identity(), step=number):
            first = loader(counted, 0)
        told.append({"batches": [first, loader(counted, 1)], "reads": len(reads)})
    return told


def _about_batches(told: list[dict[str, Any]]) -> str | None:
    for rank, one in enumerate(told):
        for batch in one["batches"]:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                return f"rank {rank} returned {type(batch).__name__}; return a pair, tokens and labels"
            shapes = [tuple(getattr(tensor, "shape", ())) for tensor in batch]
            if shapes != [(BATCH, LENGTH), (BATCH,)]:
                return f"rank {rank} has tokens {shapes[0]} and labels {shapes[1]}; they are (32, 8) and (32,)"
    for rank, one in enumerate(told):
        for (tokens, labels), (others, theirs) in zip(told[0]["batches"], one["batches"], strict=True):
            if not torch.equal(tokens, others):
                return f"rank {rank} works on other tokens than rank 0"
            if not torch.equal(labels, theirs):
                return f"rank {rank} has rank 0's tokens with other labels; a batch is both"
    tokens, labels = told[0]["batches"][0]
    if not torch.equal(tokens[:, 0] % CLASSES, labels):
        return "the labels do not belong to the tokens; hand on what `draw` gave, unchanged"
    if torch.equal(tokens, told[0]["batches"][1][0]):
        return "steps 0 and 1 get the same batch; what a rank reads has to depend on the step"
    return None


EQUAL, DIFFERENT = "equal", "different"
RULES = {
    "tokens": (EQUAL, "one group of ranks works on one batch together"),
    "embedding": (EQUAL, "it is not cut, so every rank holds a copy of one matrix"),
    "part of fc1": (DIFFERENT, "the parts are different rows of one matrix"),
    "norm's optimizer state": (EQUAL, "copies stay equal only if they are moved alike"),
    "mask on the stream": (EQUAL, "the stream is the same on all ranks, so what is dropped from it must be too"),
    "mask on the hidden part": (DIFFERENT, "ranks hold different hidden features, which are dropped independently"),
    "gradient of fc2's part": (DIFFERENT, "it belongs to this rank's columns alone"),
    "loss": (EQUAL, "all ranks hold the same output and the same labels"),
}


def equal_or_different(answer: dict[str, str | None]) -> str | None:
    """Say of eight things whether the ranks must hold them equal or different."""
    if not isinstance(answer, dict) or set(answer) != set(RULES):
        return f"the answer is a dict with the keys {', '.join(RULES)}"
    given = {name: value.strip().lower() if isinstance(value, str) else value for name, value in answer.items()}
    blank = [name for name, value in given.items() if value not in (EQUAL, DIFFERENT)]
    if blank:
        return f"write 'equal' or 'different' for: {', '.join(blank)}"
    wrong = [name for name, (right, _) in RULES.items() if given[name] != right]
    if wrong:
        return f"{len(RULES) - len(wrong)} of {len(RULES)} are right. Look again at {wrong[0]}: {RULES[wrong[0]][1]}"
    return None


def own_shard(answer: Callable[[int, int], torch.Tensor]) -> str | None:
    """Each rank makes its rows of one matrix, and leaves the ranks' random numbers in step."""
    if not callable(answer):
        return "pass the function itself, `own_shard`"
    (whole, _), *_ = launch(_make_part, answer, world_size=1, timeout=5, check=False)
    run = launch(_make_part, answer, world_size=RANKS, timeout=5, check=False)
    parts, later = zip(*run, strict=True)
    rows, columns = 12, 6
    for rank, part in enumerate(parts):
        if not isinstance(part, torch.Tensor) or tuple(part.shape) != (rows // RANKS, columns):
            got = tuple(part.shape) if isinstance(part, torch.Tensor) else type(part).__name__
            return (
                f"of {rows} rows on {RANKS} ranks, rank {rank} keeps {rows // RANKS}: ({rows // RANKS}, 6); got {got}"
            )
    if all(torch.equal(part, parts[0]) for part in parts):
        return "all parts are the same numbers, drawn from the same seed"
    if len(set(later)) > 1:
        return "the parts differ, but so does what the ranks draw next, such as a head that is a copy on all of them"
    if not torch.equal(torch.cat(parts), whole):
        return f"the parts of {RANKS} ranks are not the matrix of one rank; draw the whole, and keep this rank's rows"
    return None


def _make_part(answer: Callable[[int, int], torch.Tensor]) -> tuple[torch.Tensor, float]:
    torch.manual_seed(7)
    dist.barrier()
    return answer(12, 6), torch.rand(()).item()


EXERCISES = {"same-batch": same_batch, "equal-or-different": equal_or_different, "own-shard": own_shard}
