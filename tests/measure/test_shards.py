"""The table `shards`: global and local shape, offset, placement and bytes of every parameter."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import tp_teach as tp


class Placed(nn.Module):
    """One parameter for each way to hold 5 x 4 numbers, on a 2 x 2 mesh and on its parts."""

    def __init__(self) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        numbers = torch.arange(20.0).reshape(5, 4)

        def parameter(where, *placements, dtype=torch.float32):
            return nn.Parameter(distribute_tensor(numbers.to(dtype), where, placements))

        self.plain = nn.Parameter(numbers.clone())
        self.columns = parameter(mesh["tp"], Shard(1))
        self.uneven_rows = parameter(mesh["tp"], Shard(0))
        self.negative = parameter(mesh["tp"], Shard(-1))
        self.everywhere = parameter(mesh["tp"], Replicate())
        self.both = parameter(mesh, Shard(0), Shard(1))
        self.low = parameter(mesh, Replicate(), Shard(1), dtype=torch.bfloat16)


def place() -> dict:
    model = Placed()
    with tp.measure(model):
        pass
    whole = torch.arange(20.0).reshape(5, 4)
    local = {n: p.to_local() if n != "plain" else p.detach() for n, p in model.named_parameters()}
    return {"rank": dist.get_rank(), "local": {n: t.detach().float() for n, t in local.items()}, "whole": whole}


def test_every_way_to_hold_a_parameter():
    run = tp.launch(place, world_size=4)
    placements = {
        "plain": "plain",
        "columns": "Shard(1)",
        "uneven_rows": "Shard(0)",
        "negative": "Shard(1)",
        "everywhere": "Replicate",
        "both": "(Shard(0), Shard(1))",
        "low": "(Replicate, Shard(1))",
    }
    assert len(run.shards) == 4 * len(placements)
    for row in run.shards.to_dict("records"):
        name, rank = row["parameter"], row["rank"]
        local = run[rank]["local"][name]
        width = 2 if name == "low" else 4
        assert row["placement"] == placements[name], name
        assert row["global_shape"] == "(5, 4)"
        assert row["local_shape"] == str(tuple(local.shape)), name
        assert row["dtype"] == ("bfloat16" if name == "low" else "float32")
        assert (row["local_bytes"], row["global_bytes"]) == (local.numel() * width, 20 * width)
        # The offset and the local shape cut this rank's very numbers out of the whole.
        cut = [slice(start, start + size) for start, size in zip(eval(row["offset"]), local.shape, strict=True)]
        assert torch.equal(run[rank]["whole"][tuple(cut)], local), f"{name} on rank {rank}"
