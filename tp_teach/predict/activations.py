"""Bytes that autograd keeps of a decoder on one rank from forward to backward, each storage counted once.

The counting is that of Korthikanti et al. 2022, section 4.1, with every tensor that torch's CPU kernels really keep.
b is the micro-batch, s the sequence, d the model's width, h the MLP's, a and k the query and key-value heads,
e = d / a, V the vocabulary, t the tensor-parallel ranks; E the bytes of the dtype, F those of the precision that norms
and loss take at least: 4, or 8 for float64. `stream` is b s d, or b s d / t under sequence parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass

from tp_teach.model.config import ELEMENT_BYTES, TrainConfig

TOKEN = 8
"""Bytes of one int64 token."""


@dataclass(frozen=True)
class Activations:
    """Sizes that the terms share. `total` is what is kept; the other methods are its parts."""

    config: TrainConfig
    ranks: int

    @property
    def total(self) -> int:
        """Everything, in bytes."""
        return self.ends() + self.config.num_layers * self.layer()

    def layer(self) -> int:
        """One block. With checkpointing it keeps its input alone, part of the stream.

        For the gpt block in 2-byte numbers this is table 2 of Korthikanti et al., s b h (10 + 24 / t + 5 a s / h t),
        and the norms' statistics. Under sequence parallelism the paper gathers the inputs of attention and MLP again in
        the backward and keeps s b h (34 + 5 a s / h) / t. DTensor keeps the two gathered inputs instead: 4 (1 - 1 / t)
        s b h more.
        """
        if self.config.checkpointing:
            return self.size * self.stream
        return 2 * self.norm() + self.attention() + self.mlp()

    def norm(self) -> int:
        """A norm's input, and what of its work is kept.

        LayerNorm: mean and deviation of each token, in E bytes. RMSNorm, in F bytes: input, the same divided by its
        root mean square, and that root.
        """
        tokens = self.stream // self.config.d_model
        if self.config.block == "gpt":
            return self.size * (self.stream + 2 * tokens)
        return self.precise * (2 * self.stream + tokens)

    def attention(self) -> int:
        """The whole input (b s d); this rank's queries, keys, values and output; and what lies between.

        llama, fused: queries and output are b s d / t, keys and values b s k e / t each; a logarithm in F bytes for
        each query. gpt, written out: keys and values repeated for each query head, the softmax (a b s^2 / t), and with
        dropout its result and a mask of one byte; then the mask of the block's output.
        """
        c, each = self.config, self.tokens * self.config.d_model // self.ranks
        heads = c.num_heads // self.ranks
        if c.block == "llama":
            keys = each * c.num_kv_heads // c.num_heads
            kept = self.size * (self.tokens * c.d_model + 2 * each + 2 * keys)
            return kept + self.precise * self.tokens * heads
        scores = self.tokens * heads * c.seq_len
        kept = self.size * (self.tokens * c.d_model + 4 * each + scores)
        return kept + (scores * (self.size + 1) + self.stream if c.dropout else 0)

    def mlp(self) -> int:
        """The whole input (b s d) and this rank's b s h / t: gate, its SiLU, up, their product; or fc1's and GELU's."""
        c = self.config
        inner = self.tokens * c.hidden_dim // self.ranks * (4 if c.block == "llama" else 2)
        return self.size * (self.tokens * c.d_model + inner) + (self.stream if c.dropout else 0)

    def ends(self) -> int:
        """What is kept once: positions, final norm, the head's input (b s d), log-probabilities and their weight.

        Positions: cosine and sine (s e each) in a llama; in a gpt the numbers 0 to s - 1 and which token sees which
        (s^2 bytes), and the dropout mask of the embeddings. What only blocks read is not kept for them if they are
        checkpointed: it lives, but as an argument. The loss is taken in F bytes, of b s V numbers or, if it
        is parallel, of this rank's part.
        """
        c = self.config
        vocabulary = c.vocab_size // self.ranks if c.loss_parallel else c.vocab_size
        loss = self.precise * (self.tokens * vocabulary + 1)
        for_blocks = 2 * self.size * c.seq_len * c.head_dim if c.block == "llama" else c.seq_len**2
        positions = 0 if c.checkpointing else for_blocks
        if c.block == "gpt":
            positions += TOKEN * c.seq_len + (self.stream if c.dropout else 0)
        return positions + self.norm() + self.size * self.tokens * c.d_model + loss

    @property
    def size(self) -> int:
        """E: bytes of one number."""
        return ELEMENT_BYTES[self.config.dtype]

    @property
    def precise(self) -> int:
        """F: bytes of one number where more precision is taken."""
        return max(4, self.size)

    @property
    def tokens(self) -> int:
        """b s: tokens of a micro-batch."""
        return self.config.micro_batch * self.config.seq_len

    @property
    def stream(self) -> int:
        """Numbers of the residual stream that this rank keeps."""
        whole = self.tokens * self.config.d_model
        return whole // self.ranks if self.config.sequence_parallel else whole
