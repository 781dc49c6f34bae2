"""`python -m tp_teach.train`: the training program alone or under torchrun, every field of the config an option."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tp_teach.launch import RankFailed, RanksStuck, launch
from tp_teach.launch.torchrun import join, started_by_torchrun
from tp_teach.model.config import TrainConfig
from tp_teach.run import make_draft

PROGRAM = "python -m tp_teach.train"


@dataclass(frozen=True)
class Options:
    """Train the toy transformer or a decoder on several ranks."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    preset: Literal["seed", "classroom", "decoder"] = "seed"
    """where the defaults below come from: seed is sized for GPUs, classroom and decoder for two CPU cores"""
    world_size: int | None = None
    """ranks to start; under torchrun it says how many"""
    device: Literal["cpu", "cuda"] | None = None
    """where the ranks work; chosen by the GPUs present if left out"""
    backend: Literal["gloo", "nccl"] | None = None
    """how the ranks talk; chosen by the GPUs present if left out"""
    save: Path | None = None
    """folder that keeps the run; tp.load opens it in a notebook"""
    checkpoint: Path | None = None
    """folder that keeps model and optimizer; if it holds some already, training goes on after them"""


def main(arguments: list[str] | None = None) -> int:
    """Parse, train, save. Returns the exit status: 2 for options that cannot work, 1 for a rank that failed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _train(_parse(arguments))
    except (TypeError, ValueError) as error:
        if os.environ.get("RANK", "0") == "0":  # torchrun's other ranks would say the same
            print(f"error: {error}", file=sys.stderr)
        return 2
    except (RankFailed, RanksStuck) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def train_and_report(config: TrainConfig, checkpoint: Path | None) -> float:
    """`train`, with its log on standard output."""
    from tp_teach.train.loop import train  # takes seconds, which options that cannot work need not wait for

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    return train(config, checkpoint=checkpoint)


def _parse(arguments: list[str]) -> Options:
    # The preset gives the defaults of all other options, so it is read first.
    first = argparse.ArgumentParser(prog=PROGRAM, add_help=False)
    first.add_argument("--preset", default="seed")
    name = first.parse_known_args(arguments)[0].preset
    default = Options(TrainConfig.preset(name), preset=name)
    return tyro.cli(Options, prog=PROGRAM, args=arguments, default=default)


def _train(options: Options) -> int:
    if options.save is not None and os.environ.get("RANK", "0") == "0":
        make_draft(options.save).rmdir()  # a folder that cannot be written is found before training
    if options.checkpoint is not None:
        from tp_teach.train.loop import first_step

        first_step(options.config, options.checkpoint)  # and one that holds something else
    if started_by_torchrun():
        size = int(os.environ["WORLD_SIZE"])
        if options.world_size not in (None, size):
            raise ValueError(f"--world-size {options.world_size} does not fit: torchrun has started {size} ranks")
        run = join(train_and_report, options.config, options.checkpoint, device=options.device, backend=options.backend)
    elif options.world_size is None:
        raise ValueError("--world-size is missing; say how many ranks to start, such as --world-size 3")
    else:
        run = launch(
            train_and_report,
            options.config,
            options.checkpoint,
            world_size=options.world_size,
            device=options.device,
            backend=options.backend,
            check=False,
        )
    if run is not None:
        print(f"{run.world['reason']}. Last loss {run[0]:.4f}.")
        if options.save is not None:
            print(f"Saved in {run.save(options.save)}.")
    return 0
