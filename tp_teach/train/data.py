"""Batches: made on rank 0 alone, then broadcast, because tensor-parallel ranks must all see the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader, Dataset, RandomSampler

from tp_teach.model.config import TrainConfig

Batch = tuple[torch.Tensor, torch.Tensor]


class RandomTextDataset(Dataset):
    """Random tokens with random labels. Sample `index` depends on the seed and the index alone."""

    def __init__(self, num_samples: int, seq_len: int, vocab_size: int, num_classes: int, seed: int = 1234) -> None:
        self.num_samples, self.seq_len = num_samples, seq_len
        self.vocab_size, self.num_classes, self.seed = vocab_size, num_classes, seed

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Batch:
        """Tokens (seq_len,) and a label (), both int64."""
        if not 0 <= index < self.num_samples:
            raise IndexError(f"index={index} is not in a data set of {self.num_samples} samples")
        return self.sample(torch.Generator().manual_seed((self.seed * 1_000_003 + index) % 2**63))

    def sample(self, generator: torch.Generator) -> Batch:
        """One sample, from this generator's numbers alone."""
        tokens = torch.randint(self.vocab_size, (self.seq_len,), generator=generator)
        return tokens, self.label(tokens, generator)

    def label(self, tokens: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """A label that the tokens do not tell."""
        return torch.randint(self.num_classes, (), generator=generator)


class FirstTokenDataset(RandomTextDataset):
    """The same tokens; the first one decides the label. The model can learn it, because it pools the first token.

    A fixed table, drawn from the seed, gives each token its class.
    """

    def __init__(self, num_samples: int, seq_len: int, vocab_size: int, num_classes: int, seed: int = 1234) -> None:
        super().__init__(num_samples, seq_len, vocab_size, num_classes, seed)
        generator = torch.Generator().manual_seed(seed)
        self.class_of = torch.randint(num_classes, (vocab_size,), generator=generator)

    def label(self, tokens: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """The class of the first token."""
        return self.class_of[tokens[0]].clone()


class ContinuedTextDataset(RandomTextDataset):
    """For a decoder: text whose labels are its next tokens. The text is random, so nothing can be learned."""

    def sample(self, generator: torch.Generator) -> Batch:
        """Tokens (seq_len,) and the token after each (seq_len,), both int64."""
        text = self.text(generator)
        return text[:-1].clone(), text[1:].clone()

    def text(self, generator: torch.Generator) -> torch.Tensor:
        """Tokens (seq_len + 1,)."""
        return torch.randint(self.vocab_size, (self.seq_len + 1,), generator=generator)


class NextTokenDataset(ContinuedTextDataset):
    """For a decoder: the first token is random, and each token decides the next.

    A fixed permutation of the vocabulary, drawn from the seed, gives each token its successor.
    """

    def __init__(self, num_samples: int, seq_len: int, vocab_size: int, num_classes: int, seed: int = 1234) -> None:
        super().__init__(num_samples, seq_len, vocab_size, num_classes, seed)
        self.after = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(seed)).tolist()

    def text(self, generator: torch.Generator) -> torch.Tensor:
        """Tokens (seq_len + 1,)."""
        text = [int(torch.randint(self.vocab_size, (), generator=generator))]
        while len(text) <= self.seq_len:
            text.append(self.after[text[-1]])
        return torch.tensor(text)


def dataset(config: TrainConfig) -> RandomTextDataset:
    """The data set that the configuration names."""
    kind = {
        ("toy", "random"): RandomTextDataset,
        ("toy", "first-token"): FirstTokenDataset,
        ("decoder", "random"): ContinuedTextDataset,
        ("decoder", "next-token"): NextTokenDataset,
    }[config.model, config.task]
    return kind(config.num_samples, config.seq_len, config.vocab_size, config.num_classes, config.seed)


def endless_batches(config: TrainConfig, pin_memory: bool = False) -> Iterator[Batch]:
    """Shuffled whole batches, starting over when the data run out, int64.

    Tokens are (batch, seq_len); labels are (batch,) for the toy and (batch, seq_len) for the decoder.
    """
    data = dataset(config)
    loader = DataLoader(
        data,
        batch_size=config.batch_size,
        # Its own generator: the order must depend neither on how many numbers the model drew, nor on the workers.
        sampler=RandomSampler(data, generator=torch.Generator().manual_seed(config.seed)),
        num_workers=config.num_workers,
        pin_memory=pin_memory,
        persistent_workers=config.num_workers > 0,
        drop_last=True,
        generator=torch.Generator().manual_seed(config.seed),
    )
    while True:
        yield from loader


def broadcast_batches(
    config: TrainConfig, batches: Iterable[Batch] | None, device: torch.device, start: int = 0
) -> Iterator[Batch]:
    """Hand every rank rank 0's batches, on its device. `batches` is None on the other ranks.

    Every rank gets the whole batch: a tensor-parallel group works on the same samples together, and each
    data-parallel group takes its part by `share`. The first `start` batches are left out.

    Raises ValueError on rank 0 when a batch does not have the configuration's shape and the dtype int64, or when there
    is none left.
    """
    source = iter(batches) if batches is not None else None
    for step in range(config.max_steps):
        if source is not None:
            # Gloo sends the wrong numbers of a tensor that is not contiguous, and raises nothing.
            # What a loader makes on its way is not the step's: with workers it would be in other processes.
            with _disable_current_modes():
                batch = _next_batch(config, source, step)
            tokens, labels = (tensor.contiguous().to(device, non_blocking=True) for tensor in batch)
        else:
            tokens, labels = (torch.empty(shape, dtype=torch.long, device=device) for shape in _shapes(config))
        if step < start:
            continue
        dist.broadcast(tokens, src=0)
        dist.broadcast(labels, src=0)
        yield tokens, labels


def share(config: TrainConfig, batch: Batch, group: int) -> Iterator[Batch]:
    """The micro-batches of one data-parallel group: its part of the whole batch, in `accumulate` pieces."""
    size = config.micro_batch
    for number in range(group * config.accumulate, (group + 1) * config.accumulate):
        tokens, labels = (tensor[number * size : (number + 1) * size] for tensor in batch)
        yield tokens, labels


def _shapes(config: TrainConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    tokens = (config.batch_size, config.seq_len)
    return tokens, tokens if config.model == "decoder" else tokens[:1]


def _next_batch(config: TrainConfig, source: Iterator[Batch], step: int) -> Batch:
    batch = next(source, None)
    if batch is None:
        raise ValueError(f"the batches ended at step {step}; max_steps={config.max_steps} needs that many")
    tokens, labels = batch
    if tokens.dtype != torch.long or labels.dtype != torch.long:
        raise ValueError(f"batch {step} has {tokens.dtype} tokens and {labels.dtype} labels; both must be torch.int64")
    wanted = _shapes(config)
    if (tuple(tokens.shape), tuple(labels.shape)) != wanted:
        raise ValueError(
            f"batch {step} has tokens {tuple(tokens.shape)} and labels {tuple(labels.shape)}; "
            f"this configuration needs {wanted[0]} and {wanted[1]}"
        )
    return tokens, labels
