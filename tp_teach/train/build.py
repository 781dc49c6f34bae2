"""The model of a configuration, cut over a mesh of ranks, with its optimizer."""

from __future__ import annotations

import warnings
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.checkpoint import checkpoint

from tp_teach.measure.simulated import simulated
from tp_teach.model.config import TrainConfig
from tp_teach.model.toy import ToyTransformer
from tp_teach.model.transformer import Decoder
from tp_teach.parallel.apply import sync_uncut
from tp_teach.parallel.plans import cut_decoder, cut_mlp_blocks


def make_mesh(config: TrainConfig, device: torch.device) -> DeviceMesh:
    """All ranks as one dimension `tp`, or as `dp` x `tp`. Neighbouring ranks make a tensor-parallel group.

        data_parallel=2, four ranks:          tp
                                            0    1
                                   dp   0 [ 0    1 ]   one batch, one model cut in two
                                        1 [ 2    3 ]   the next batch, the same model

    Raises ValueError when `data_parallel` does not divide the ranks.
    """
    ranks = dist.get_world_size()
    config.check_ranks(ranks)
    if config.data_parallel == 1:
        return init_device_mesh(device.type, (ranks,), mesh_dim_names=("tp",))
    shape = (config.data_parallel, ranks // config.data_parallel)
    return init_device_mesh(device.type, shape, mesh_dim_names=("dp", "tp"))


def data_mesh(mesh: DeviceMesh | None) -> DeviceMesh | None:
    """The data-parallel dimension of a mesh, if it has one."""
    return mesh["dp"] if mesh is not None and mesh.ndim == 2 else None


def build(
    config: TrainConfig, device: torch.device, mesh: DeviceMesh | None
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model, cut over the mesh (whole if `mesh` is None), and its optimizer.

    The mesh is one-dimensional, or `dp` x `tp` as `make_mesh` makes it.
    """
    # The same seed on every rank: dropout and whatever else draws random numbers must agree.
    torch.manual_seed(config.seed)
    model = (Decoder if config.model == "decoder" else ToyTransformer)(config)
    model.to(device, getattr(torch, config.dtype))
    if mesh is not None:
        tp = mesh["tp"] if mesh.ndim == 2 else mesh
        if config.model == "decoder":
            cut_decoder(model, config, tp)
        else:
            cut_mlp_blocks(model.layers, tp)
            sync_uncut(model, tp)
    for layer in model.layers:
        _wrap(layer, config)
    if (dp := data_mesh(mesh)) is not None:
        _share_out(model, config, dp)
    # After the cut: an optimizer over the old, whole parameters would train nothing. The toy's without foreach,
    # because a list of plain tensors and DTensors cannot be updated at once.
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.lr, foreach=None if config.model == "decoder" else False
    )
    return model, optimizer


def _wrap(layer: nn.Module, config: TrainConfig) -> None:
    """Checkpointing and compilation of one block, inside the hooks that the cut has put around it."""
    if config.checkpointing:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    if config.compile and not simulated():  # a compiler would look into fake tensors of its own
        layer.forward = torch.compile(layer.forward)


def _share_out(model: nn.Module, config: TrainConfig, dp: DeviceMesh) -> None:
    """Give the model to each data-parallel group (ddp), or a part of it (fsdp). Gradients become the groups' mean.

    fsdp is FSDP2 (Zhao et al. 2023): each block's parameters are gathered before the block and let go after it. ddp is
    the same machinery of torch with nothing to gather: DistributedDataParallel itself takes no DTensors.
    """
    from torch.distributed._composable.replicate_with_fsdp import replicate
    from torch.distributed.fsdp import fully_shard

    # The logits are a view, and nothing here writes into them.
    warnings.filterwarnings("ignore", message=".*returned a view tensor", module="torch.distributed.fsdp")
    over = fully_shard if config.data_parallel_kind == "fsdp" else replicate
    for layer in model.layers:
        over(layer, mesh=dp)
    over(model, mesh=dp)  # embeddings, final norm and head
