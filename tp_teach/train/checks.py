"""What is looked at once, before the first step, so that no model is trained that is wrong already."""

from __future__ import annotations

import torch
from torch import nn

from tp_teach.measure import verify
from tp_teach.model.config import TrainConfig


def check_compiler(config: TrainConfig, device: torch.device) -> None:
    """Raise RuntimeError when `compile` would find no C++ compiler, which torch's inductor needs."""
    if not config.compile or device.type != "cpu":
        return
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception:
        raise RuntimeError(
            "compile=True needs a C++ compiler and none was found; install g++ (or clang++ on macOS), or train without"
        ) from None


def check_model(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError when ranks hold different copies of a parameter, or the optimizer holds other parameters."""
    for answer in (verify.replicas(model), verify.optimizer(model, optimizer)):
        if not answer:
            raise ValueError(f"the model is wrong before its first step: {answer}")
