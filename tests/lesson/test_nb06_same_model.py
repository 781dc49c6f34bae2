"""The exercises of notebook 06: the solution passes, and typical wrong answers get the hint that helps."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import gelu

from tp_teach.lesson.check import verdict
from tp_teach.lesson.exercises.nb06_same_model import FAULTY, SUSPECTS, suspects


@pytest.fixture(scope="module")
def apart() -> dict[str, dict[str, float]]:
    """The largest difference of each suspect's loss from the reference, by dtype; `rounding` is that of pieces."""
    found = {}
    for dtype, (runs, reference, rounding) in suspects("bfloat16", "float64").items():
        true = losses(reference)
        found[dtype] = {name: float((losses(run) - true).abs().max()) for name, run in runs.items()}
        found[dtype]["rounding"] = max(float((losses(run) - true).abs().max()) for run in rounding)
    return found


def losses(run):
    return run.steps[run.steps["rank"] == 0].set_index("step")["loss"]


def test_in_float64_the_bugs_stand_out_and_the_others_vanish(apart):
    found = apart["float64"]
    # 1e-9 lies between rounding (a few spacings of 2e-16) and the smallest bug (a norm's eps, near 1e-7).
    assert "".join(name for name in SUSPECTS if found[name] > 1e-9) == FAULTY
    assert found["rounding"] < 1e-13


def test_in_bfloat16_no_suspect_looks_worse_than_ten_times_rounding(apart):
    found = apart["bfloat16"]
    assert found["rounding"] > 0 and all(found[name] < 10 * found["rounding"] for name in SUSPECTS)


def test_bfloat16_rounds_the_weight_decay_away(apart):
    assert apart["bfloat16"]["E"] == apart["bfloat16"]["A"]
    assert torch.tensor(1 - 3e-3 * 0.01, dtype=torch.bfloat16) == 1


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("BDE", "ok"),
        ("b, d, e", "ok"),
        (["E", "D", "B"], "ok"),
        (None, "no answer"),
        ("BD", "a run with a bug passed you by"),
        ("B", "2 runs with a bug passed you by"),
        ("BDEF", "F only rounds"),
        ("BZ", "Z is none of the runs A to F"),
        (3, "write the letters as text"),
    ],
)
def test_six_curves(answer, says):
    said = verdict("six-curves", answer)
    assert says in said and (said == "ok") == (says == "ok")


class Given(nn.Module):
    def __init__(self, dense, group):
        super().__init__()
        self.group, self.ln, self.bias = group, dense.ln, dense.fc2.bias
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self.w1 = nn.Parameter(dense.fc1.weight.detach().chunk(size, 0)[rank].clone())
        self.b1 = nn.Parameter(dense.fc1.bias.detach().chunk(size, 0)[rank].clone())
        self.w2 = nn.Parameter(dense.fc2.weight.detach().chunk(size, 1)[rank].clone())

    def forward(self, x, f, g):
        h = self.ln(f(x))
        return x + g(gelu(h @ self.w1.T + self.b1) @ self.w2.T + self.bias)


class Right(Given):
    def forward(self, x, f, g):
        h = f(self.ln(x))
        return x + g(gelu(h @ self.w1.T + self.b1) @ self.w2.T) + self.bias


class OnlyBias(Given):
    def forward(self, x, f, g):
        h = self.ln(f(x))
        return x + g(gelu(h @ self.w1.T + self.b1) @ self.w2.T) + self.bias


class NoF(Given):
    def forward(self, x, f, g):
        return x + g(gelu(self.ln(x) @ self.w1.T + self.b1) @ self.w2.T) + self.bias


class NoG(Given):
    def forward(self, x, f, g):
        return x + gelu(f(self.ln(x)) @ self.w1.T + self.b1) @ self.w2.T + self.bias


class ShareOfBias(Given):
    """Right at first sight: each rank adds its share of the bias, whose gradient is then only a share."""

    def forward(self, x, f, g):
        h = f(self.ln(x))
        return x + g(gelu(h @ self.w1.T + self.b1) @ self.w2.T + self.bias / dist.get_world_size(self.group))


class TwoSums(Given):
    """Right, but x and the bias are summed as well, as one rank's share, with one more f each."""

    def forward(self, x, f, g):
        h = f(self.ln(x))
        return x + g(gelu(h @ self.w1.T + self.b1) @ self.w2.T) + g(f(self.bias) / dist.get_world_size(self.group))


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (Right, "ok: 2 collectives, as few as possible"),
        (Given, "the output is not the dense block's"),
        (OnlyBias, "the norm's gradients are this rank's part"),
        (NoF, "the gradient of x is not"),
        (NoG, "the output is not the dense block's"),
        (ShareOfBias, "the gradient of bias is not the dense block's"),
        (TwoSums, "right, but 4 collectives; 2 will do"),
        (7, "pass the class itself"),
    ],
)
def test_mend_the_block(block, says):
    said = verdict("mend-the-block", block)
    assert says in said and said.startswith("ok") == (block is Right)
