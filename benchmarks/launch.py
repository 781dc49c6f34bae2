"""How quick a launch is, against what it replaces: `python benchmarks/launch.py [repeats]`.

Every figure is a ratio of two times measured in this one run, medians of several repeats, four Gloo ranks that each
make one all_reduce. Fork is what notebook launchers without a fork server do (torch's start_processes with "fork");
it works only as long as the parent has touched neither CUDA nor torch's threads.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from jupyter_client.manager import start_new_kernel

import tp_teach as tp

RANKS = 4
WARM = 8.0
"""Seconds in which the fork server has loaded all that training needs, which makes each launch a little slower."""
CELL = """
import time, torch, torch.distributed as dist
began = time.perf_counter()
import tp_teach as tp
imported = time.perf_counter()
def add_up():
    number = torch.ones(3)
    dist.all_reduce(number)
    return number
tp.launch(add_up, world_size=4)
print(imported - began, time.perf_counter() - imported)
"""


def add_up() -> torch.Tensor:
    number = torch.ones(3)
    dist.all_reduce(number)
    return number


def plain_rank(rank: int, folder: str) -> None:
    """What a rank of torch's own launchers does: join, work, leave."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    add_up()
    dist.destroy_process_group()


def plain(start_method: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(plain_rank, args=(folder,), nprocs=RANKS, start_method=start_method)


def private_bytes() -> int:
    return psutil.Process().memory_full_info().uss


def seconds(call: Callable[[], object], repeats: int) -> float:
    return together({"it": call}, repeats)["it"]


def together(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each call. They take turns, so that what else the machine does meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in times.items()}


def import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import torch, torch.distributed"], check=True)


def first_launch() -> tuple[float, float]:
    """Seconds of `import tp_teach` after torch, and of the first launch, in a new kernel."""
    manager, client = start_new_kernel()
    said: list[str] = []
    try:
        client.execute_interactive(CELL, output_hook=lambda message: said.append(message["content"].get("text", "")))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    imported, launched = "".join(said).split()
    return float(imported), float(launched)


def line(name: str, ratio: float, bound: float | None, unit: str = "") -> None:
    verdict = "" if bound is None else f"at most {bound:g}{unit}: {'yes' if ratio <= bound else 'NO'}"
    print(f"{name:<66} {ratio:7.2f}{unit}  {verdict}")


def main(repeats: int = 5) -> None:
    torch_import = seconds(import_torch, repeats)
    firsts = [first_launch() for _ in range(repeats)]
    line("first launch of a kernel / import torch", statistics.median(f for _, f in firsts) / torch_import, 1.25)
    line("import tp_teach after torch, seconds", statistics.median(i for i, _ in firsts), 0.3, " s")

    tp.launch(add_up, world_size=RANKS)
    time.sleep(WARM)
    took = together(
        {
            "fork": lambda: plain("fork"),
            "launch": lambda: tp.launch(add_up, world_size=RANKS),
            "unchecked": lambda: tp.launch(add_up, world_size=RANKS, check=False),
        },
        4 * repeats,
    )
    spawn = seconds(lambda: plain("spawn"), max(2, repeats // 2))
    line("later launch / mp.spawn", took["launch"] / spawn, 0.12)
    # The plain ranks make no checks of collectives, so the launch without them is the one to compare.
    line("later launch, check=False / fork", took["unchecked"] / took["fork"], 1)
    line("later launch / fork", took["launch"] / took["fork"], None)

    idle = max(tp.launch(private_bytes, world_size=RANKS).values) / 2**20
    line("private memory of an idle rank, MiB", idle, 15, " MiB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
