"""`python -m tp_teach.plan llama3-70b --hardware h100 --tp 8`: the planner's answer as text, or as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from tp_teach.predict.planner import Plan, plan

PROGRAM = "python -m tp_teach.plan"


@dataclass(frozen=True)
class Options:
    """Say what a model needs on a machine: memory, bytes, operations and seconds of each rank in one training step."""

    model: Annotated[str, tyro.conf.Positional]
    """a published model such as llama3-70b, or a preset: classroom, decoder, seed"""
    hardware: str
    """a100, h100, h200, b200, a100-pcie, or this: the machine here, measured first"""
    tp: tuple[int, ...] | None = None
    """tensor-parallel ranks, one number or several; all powers of two that fit a machine if left out"""
    sequence_parallel: bool = False
    """each rank keeps a part of the sequence between the cut blocks"""
    data_parallel: int = 1
    """data-parallel groups"""
    data_parallel_kind: Literal["ddp", "fsdp"] = "ddp"
    """ddp: every group holds the model. fsdp: they share it out"""
    batch_size: int | None = None
    """samples a step, over all ranks; one a group if left out"""
    seq_len: int | None = None
    """tokens in one sample"""
    checkpointing: bool = False
    """keep only each block's input for the backward"""
    bytes_per_parameter: int | None = None
    """what weights, gradients and optimizer take: 10, 12, 16, 18 or 20"""
    json: bool = False
    """print data instead of text"""


def main(arguments: list[str] | None = None) -> int:
    """Parse, plan, print. Returns the exit status: 2 for names and options that cannot work."""
    options = tyro.cli(Options, prog=PROGRAM, args=sys.argv[1:] if arguments is None else arguments)
    try:
        answer = _plan(options)
    except (TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(answer.data(), indent=1) if options.json else answer)
    return 0


def _plan(options: Options) -> Plan:
    asked = {
        "sequence_parallel": options.sequence_parallel or None,
        "data_parallel": options.data_parallel if options.data_parallel != 1 else None,
        "data_parallel_kind": options.data_parallel_kind if options.data_parallel_kind != "ddp" else None,
        "batch_size": options.batch_size,
        "seq_len": options.seq_len,
        "checkpointing": options.checkpointing or None,
    }
    hardware = options.hardware
    if hardware == "this":
        from tp_teach.plan.calibration import calibrate

        hardware = calibrate(max(options.tp or (2,)))
    return plan(
        options.model,
        hardware,
        tp=options.tp,
        bytes_per_parameter=options.bytes_per_parameter,
        **{name: value for name, value in asked.items() if value is not None},
    )
