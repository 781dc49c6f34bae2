"""`TrainConfig`: the toy transformer, its data and its training. Imports no torch, so that predictions can read it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

PRESETS: dict[str, dict[str, Any]] = {
    "seed": {},
    "classroom": dict(
        vocab_size=256,
        seq_len=32,
        d_model=96,
        hidden_dim=384,
        num_layers=4,
        num_samples=2048,
        num_workers=0,
        max_steps=40,
        lr=3e-3,
        task="first-token",
        log_every=1,
    ),
}


@dataclass(frozen=True)
class TrainConfig:
    """What one training run is made of. Checked when it is made.

    The defaults are those of the preset `seed`, sized for GPUs; `TrainConfig.preset("classroom")` trains in a few
    seconds on two CPU cores.

    Raises ValueError, naming the field, its value and what would do.
    """

    vocab_size: int = 32000
    """number of different tokens"""
    seq_len: int = 256
    """tokens in one sample"""
    d_model: int = 768
    """width of the residual stream"""
    hidden_dim: int = 3072
    """width inside each MLP block: this dimension is cut over the ranks"""
    num_layers: int = 6
    """number of MLP blocks"""
    num_classes: int = 10
    """number of labels"""
    num_samples: int = 10000
    """samples in the data set"""
    batch_size: int = 32
    """samples a step. Tensor-parallel ranks all work on the same batch, so this is the whole batch, not a rank's"""
    num_workers: int = 4
    """processes that load data for rank 0"""
    num_epochs: int = 1
    """has no effect: max_steps decides when training ends, and the data start over as often as that takes"""
    max_steps: int = 100
    """optimizer steps"""
    lr: float = 1e-4
    """learning rate of AdamW"""
    task: Literal["random", "first-token"] = "random"
    """random: labels are noise, nothing can be learned. first-token: the first token decides the label"""
    seed: int = 1234
    """seed of weights, data and their order, the same on every rank"""
    log_every: int = 10
    """steps between two records of loss, memory and time"""

    @classmethod
    def preset(cls, name: str, **changes: Any) -> TrainConfig:
        """A named configuration, with single fields changed: `TrainConfig.preset("classroom", max_steps=10)`."""
        unknown = sorted(set(changes) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"{unknown[0]} is not a field; the fields are {', '.join(f.name for f in fields(cls))}")
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"preset={name!r} is not known; use {' or '.join(map(repr, PRESETS))}")
        return replace(cls(**PRESETS[name]), **changes)

    def __post_init__(self) -> None:
        smallest = dict.fromkeys(
            "vocab_size seq_len d_model hidden_dim num_layers num_classes num_samples batch_size num_epochs max_steps "
            "log_every".split(),
            1,
        ) | {"num_workers": 0, "seed": 0}
        for field, least in smallest.items():
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{field}={value!r} does not work; use a whole number of at least {least}")
        if self.seed >= 2**63:
            raise ValueError(f"seed={self.seed} does not work; use a whole number below 2**63")
        if isinstance(self.lr, bool) or not isinstance(self.lr, int | float) or not 0 < self.lr < float("inf"):
            raise ValueError(f"lr={self.lr!r} does not work; use a number above 0, such as 0.0001")
        if self.task not in ("random", "first-token"):
            raise ValueError(f"task={self.task!r} is not known; use 'random' or 'first-token'")
        if self.batch_size > self.num_samples:
            raise ValueError(
                f"batch_size={self.batch_size} is larger than the data; use at most num_samples={self.num_samples}"
            )

    @property
    def measured_step(self) -> int:
        """The step that training measures: the second, in which the optimizer's state is there, if there is one."""
        return min(1, self.max_steps - 1)

    def check_ranks(self, world_size: int) -> None:
        """Raise ValueError unless `hidden_dim` divides over `world_size` ranks. `tp.launch` asks before it starts."""
        if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
            raise ValueError(f"world_size={world_size!r} does not work; use a whole number of at least 1")
        if self.hidden_dim % world_size:
            below = self.hidden_dim // world_size * world_size
            sizes = f"{below} or {below + world_size}" if below else f"{world_size}"
            counts = [n for n in range(1, min(self.hidden_dim, 64) + 1) if self.hidden_dim % n == 0]
            raise ValueError(
                f"hidden_dim={self.hidden_dim} does not divide over {world_size} ranks; use hidden_dim={sizes}, "
                f"or a number of ranks such as {', '.join(map(str, counts[:8]))}"
            )
