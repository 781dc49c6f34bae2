"""Who holds what: rows of the table `shards`."""

from __future__ import annotations

import math

from tp_teach.model.config import ELEMENT_BYTES, TrainConfig
from tp_teach.predict.parameters import parameters


def shards(config: TrainConfig, world_size: int, rank: int) -> list[dict]:
    """Rows of `shards` for one rank: a cut dimension is divided by the tensor-parallel ranks.

    This rank's part starts at its number in the group times the part's size. With fsdp the first dimension of that
    part is cut again, over the data-parallel ranks: the first take the rounded-up share, the last what is left.
    """
    ranks, size = world_size // config.data_parallel, ELEMENT_BYTES[config.dtype]
    rows = []
    for name, parameter in parameters(config).items():
        part = list(parameter.local_shape(ranks))
        offset = [rank % ranks * length if axis == parameter.cut else 0 for axis, length in enumerate(part)]
        if config.data_parallel_kind == "fsdp" and config.data_parallel > 1:
            share = -(-part[0] // config.data_parallel)
            begins = min(rank // ranks * share, part[0])
            part[0] = min(share, part[0] - begins)
            offset[0] = offset[0] + begins if part[0] else parameter.shape[0]  # torch puts an empty part at the end
        rows.append(
            {
                "parameter": name,
                "placement": _placement(config, parameter.cut, ranks),
                "global_shape": str(parameter.shape),
                "local_shape": str(tuple(part)),
                "offset": str(tuple(offset)),
                "dtype": config.dtype,
                "local_bytes": math.prod(part) * size,
                "global_bytes": math.prod(parameter.shape) * size,
            }
        )
    return rows


def _placement(config: TrainConfig, cut: int | None, ranks: int) -> str:
    """As torch names it. What no rank cuts is plain in the toy, whose plan leaves it alone."""
    over_tensor = None if config.model == "toy" and cut is None else "Replicate" if cut is None else f"Shard({cut})"
    if config.data_parallel == 1:
        return over_tensor or "plain"
    fsdp = config.data_parallel_kind == "fsdp"
    # torch calls a dimension strided that both dimensions of the mesh really cut.
    over_data = ("StridedShard" if cut == 0 and ranks > 1 else "Shard(0)") if fsdp else "Replicate"
    return f"({over_data}, {over_tensor})" if over_tensor else over_data
