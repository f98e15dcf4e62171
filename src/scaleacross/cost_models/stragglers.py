"""Pace of the slowest of many: accelerators of one type are not equally fast, and ranks not equally busy.

Chips of one type differ in voltage, leakage and cooling, hence in the clock that they hold under their power limit.
Hosts differ in what else they do. A synchronous step waits for all, so its computation runs at the pace of the slowest
of the N that take part. With speeds around their mean by a standard deviation of σ
(``Accelerator.speed_spread_fraction``), spread by Laplace's law:

    pace = 1 + σ · z(N),    z(N) = (ln(N / 2) + γ) / √2,    γ = 0.5772

z(N) is the expected largest of many Laplace values of standard deviation 1: 1.4 for 8, 4.3 for 512, 6.8 for 16,384; it
grows by 0.49 with every doubling. The law assumes differences that last (a slow chip stays slow) and no replacement of
the slowest. That accelerators of one type differ is measured: by 8 % on average over five systems, with outliers up to
1.5 times slower than the median (Sinha et al., "Not All GPUs Are Created Equal", SC 2022, arXiv 2208.11035, abstract).
No normal law has such outliers, so the law has exponential tails; σ is fitted.

Routed experts make ranks unequal, too. Let c = ``experts.load_spread`` be the standard deviation of an expert's tokens
over their mean, by the same law and independent (assumed). Then a rank with k experts has 1 ± c / √k times the mean,
and the busiest of r ranks has

    load = 1 + c · z(r) / √k
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from scaleacross.cost_models.candidates import Floats


def slowest_ratio(spread_fraction: ArrayLike, count: ArrayLike) -> Floats:
    """Time of the slowest of ``count`` ≥ 1 accelerators over that of the mean one, ≥ 1; broadcasts."""
    largest = np.maximum(0.0, np.log(np.asarray(count) / 2) + np.euler_gamma) / np.sqrt(2)
    return np.asarray(1.0 + np.asarray(spread_fraction) * largest, dtype=np.float64)


def busiest_load(load_spread: float, num_experts: int, ranks: ArrayLike) -> Floats:
    """Tokens of the busiest of ``ranks`` over their mean, ≥ 1 and at most all of them; shape of ``ranks``."""
    local = np.maximum(1.0, num_experts / np.asarray(ranks))
    return np.minimum(ranks, slowest_ratio(load_spread / np.sqrt(local), ranks))
