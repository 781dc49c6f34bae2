"""`predict`: the tables of a `Run` without a process, a GPU or torch."""

from __future__ import annotations

from tp_teach.model.config import TrainConfig
from tp_teach.predict import decoder, toy
from tp_teach.predict.activations import Activations
from tp_teach.predict.collectives import collectives
from tp_teach.predict.data_parallel import weave
from tp_teach.predict.flops import flops
from tp_teach.predict.memory import memory
from tp_teach.predict.shards import shards
from tp_teach.run import Run, world_of
from tp_teach.tables import Log


def predict(config: TrainConfig, world_size: int) -> Run:
    """The `Run` of `tp.launch(tp.train, config, world_size=…)`, computed beforehand: shards, comm, memory and flops.

    `comm`, `memory` and `flops` are those of the measured step. Memory is given by kind at the moments init, forward,
    backward and step; temporary bytes and the peak depend on the device's kernels and have no closed form here.
    Activations are those that torch's CPU kernels keep.

    Raises ValueError when the configuration does not divide over the ranks or says something that has no closed form,
    TypeError for another configuration.
    """
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config={config!r} is not a TrainConfig; make one with TrainConfig.preset('classroom')")
    config.check_ranks(world_size)
    for field, why in (("compile", "the compiler decides"), ("autocast", "torch decides, operation by operation,")):
        if getattr(config, field):
            raise ValueError(f"{field}=True cannot be predicted: {why} what is kept for the backward; use False")
    ranks = world_size // config.data_parallel
    model = toy if config.model == "toy" else decoder
    calls = config.accumulate * weave(config, ranks, model.calls(config, ranks))
    kept = toy.activations(config, ranks) if config.model == "toy" else Activations(config, ranks).total
    work = flops(config, world_size)
    logs = [Log(rank) for rank in range(world_size)]
    for log in logs:
        parts = shards(config, world_size, log.rank)
        log.config = vars(config)
        log.add("shards", parts)
        log.add("comm", collectives(config, world_size, log.rank, calls))
        log.add("memory", memory(config, ranks, parts, kept))
        log.add("flops", work)
    reason = f"{world_size} ranks by arithmetic, no process started"
    return Run.from_logs(world_of("predicted", ["none"] * world_size, reason), logs)
