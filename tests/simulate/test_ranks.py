"""A simulated rank writes down what a real one measures: the same rows, to the byte."""

import pandas as pd
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import tp_teach as tp

SP = dict(sequence_parallel=True)
VOCAB = dict(vocab_parallel=True, loss_parallel=True)
GPT = dict(block="gpt", dropout=0.1)


@pytest.fixture(scope="module")
def ranks(request):
    with tp.ranks(world_size=request.param, device="cpu", check=False) as these:
        yield these


def same_rows(real, simulated, rank):
    # What the CPU's allocator holds is not simulated.
    wanted = {"shards": real.shards, "comm": real.comm, "flops": real.flops}
    wanted["memory"] = real.memory[real.memory["kind"] != "allocated"]
    for table, rows in wanted.items():
        mine = rows[rows["rank"] == rank].reset_index(drop=True)
        assert len(mine) > 0
        there = getattr(simulated, table)
        pd.testing.assert_frame_equal(mine, there, check_exact=True, obj=table)


@pytest.mark.parametrize(
    "ranks, rank, preset, changes",
    [
        (2, 1, "classroom", dict(num_layers=1, dtype="bfloat16", clip=1.0)),
        (2, 1, "decoder", dict(num_layers=1, num_kv_heads=4, qkv_bias=True, autocast=True, accumulate=2)),
        (2, 0, "decoder", SP | VOCAB | dict(checkpointing=True)),
        (2, 1, "decoder", GPT | dict(num_layers=1, tied=True, vocab_parallel=True)),
        (3, 2, "decoder", SP | VOCAB | dict(num_layers=1, seq_len=30, vocab_size=258)),
        (4, 3, "decoder", SP | VOCAB | dict(num_layers=1, data_parallel=2)),
        (4, 2, "decoder", SP | GPT | dict(data_parallel=2, data_parallel_kind="fsdp", vocab_parallel=True, clip=1.0)),
    ],
    indirect=["ranks"],
    ids=str,
)
def test_training(ranks, rank, preset, changes):
    config = tp.TrainConfig.preset(preset, max_steps=2, **changes)
    real = ranks.launch(tp.train, config)
    simulated = tp.simulate(tp.train, config, world_size=len(real), rank=rank)
    same_rows(real, simulated, rank)
    assert simulated.world["mode"] == "simulated" and simulated.world["size"] == len(real)
    assert simulated.config == real.config


def by_hand(given, model):
    """Collectives of two groups, a send, and a layer whose size is the rank's own."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    group, rank = mesh["tp"].get_group(), dist.get_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = nn.Linear(8, 3 + rank).to(tp.device())
    with tp.measure(model, optimizer):
        out = own(model(given))
        out.sum().backward()
        parts = [torch.empty(6, dtype=torch.bfloat16) for _ in range(group.size())]
        dist.all_gather(parts, torch.ones(6, dtype=torch.bfloat16), group=group)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if rank < 2:
            dist.send(given, 1) if rank == 0 else dist.recv(given, 0)
        optimizer.step()
        dist.barrier()
    return {"out": out, "rank": rank, "position": mesh.get_coordinate()}


@pytest.mark.parametrize("ranks", [2, 4], indirect=True)
def test_a_function_by_hand_with_tensors_and_a_module_of_its_caller(ranks):
    given, model = torch.randn(5, 6), nn.Linear(6, 8)
    real = ranks.launch(by_hand, given, model)
    rank = len(real) - 1
    simulated = tp.simulate(by_hand, given, model, world_size=len(real), rank=rank)
    same_rows(real, simulated, rank)
    mine, there = real[rank], simulated[rank]
    assert there["out"].device.type == "meta"
    assert (there["out"].shape, there["out"].dtype) == (mine["out"].shape, mine["out"].dtype)
    assert (there["rank"], there["position"]) == (mine["rank"], mine["position"])
    assert simulated.values[:rank] == [None] * rank
