"""`TrainConfig`: a model, its data, its training and its cut. Imports no torch, so that predictions can read it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
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
    "decoder": dict(
        model="decoder",
        vocab_size=256,
        seq_len=32,
        d_model=96,
        hidden_dim=192,
        num_layers=2,
        num_heads=12,
        num_kv_heads=12,
        num_samples=2048,
        batch_size=16,
        num_workers=0,
        max_steps=40,
        lr=3e-3,
        task="next-token",
        log_every=1,
    ),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "model": ("toy", "decoder"),
    "block": ("llama", "gpt"),
    "task": ("random", "first-token", "next-token"),
    "data_parallel_kind": ("ddp", "fsdp"),
    "dtype": ("float32", "bfloat16", "float64"),
}
DECODER_ONLY = ("block", "num_heads", "num_kv_heads", "tied", "qkv_bias", "dropout") + (
    "sequence_parallel",
    "vocab_parallel",
    "loss_parallel",
)
ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class TrainConfig:
    """What one training run is made of. Checked when it is made.

    The defaults are those of the preset `seed`, sized for GPUs; `TrainConfig.preset("classroom")` trains in a few
    seconds on two CPU cores.

    Raises ValueError, naming the field, its value and what would do.
    """

    model: Literal["toy", "decoder"] = "toy"
    """toy: MLP blocks and a classifier. decoder: attention and MLP blocks that predict the next token"""
    vocab_size: int = 32000
    """number of different tokens"""
    seq_len: int = 256
    """tokens in one sample"""
    d_model: int = 768
    """width of the residual stream"""
    hidden_dim: int = 3072
    """width inside each MLP block: this dimension is cut over the ranks"""
    num_layers: int = 6
    """number of blocks"""
    num_classes: int = 10
    """number of labels (toy only)"""
    block: Literal["llama", "gpt"] = "llama"
    """llama: RMSNorm, rotary positions, SwiGLU, no biases. gpt: LayerNorm, learned positions, GELU, biases, dropout
    (decoder only)"""
    num_heads: int = 12
    """attention heads, cut over the ranks (decoder only)"""
    num_kv_heads: int = 12
    """heads of keys and values: each serves num_heads / num_kv_heads query heads (decoder only)"""
    tied: bool = False
    """the head uses the token embedding's weight (decoder only)"""
    qkv_bias: bool = False
    """biases on queries, keys and values; a gpt block always has them (decoder only)"""
    dropout: float = 0.0
    """probability that an activation is dropped (gpt block of the decoder only)"""
    num_samples: int = 10000
    """samples in the data set"""
    batch_size: int = 32
    """samples a step, over all ranks. Tensor-parallel ranks share them; data-parallel groups each take a part"""
    num_workers: int = 4
    """processes that load data for rank 0"""
    num_epochs: int = 1
    """has no effect: max_steps decides when training ends, and the data start over as often as that takes"""
    max_steps: int = 100
    """optimizer steps"""
    lr: float = 1e-4
    """learning rate of AdamW"""
    task: Literal["random", "first-token", "next-token"] = "random"
    """random: tokens and labels are noise. first-token: the first token decides the label (toy only). next-token: each
    token decides the next (decoder only)"""
    seed: int = 1234
    """seed of weights, data and their order, the same on every rank"""
    log_every: int = 10
    """steps between two records of loss, memory and time"""
    sequence_parallel: bool = False
    """between the cut blocks, each rank keeps a part of the sequence (decoder only)"""
    vocab_parallel: bool = False
    """cut the token embedding and the head along the vocabulary (decoder only)"""
    loss_parallel: bool = False
    """take the loss from logits that stay cut along the vocabulary; needs vocab_parallel (decoder only)"""
    data_parallel: int = 1
    """data-parallel groups: the mesh is data_parallel x (ranks / data_parallel)"""
    data_parallel_kind: Literal["ddp", "fsdp"] = "ddp"
    """ddp: every data-parallel group holds the model. fsdp: they share it out (FSDP2)"""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """what parameters, gradients and optimizer state are made of"""
    autocast: bool = False
    """compute in bfloat16 where torch's autocast deems it safe; parameters keep their dtype"""
    accumulate: int = 1
    """micro-batches whose gradients are added up for one optimizer step"""
    clip: float | None = None
    """largest gradient norm of the whole model; larger ones are scaled down to it"""
    checkpointing: bool = False
    """keep only each block's input for the backward, and compute the block again"""
    compile: bool = False
    """run each block through torch.compile, which needs a C++ compiler; the measured step runs without"""

    @classmethod
    def preset(cls, name: str, **changes: Any) -> TrainConfig:
        """A named configuration, with single fields changed: `TrainConfig.preset("classroom", max_steps=10)`.

        Beside `seed`, `classroom` and `decoder` there are the shapes of published models, such as `llama3-70b`; the
        file published.json names their sources.
        """
        unknown = sorted(set(changes) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"{unknown[0]} is not a field; the fields are {', '.join(f.name for f in fields(cls))}")
        values = PRESETS.get(name) if isinstance(name, str) else None
        if values is None:
            shapes = {model: entry["fields"] for model, entry in published_models().items()}
            if not isinstance(name, str) or name not in shapes:
                raise ValueError(f"preset={name!r} is not known; use {_either((*PRESETS, *shapes))}")
            values = shapes[name]
        return replace(cls(**values), **changes)

    def __post_init__(self) -> None:
        smallest = dict.fromkeys(
            "vocab_size seq_len d_model hidden_dim num_layers num_classes num_samples batch_size num_epochs max_steps "
            "log_every num_heads num_kv_heads data_parallel accumulate".split(),
            1,
        ) | {"num_workers": 0, "seed": 0}
        for field, least in smallest.items():
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{field}={value!r} does not work; use a whole number of at least {least}")
        if self.seed >= 2**63:
            raise ValueError(f"seed={self.seed} does not work; use a whole number below 2**63")
        if not _is_number(self.lr) or not 0 < self.lr < float("inf"):
            raise ValueError(f"lr={self.lr!r} does not work; use a number above 0, such as 0.0001")
        if not _is_number(self.dropout) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout!r} does not work; use a number from 0 to below 1, such as 0.1")
        if self.clip is not None and (not _is_number(self.clip) or not 0 < self.clip < float("inf")):
            raise ValueError(f"clip={self.clip!r} does not work; use a number above 0, such as 1.0, or None")
        for field in fields(self):
            if field.type == "bool" and not isinstance(getattr(self, field.name), bool):
                raise ValueError(f"{field.name}={getattr(self, field.name)!r} does not work; use True or False")
        for field, choices in CHOICES.items():
            if getattr(self, field) not in choices:
                raise ValueError(f"{field}={getattr(self, field)!r} is not known; use {_either(choices)}")
        if self.batch_size > self.num_samples:
            raise ValueError(
                f"batch_size={self.batch_size} is larger than the data; use at most num_samples={self.num_samples}"
            )
        parts = self.data_parallel * self.accumulate
        if self.batch_size % parts:
            raise ValueError(
                f"batch_size={self.batch_size} does not divide over data_parallel={self.data_parallel} groups and "
                f"accumulate={self.accumulate} micro-batches; use batch_size={_near(self.batch_size, parts)}"
            )
        self._check_model()

    def _check_model(self) -> None:
        if self.model == "toy":
            for field in fields(self):
                value = getattr(self, field.name)
                if field.name in DECODER_ONLY and value != field.default:
                    raise ValueError(f"{field.name}={value!r} needs a decoder; use model='decoder'")
        tasks = {"toy": ("random", "first-token"), "decoder": ("random", "next-token")}[self.model]
        if self.task not in tasks:
            raise ValueError(f"task={self.task!r} does not fit model={self.model!r}; use {_either(tasks)}")
        if self.model == "toy":
            return
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model={self.d_model} does not divide over num_heads={self.num_heads}; "
                f"use d_model={_near(self.d_model, self.num_heads)}"
            )
        if self.block == "llama" and self.head_dim % 2:
            raise ValueError(
                f"num_heads={self.num_heads} makes heads of {self.head_dim} numbers; rotary positions turn pairs, "
                "so use an even d_model / num_heads"
            )
        if self.num_heads % self.num_kv_heads:
            counts = [n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0]
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}; use {_either(counts)}"
            )
        sizes = {"hidden_dim": self.hidden_dim, "num_kv_heads x d_model / num_heads": self.num_kv_heads * self.head_dim}
        for name, size in sizes.items():
            if self.block == "gpt" and size == 1:  # torch takes the gradient of such a bias for one it cannot cut
                raise ValueError(f"{name} = 1 makes a bias of one number, which cannot be cut; use 2 or more")
        if self.dropout and self.block != "gpt":
            raise ValueError(f"dropout={self.dropout} needs block='gpt'; the llama block has none")
        if self.loss_parallel and not self.vocab_parallel:
            raise ValueError(
                "loss_parallel=True needs logits cut along the vocabulary; use vocab_parallel=True as well"
            )

    @property
    def head_dim(self) -> int:
        """Numbers in one attention head."""
        return self.d_model // self.num_heads

    @property
    def micro_batch(self) -> int:
        """Samples that one tensor-parallel group works on at a time."""
        return self.batch_size // (self.data_parallel * self.accumulate)

    @property
    def measured_step(self) -> int:
        """The step that training measures: the second, in which the optimizer's state is there, if there is one."""
        return min(1, self.max_steps - 1)

    def check_ranks(self, world_size: int) -> None:
        """Raise ValueError unless the model divides over `world_size` ranks. `tp.launch` asks before it starts."""
        if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
            raise ValueError(f"world_size={world_size!r} does not work; use a whole number of at least 1")
        if world_size % self.data_parallel:
            raise ValueError(
                f"data_parallel={self.data_parallel} does not divide {world_size} ranks; "
                f"use {_either(_divisors(world_size))}, or {_near(world_size, self.data_parallel)} ranks"
            )
        ranks = world_size // self.data_parallel
        cut = ["hidden_dim"]
        if self.model == "decoder":
            cut += ["num_heads", "num_kv_heads"]
            cut += ["vocab_size"] * self.vocab_parallel + ["seq_len"] * self.sequence_parallel
        for field in cut:
            size = getattr(self, field)
            if size % ranks:
                counts = ", ".join(map(str, _divisors(size)[:8]))
                raise ValueError(
                    f"{field}={size} does not divide over {ranks} ranks; use {field}={_near(size, ranks)}, "
                    f"or a number of ranks such as {counts}"
                )


def published_models() -> dict[str, dict[str, Any]]:
    """The published dense models by name: `fields` of their TrainConfig, `parameters`, and where both come from."""
    text = (resources.files("tp_teach.model") / "published.json").read_text(encoding="utf-8")
    return json.loads(text)["models"]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _near(size: int, ranks: int) -> str:
    """The nearest sizes that divide."""
    below = size // ranks * ranks
    return f"{below} or {below + ranks}" if below else f"{ranks}"


def _divisors(size: int) -> list[int]:
    return [n for n in range(1, min(size, 64) + 1) if size % n == 0]


def _either(choices: Sequence) -> str:
    *others, last = map(repr, choices)
    return f"{', '.join(others)} or {last}" if others else last
