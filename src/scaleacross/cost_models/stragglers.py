"""The slowest of many: what a job pays because accelerators of one type are not equally fast.

Chips of one type differ in voltage, leakage and cooling, hence in the clock that they hold under their power limit, and hosts in
what else they do. A synchronous step waits for all, so its computation runs at the pace of the slowest of the N that take part.
With speeds spread normally around their mean by a standard deviation of σ (``Accelerator.speed_spread_fraction``):

    pace = 1 + σ · z(N),    z(N) = Φ⁻¹((N − 3/8) / (N + 1/4))

z(N) is the expected largest of N standard normal values (Blom 1958, "Statistical Estimates and Transformed Beta-Variables"):
0 for one, 1.4 for 8, 3.0 for 512, 4.0 for 16,384. Regime: differences that last (a slow chip stays slow) and no replacement of
the slowest. That accelerators of one type differ at all is measured: 8 % variation in the mean and 22 % at most on five systems
(Sinha et al., "Not All GPUs Are Created Equal", SC 2022, arXiv 2208.11035, abstract); the normal law is assumed, σ is fitted.

Routed experts make ranks unequal too. With c = ``experts.load_spread`` the standard deviation of an expert's tokens over their
mean, normal and independent (assumed), a rank with k experts has 1 ± c / √k times the mean, and the busiest of r ranks

    load = 1 + c · z(r) / √k
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_NORMAL = NormalDist()


def slowest_ratio(spread_fraction: float, count: ArrayLike) -> Floats:
    """Time of the slowest of ``count`` ≥ 1 accelerators over that of the mean one, ≥ 1; broadcasts over ``count``."""
    counts, place = np.unique(np.asarray(count, dtype=np.int64), return_inverse=True)
    largest = np.array([_expected_largest(int(one)) for one in counts])
    return np.asarray(1.0 + spread_fraction * largest[place].reshape(np.shape(count)), dtype=np.float64)


def busiest_load(load_spread: float, num_experts: int, ranks: ArrayLike) -> Floats:
    """Tokens of the busiest of ``ranks`` that share the experts over their mean, ≥ 1; at most all of them; shape of ``ranks``."""
    ranks = np.asarray(ranks, dtype=np.float64)
    local = np.maximum(1.0, num_experts / ranks)
    return np.minimum(ranks, 1.0 + load_spread / np.sqrt(local) * (slowest_ratio(1.0, ranks) - 1.0))


@lru_cache(maxsize=65536)
def _expected_largest(count: int) -> float:
    """z(N) of the module docstring."""
    return max(0.0, _NORMAL.inv_cdf((count - 0.375) / (count + 0.25)))
