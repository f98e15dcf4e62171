"""Rate over parallel links when flows are hashed onto them (ECMP) or sprayed packet by packet.

A collective ends with its slowest flow, so the fullest link sets the pace: efficiency = mean load / expected greatest
load. With many flows per link, hashing balances the load; with few, some link carries two flows while others carry
none.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from scaleacross.cost_models.candidates import Floats

_TAIL = 12.0  # standard deviations of a link's load that the sum covers


def ecmp_efficiency_fraction(num_flows: ArrayLike, num_links: ArrayLike) -> Floats:
    """Share of the capacity of ``num_links`` that ``num_flows`` equal hashed flows attain; each queue pair is a flow.

    The greatest of L loads, each Poisson with mean x = n/L, is

        E[max] = Σ_{k≥0} (1 − P(load ≤ k)^L)

    (loads of a multinomial, taken as independent; within 3 % of drawing them). Links without a flow count as lost: one
    flow attains 1/L.
    """
    flows, links = np.broadcast_arrays(num_flows, num_links)
    out = [_efficiency(int(hashed), int(lanes)) for hashed, lanes in zip(flows.flat, links.flat, strict=True)]
    return np.array(out, dtype=np.float64).reshape(flows.shape)


@cache
def _efficiency(hashed: int, num_links: int) -> float:
    if num_links <= 1 or hashed < 1:
        return 1.0
    mean = hashed / num_links
    spread = _TAIL * np.sqrt(mean) + _TAIL
    least = max(0, int(mean - spread))  # below this a link's load is practically impossible
    loads = np.arange(least, int(mean + spread) + 1)
    log_factorial = math.lgamma(least + 1) + np.concatenate([[0.0], np.cumsum(np.log(loads[1:]))])
    log_probability = loads * np.log(mean) - mean - log_factorial
    at_most = np.minimum(np.cumsum(np.exp(log_probability)), 1.0)
    greatest = max(1.0, least + float((1 - at_most**num_links).sum()))
    return min(1.0, mean / greatest)
