"""One process that measures by itself: its log, and the log's rows in a handier form."""

from collections.abc import Callable

from torch import nn

from tp_teach.tables import Log, current_log

KINDS = ("parameters", "gradients", "optimizer", "activations", "temporary")


def logged(step: Callable[[], object]) -> Log:
    """What `step()` records when this process keeps a log, as a rank does."""
    log = Log(0)
    token = current_log.set(log)
    try:
        step()
    finally:
        current_log.reset(token)
    return log


def memory_of(log: Log) -> dict[str, dict[str, int]]:
    """Bytes by moment, then kind. Fails when a fact was recorded twice."""
    found: dict[str, dict[str, int]] = {}
    for row in log.rows["memory"]:
        kinds = found.setdefault(row["moment"], {})
        assert row["kind"] not in kinds, row
        kinds[row["kind"]] = row["bytes"]
    return found


def hooks_on(model: nn.Module) -> int:
    """How many hooks the model and its parameters carry."""
    modules = sum(
        len(hooks)
        for module in model.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._forward_hooks_always_called)
    )
    return modules + sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
