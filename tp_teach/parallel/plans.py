"""The cut as data: which module is split along which dimension."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from tp_teach.model.config import TrainConfig
from tp_teach.model.transformer import Decoder
from tp_teach.parallel.apply import apply_plan, sync_uncut
from tp_teach.parallel.styles import CutDropout, Replicated, VocabParallel

Plan = dict[str, ParallelStyle]


def mlp_plan() -> Plan:
    """The MLP block of Megatron-LM (Shoeybi et al. 2019, section 3, figure 3a).

        fc1 (hidden, d):  rows are output features      fc2 (d, hidden):  columns are input features

            ┌───────┐ rank 0                                ┌───┬───┬───┐
            ├───────┤ rank 1                                │ 0 │ 1 │ 2 │
            ├───────┤ rank 2                                └───┴───┴───┘
            └───────┘

    Each rank keeps its hidden features from fc1 through GELU into fc2; only fc2's partial sums meet, in one all-reduce.
    """
    return {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()}


def cut_mlp_blocks(layers: nn.ModuleList, mesh: DeviceMesh) -> None:
    """Cut each MLP block over the one-dimensional mesh, in place. The norms stay plain and whole on every rank.

    Rank 0's weights are sent to the others, so a cut block equals its dense twin even under different seeds.
    Raises ValueError when a block's hidden size does not divide by the mesh.
    """
    for number, layer in enumerate(layers):
        hidden = layer.fc1.out_features
        if hidden % mesh.size():
            raise ValueError(f"layers.{number}: hidden size {hidden} does not divide over {mesh.size()} ranks")
        parallelize_module(layer, mesh, mlp_plan())
        sync_uncut(layer, mesh)


def cut_decoder(model: Decoder, config: TrainConfig, mesh: DeviceMesh) -> None:
    """Cut a decoder over the one-dimensional tensor-parallel mesh, in place, as `decoder_plan(config)` says.

    Every parameter becomes a DTensor of rank 0's values. With `loss_parallel` the model then returns logits as a
    DTensor that is cut along the vocabulary; otherwise whole logits as a plain tensor.

    Raises ValueError, before anything is cut, when heads or sizes do not divide over the ranks. More ranks than
    num_kv_heads are refused: ranks that share a head of keys and values would have to add up its gradients among
    themselves, which no placement on one mesh dimension says. With `sequence_parallel` each call of the model raises
    ValueError when the tokens do not divide over the ranks.
    """
    config.check_ranks(mesh.size() * config.data_parallel)
    apply_plan(model, decoder_plan(config), mesh)
    if config.sequence_parallel:
        model.register_forward_pre_hook(_TokensDivide(mesh.size()))


def decoder_plan(config: TrainConfig, *, prepared: bool = True) -> Plan:
    """The plan of a whole decoder: `block_plan` for each block, `ends_plan` for what is around them.

    What it does not name is held whole by every rank: see `apply_plan`.
    """
    return block_plan(config, prepared=prepared) | ends_plan(config)


def block_plan(config: TrainConfig, *, prepared: bool = True) -> Plan:
    """Attention and MLP of each block (Shoeybi et al. 2019, section 3, figures 3 and 4).

        wq, wk, wv (heads · head_dim, d):  whole heads      wo (d, heads · head_dim):  the same heads
        gate, up or fc1 (hidden, d)                         down or fc2 (d, hidden)

            ┌───────┐ rank 0                                    ┌───┬───┬───┐
            ├───────┤ rank 1                                    │ 0 │ 1 │ 2 │
            ├───────┤ rank 2                                    └───┴───┴───┘
            └───────┘

    Each rank works on its heads, and on its hidden features, alone. Two all-reduces forward, after wo and after down
    (fc2), and two backward, before attention and before the MLP.

    With `sequence_parallel` each rank keeps its tokens between these regions, and each all-reduce becomes an all-gather
    and a reduce-scatter, one where a region begins and one where it ends, of the same bytes by the ring formula
    (Korthikanti et al. 2022, section 4.2.2, figure 5). The norms work on the rank's tokens: in the backward each of
    their parameters takes one all-reduce more, of d_model numbers.

    `prepared=False` leaves out the preparation of the inputs that the linears of a region share. The result is the
    same, but each of them reduces its input's gradient by itself: five all-reduces backward in a llama block, not two.
    """
    stream = Shard(1) if config.sequence_parallel else Replicate()
    column = {} if prepared else {"input_layouts": stream}
    plan: Plan = {}
    for region, (into, out_of) in {
        "attn": (("wq", "wk", "wv"), "wo"),
        "mlp": (("gate", "up"), "down") if config.block == "llama" else (("fc1",), "fc2"),
    }.items():
        if prepared:
            plan[f"layers.*.{region}"] = PrepareModuleInput(
                input_layouts=stream, desired_input_layouts=Replicate(), use_local_output=False
            )
        plan |= {f"layers.*.{region}.{linear}": ColwiseParallel(**column) for linear in into}
        plan[f"layers.*.{region}.{out_of}"] = RowwiseParallel(output_layouts=stream)
        if config.sequence_parallel:
            plan[f"layers.*.{region}_norm"] = Replicated(Shard(1))
    if config.block == "gpt":
        plan["layers.*.attn.weight_dropout"] = CutDropout()
        if config.sequence_parallel:
            plan |= {"layers.*.attn.dropout": CutDropout(), "layers.*.mlp.dropout": CutDropout()}
    return plan


def ends_plan(config: TrainConfig) -> Plan:
    """Embeddings, final norm and head (Shoeybi et al. 2019, section 3, "embedding layers").

        token_emb, head (vocab, d) with vocab_parallel:      ┌───────┐ rank 0: the first tokens
                                                             ├───────┤ rank 1
                                                             ├───────┤ rank 2: the last
                                                             └───────┘

    vocab_parallel: a rank looks up its tokens and leaves zeros for the others, which one all-reduce adds up (under
    sequence parallelism one reduce-scatter); the head makes the logits of its tokens. Without `loss_parallel` these are
    gathered, batch · seq · vocab numbers.

    sequence_parallel: where an end is whole, its output is split or gathered there, so that the blocks see the rank's
    tokens and the head sees all.
    """
    stream = Shard(1) if config.sequence_parallel else Replicate()
    plan: Plan = {}
    if config.vocab_parallel:
        plan["token_emb"] = VocabParallel(Replicate(), stream)
        plan["head"] = ColwiseParallel(
            input_layouts=stream,
            output_layouts=Shard(-1) if config.loss_parallel else Replicate(),
            use_local_output=not config.loss_parallel,
        )
    if config.sequence_parallel:
        plan["final_norm"] = Replicated(Shard(1), Shard(1) if config.vocab_parallel else Replicate())
        if not config.vocab_parallel:
            plan["token_emb"] = Replicated(Replicate(), Shard(1))
        if config.block == "gpt":
            plan["pos_emb"] = Replicated(Replicate(), Shard(0))  # (tokens, d_model), the same for the whole batch
            plan["dropout"] = CutDropout()
    return plan


class _TokensDivide:
    """A hook that refuses tokens which do not divide over the ranks, rather than let their shapes disagree."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def __call__(self, model: nn.Module, args: tuple) -> None:
        tokens = args[0].shape[1]
        if tokens % self.ranks:
            raise ValueError(
                f"{tokens} tokens do not divide over {self.ranks} ranks, and sequence_parallel=True gives each an "
                "equal part; pass a length that divides, or cut a model without it, as for generation"
            )
