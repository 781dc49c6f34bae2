"""Batches: made on rank 0 alone, then broadcast, because tensor-parallel ranks must all see the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
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
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + index) % 2**63)
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


def dataset(config: TrainConfig) -> RandomTextDataset:
    """The data set that the configuration names."""
    kind = {"random": RandomTextDataset, "first-token": FirstTokenDataset}[config.task]
    return kind(config.num_samples, config.seq_len, config.vocab_size, config.num_classes, config.seed)


def endless_batches(config: TrainConfig, pin_memory: bool = False) -> Iterator[Batch]:
    """Shuffled whole batches, starting over when the data run out: (batch, seq_len) and (batch,), int64."""
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


def broadcast_batches(config: TrainConfig, batches: Iterable[Batch] | None, device: torch.device) -> Iterator[Batch]:
    """Hand every rank rank 0's batches, on its device. `batches` is None on the other ranks.

    A tensor-parallel group works on one batch together. With data parallelism beside it, each group would get its own.

    Raises ValueError on rank 0 when a batch does not have the configuration's shape and the dtype int64, or when there
    is none left.
    """
    source = iter(batches) if batches is not None else None
    for step in range(config.max_steps):
        if source is not None:
            # Gloo sends the wrong numbers of a tensor that is not contiguous, and raises nothing.
            batch = _next_batch(config, source, step)
            tokens, labels = (tensor.contiguous().to(device, non_blocking=True) for tensor in batch)
        else:
            tokens = torch.empty((config.batch_size, config.seq_len), dtype=torch.long, device=device)
            labels = torch.empty((config.batch_size,), dtype=torch.long, device=device)
        dist.broadcast(tokens, src=0)
        dist.broadcast(labels, src=0)
        yield tokens, labels


def _next_batch(config: TrainConfig, source: Iterator[Batch], step: int) -> Batch:
    batch = next(source, None)
    if batch is None:
        raise ValueError(f"the batches ended at step {step}; max_steps={config.max_steps} needs that many")
    tokens, labels = batch
    if tokens.dtype != torch.long or labels.dtype != torch.long:
        raise ValueError(f"batch {step} has {tokens.dtype} tokens and {labels.dtype} labels; both must be torch.int64")
    wanted = (config.batch_size, config.seq_len)
    if tuple(tokens.shape) != wanted or tuple(labels.shape) != wanted[:1]:
        raise ValueError(
            f"batch {step} has tokens {tuple(tokens.shape)} and labels {tuple(labels.shape)}; "
            f"this configuration needs {wanted} and {wanted[:1]}"
        )
    return tokens, labels
