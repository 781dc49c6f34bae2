"""Closed forms for the decoder's collectives, cut by tensor parallelism and its relatives."""

from __future__ import annotations

from tp_teach.model.config import TrainConfig
from tp_teach.predict.collectives import Call, Pass


def calls(config: TrainConfig, ranks: int) -> Pass:
    """What one forward and backward issues on each of `ranks` tensor-parallel ranks.

    Plain: an all-reduce of b s d after attention and after the MLP, forward, and one for each in the backward, where
    the gradients of what entered them meet (Shoeybi et al. 2019, section 3, figure 4). torch's own plan for linears
    would reduce the gradient that leaves each of q, k, v, gate and up by itself: five in the backward of a llama
    block. Here the input of attention and MLP is prepared once, which makes them two.

    With sequence parallelism each all-reduce becomes a reduce-scatter and an all-gather, which move the same ring bytes
    (Korthikanti et al. 2022, section 4.2.2; Gloo's own reduce-scatter sends an all-reduce's). Norms then see a part
    of the sequence, so the gradients of their weights are partial sums: one all-reduce of d a parameter.

    A vocabulary-parallel embedding adds one of these forward and its head one backward; the head's logits are gathered,
    or, with a parallel loss, replaced by three all-reduces of one number a token: largest logit, sum of exponentials,
    the target's logit (Shoeybi et al. 2019, section 3, and torch's `loss_parallel`).
    """
    step = _Step(config, ranks)
    if ranks > 1:
        return step.calls()
    # DTensor asks nobody when it is alone, but the parallel loss does.
    return Pass(
        layers=[[] for _ in step.layers],
        head=step.loss() if config.loss_parallel else [],
        layers_back=[[] for _ in step.layers],
    )


class _Step:
    """The calls of one forward and backward; sizes and names that all of them share."""

    def __init__(self, config: TrainConfig, ranks: int) -> None:
        self.config, self.ranks = config, ranks
        self.batch, self.part, self.d = config.micro_batch, config.seq_len // ranks, config.d_model
        self.layers = [f"layers.{number}" for number in range(config.num_layers)]
        self.last = "fc2" if config.block == "gpt" else "down"

    def calls(self) -> Pass:
        vocabulary = self.config.vocab_parallel
        return Pass(
            embedding=[self.leave("forward", "token_emb")] if vocabulary else [],
            layers=[self.block("forward", layer) for layer in self.layers],
            head=self.head() if vocabulary else self.enter("forward", "final_norm"),
            head_back=[self.leave("backward", "head")] if vocabulary else [],
            final_norm_back=self.norm("final_norm"),
            layers_back=[self.block_back(layer) for layer in self.layers],
            embedding_back=self.positions_back() + self.enter("backward", "token_emb"),
        )

    def block(self, phase: str, layer: str) -> list[Call]:
        found = []
        for half, last in (("attn", "wo"), ("mlp", self.last)):
            found += [*self.enter(phase, f"{layer}.{half}"), self.leave(phase, f"{layer}.{half}.{last}")]
        return found

    def block_back(self, layer: str) -> list[Call]:
        found = self.enter("backward", f"{layer}.mlp.{self.last}")
        if self.config.checkpointing:
            found = self.again(layer) + found if self.config.dropout else found + self.again(layer)
        found += [self.leave("backward", f"{layer}.mlp"), *self.norm(f"{layer}.mlp_norm")]
        found += self.enter("backward", f"{layer}.attn.wo")
        return [*found, self.leave("backward", f"{layer}.attn"), *self.norm(f"{layer}.attn_norm")]

    def again(self, layer: str) -> list[Call]:
        """A checkpointed block is computed again when its backward first asks for what was not kept.

        That ends with the last thing to keep: the mask of the MLP's output, or without dropout what enters the last
        linear, whose own collective is then not needed.
        """
        found = self.block("backward", layer)
        return found if self.config.dropout else found[:-1]

    def head(self) -> list[Call]:
        config = self.config
        if config.loss_parallel:
            return [*self.enter("forward", "head"), *self.loss()]
        shape = (self.batch, config.seq_len, config.vocab_size // self.ranks)
        whole = self.batch * config.seq_len * config.vocab_size
        return [*self.enter("forward", "head"), Call("forward", "head", "all_gather", config.dtype, shape, whole)]

    def loss(self) -> list[Call]:
        dtype = "float64" if self.config.dtype == "float64" else "float32"
        return 3 * [Call("forward", "", "all_reduce", dtype, (self.batch * self.config.seq_len, 1))]

    def positions_back(self) -> list[Call]:
        if not self.config.sequence_parallel or self.config.block != "gpt":
            return []
        whole = self.config.seq_len * self.d
        return [Call("backward", "pos_emb", "all_gather", self.config.dtype, (self.part, self.d), whole)]

    def enter(self, phase: str, module: str) -> list[Call]:
        """The whole sequence is gathered where the stream enters a cut part; it is there already without the cut."""
        if not self.config.sequence_parallel:
            return []
        shape, whole = (self.batch, self.part, self.d), self.batch * self.config.seq_len * self.d
        return [Call(phase, module, "all_gather", self.config.dtype, shape, whole)]

    def leave(self, phase: str, module: str) -> Call:
        """Partial sums meet where the stream leaves a cut part. torch scatters along the first dimension."""
        if self.config.sequence_parallel:
            shape = (self.batch * self.ranks, self.part, self.d)
            return Call(phase, module, "reduce_scatter", self.config.dtype, shape)
        return Call(phase, module, "all_reduce", self.config.dtype, (self.batch, self.config.seq_len, self.d))

    def norm(self, module: str) -> list[Call]:
        """Each rank's norm has seen a part of the sequence, so its parameters' gradients are partial sums."""
        if not self.config.sequence_parallel:
            return []
        parameters = 2 if self.config.block == "gpt" else 1
        return parameters * [Call("backward", module, "all_reduce", self.config.dtype, (self.d,))]
