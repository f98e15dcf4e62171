"""The baseline that a model has to beat: one constant efficiency per accelerator and precision.

    step = F / (n · peak · u)

F = 3 × forward FLOP with the full s × s attention square and the head, plus one more forward of the layers with full
recomputation. u minimises the mean relative error over the rows that it is fitted on, which are the rows that it is
scored on. The peak only scales u.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scaleacross.validation.mapping import Case
from scaleacross.validation.metrics import weighted_quantile
from scaleacross.workloads.layer_profile import LayerProfile

Floats = NDArray[np.float64]


def forward_flop_per_token(layer: LayerProfile, sequence_length: int, *, causal: bool) -> float:
    """Forward FLOP of one layer per token; attention counts half of the square if ``causal``, else all of it."""
    square = layer.attention.flop_per_token(sequence_length) if layer.attention and not causal else 0.0
    return layer.forward_flop_per_token(sequence_length) + square


def step_flop(case: Case, *, causal: bool = False, recompute: bool = True) -> float:
    """FLOP of a whole step by the chosen convention; ``recompute`` adds the second forward of full recomputation."""
    profile, run = case.profile, case.run
    layers = sum(count * forward_flop_per_token(block, run.seq, causal=causal) for block, count in profile.blocks)
    head = forward_flop_per_token(profile.head, run.seq, causal=causal)
    again = 1 if recompute and run.recompute.startswith("full") else 0
    return (3 * (layers + head) + again * layers) * run.seq * run.gbs


def ideal_s(case: Case) -> float:
    """Step time at u = 1, s."""
    peak = case.topology.buildings[0].accelerator.peak_flop_per_s[case.job.precision]
    return step_flop(case) / (case.run.n_gpus * peak)


def constant_mfu(cases: Sequence[Case], measured_s: Floats) -> tuple[Floats, dict[str, float]]:
    """Baseline predictions, s, (rows,), and the fitted u per "accelerator precision"."""
    ideal = np.array([ideal_s(case) for case in cases])
    keys = np.array([f"{case.run.gpu.split(' ', 1)[0]} {case.job.precision}" for case in cases])
    predicted = np.empty(len(cases))
    fitted: dict[str, float] = {}
    for key in dict.fromkeys(keys.tolist()):
        rows = keys == key
        share = ideal[rows] / measured_s[rows]
        inverse = weighted_quantile(1 / share, share, 0.5)  # minimises Σ |share · x − 1|
        predicted[rows] = ideal[rows] * inverse
        fitted[key] = 1 / inverse
    return predicted, fitted
