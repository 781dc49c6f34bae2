"""Formulas of the papers, as printed. What this package's own models do exactly is in the other modules of this room.

Letters follow the papers: L layers, h hidden size, a heads, s tokens in a sequence, b microbatch, B global batch, V
vocabulary, t tensor-parallel ranks, p pipeline stages, m interleaved parts of a stage. Activations and communication
assume 2-byte numbers where bytes are returned; sizes are whole numbers, except where a mean is asked for.
"""

from __future__ import annotations

from fractions import Fraction

from tp_teach.tables import wire_bytes


def gpt_parameters(L: int, h: int, V: int, s: int, tied: bool = True) -> Fraction:
    """Parameters of a GPT model: 12 L h^2 (1 + 13 / 12h + (V + s) / 12Lh).

    Narayanan et al. 2021, equation 2. The final norm's 2h are left out there. Untied adds the V h of an output matrix
    of its own, as in the table of model sizes in Megatron-LM's README.
    """
    total = 12 * L * h**2 * (1 + Fraction(13, 12 * h) + Fraction(V + s, 12 * L * h))
    return total if tied else total + V * h


def gpt_step_flops(L: int, h: int, V: int, s: int, B: int) -> Fraction:
    """Operations of one training step in which every layer is recomputed: 96 B s L h^2 (1 + s / 6h + V / 16Lh).

    Narayanan et al. 2021, equation 3.
    """
    return 96 * B * s * L * h**2 * (1 + Fraction(s, 6 * h) + Fraction(V, 16 * L * h))


def training_days(parameters: float, tokens: float, gpus: int, flops_per_gpu: float) -> float:
    """Days of training: 8 T P / (n X), with X the operations that one GPU really does in a second.

    Narayanan et al. 2021, equation 4. It drops the terms s / 6h and V / 16Lh of equation 3, so it is 1 to 3 % low.
    """
    return 8 * tokens * parameters / (gpus * flops_per_gpu) / 86400


def tensor_parallel_elements(b: int, s: int, h: int, t: int) -> Fraction:
    """Numbers that one rank sends for one layer, forward and backward: 8 b s h (t - 1) / t.

    Four all-reduces of b s h, each 2 (t - 1) / t on a ring: Narayanan et al. 2021, section 3.2.
    """
    return 8 * b * s * h * Fraction(t - 1, t)


ACTIVATIONS = ("none", "tp", "tp_sp", "tp_sel", "tp_sp_sel", "full")


def layer_activation_bytes(kept: str, b: int, s: int, h: int, a: int, t: int) -> Fraction:
    """Bytes that one rank keeps for the backward of one GPT layer: Korthikanti et al. 2022, table 2.

    `kept` names a row: none (no parallelism, t is ignored), tp, tp_sp (with sequence parallelism), tp_sel and
    tp_sp_sel (selective recomputation: scores, softmax and dropout of the attention are not kept), full (only the
    layer's input is kept). Dropout masks take one byte, all else two.
    """
    core = Fraction(5 * a * s, h)
    rows = {
        "none": 34 + core,
        "tp": 10 + (24 + core) / t,
        "tp_sp": (34 + core) / t,
        "tp_sel": 10 + Fraction(24, t),
        "tp_sp_sel": Fraction(34, t),
        "full": Fraction(2),
    }
    if kept not in rows:
        raise ValueError(f"kept={kept!r} is not a row of the table; use {', '.join(ACTIVATIONS)}")
    return b * s * h * rows[kept]


def interleave_factor(p: int, m: int) -> Fraction:
    """How much more the first pipeline stage keeps when its layers come in m parts: 1 + (p - 1) / (p m); 1 for m = 1.

    Korthikanti et al. 2022, section 4.2.3.
    """
    return 1 + Fraction(p - 1, p * m) if m > 1 else Fraction(1)


def weights_and_optimizer_bytes(L: int, h: int, t: int, p: int, bytes_per_parameter: int = 18) -> Fraction:
    """Bytes of weights, gradients and Adam on one rank: 18 x 12 L h^2 / (t p).

    Korthikanti et al. 2022, figure 1. Only the layers' matrices are counted there.
    """
    return Fraction(bytes_per_parameter * 12 * L * h**2, t * p)


def model_step_flops(L: int, h: int, V: int, s: int, B: int) -> Fraction:
    """Operations that the model needs in one step: 72 B L s h^2 (1 + s / 6h + V / 12hL).

    Korthikanti et al. 2022, equation 7.
    """
    return 72 * B * L * s * h**2 * (1 + Fraction(s, 6 * h) + Fraction(V, 12 * h * L))


def hardware_step_flops(L: int, h: int, V: int, s: int, B: int) -> Fraction:
    """Operations done when attention is recomputed selectively: 72 B L s h^2 (1 + s / 3h + V / 12hL).

    Korthikanti et al. 2022, equation 8.
    """
    return 72 * B * L * s * h**2 * (1 + Fraction(s, 3 * h) + Fraction(V, 12 * h * L))


def utilization(step_flops: float, seconds: float, gpus: int, peak_flops: float) -> float:
    """Share of the peak, 0 to 1: MFU from the model's operations, HFU from the hardware's."""
    return float(step_flops) / (seconds * gpus * peak_flops)


def zero_bytes(parameters: float, ranks: int, stage: int) -> float:
    """Bytes a rank for weights, gradients and optimizer in mixed precision with Adam (2 + 2 + 12 a parameter).

    Stage 0 shares nothing; 1 the optimizer state: 4 + 12 / N; 2 also gradients: 2 + 14 / N; 3 also weights: 16 / N.
    Rajbhandari et al. 2020, figure 1.
    """
    rows = {0: 16.0, 1: 4 + 12 / ranks, 2: 2 + 14 / ranks, 3: 16 / ranks}
    if stage not in rows:
        raise ValueError(f"stage={stage!r} is not a ZeRO stage; use 0, 1, 2 or 3")
    return rows[stage] * parameters


def largest_compute_bound_cut(hidden: int, flops_per_byte: float) -> float:
    """Ranks beyond which an MLP cut over them waits for its collectives: F / alpha.

    `hidden` is the MLP's inner size F, `flops_per_byte` the ratio alpha of a GPU's operations to its network's bytes
    in a second. Scaling book, training chapter: tensor parallelism is bound by communication when Y > F / alpha.
    """
    return hidden / flops_per_byte


def collective_seconds(op: str, payload_bytes: int, ranks: int, alpha: float, bus_bandwidth: float) -> float:
    """A collective's time with two parameters: alpha seconds to start, then its ring bytes at the bus bandwidth.

    `bus_bandwidth` is in bytes a second, as nccl-tests reports it (PERFORMANCE.md): ring bytes over time.
    """
    return alpha + wire_bytes(op, payload_bytes, ranks) / bus_bandwidth
