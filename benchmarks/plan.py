"""How well a plan tells this machine's step times: `python benchmarks/plan.py [repeats]`, with nothing else running.

`tp.calibrate` measures the machine, `tp.plan` predicts a training step of the classroom MLP at several widths on 2 and
4 ranks, and the step is then measured: forward, backward and optimizer, the median of several, on the slowest rank.
Each line gives both and their ratio; on an idle machine it is to be within 25 % of 1. Other work on the machine meets
calibration and steps at different moments, so the ratio means little then; the load is printed.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

import tp_teach as tp
from tp_teach.train.build import build, make_mesh
from tp_teach.train.loop import forward_backward

WIDTHS = (256, 512, 1024, 2048)
WITHIN = 0.25


def classroom(width: int) -> tp.TrainConfig:
    return tp.TrainConfig.preset("classroom", d_model=width, hidden_dim=4 * width)


def step_seconds(width: int, repeats: int) -> float:
    """Median seconds of one step on this rank; the first step makes the optimizer's state and is not counted."""
    these, device = classroom(width), tp.device()
    model, optimizer = build(these, device, make_mesh(these, device))
    torch.manual_seed(0)
    tokens = torch.randint(these.vocab_size, (these.batch_size, these.seq_len), device=device)
    labels = torch.randint(these.num_classes, (these.batch_size,), device=device)
    times = []
    for _ in range(repeats + 1):
        dist.barrier()
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        forward_backward(these, model, tokens, labels)
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def main(repeats: int = 3, *widths: int) -> None:
    print(f"load of the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for ranks in (2, 4):
        began = time.perf_counter()
        machine = tp.calibrate(ranks)
        print(f"{machine.name}; calibrated in {time.perf_counter() - began:.1f} s")
        for width in widths or WIDTHS:
            predicted = tp.plan(classroom(width), machine, tp=ranks).candidates[0].step_seconds
            run = tp.launch(step_seconds, width, repeats, world_size=ranks, timeout=600, check=False, show="none")
            measured = max(run.values)
            verdict = "yes" if abs(predicted / measured - 1) <= WITHIN else "NO"
            print(
                f"  d_model {width:>5}, {ranks} ranks: predicted {predicted:7.3f} s, measured {measured:7.3f} s, "
                f"ratio {predicted / measured:5.2f}  within {WITHIN:.0%}: {verdict}"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
