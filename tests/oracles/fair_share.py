"""Max-min fair rates of flows that share links: no flow can get more unless a flow with no more gets less.

Progressive filling raises all rates together. A flow stops at its own cap or when one of its links is full.

Source: Bertsekas and Gallager, Data Networks (1992), section 6.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SLACK = 1e-12  # relative; two limits closer than this are reached together


class Incidence(NamedTuple):
    """Which flow crosses which link, as parallel arrays.

    Attributes:
        flow, link: (crossings,) indices.
        weight: (crossings,) how many flows like this one cross the link together.
    """

    flow: Ints
    link: Ints
    weight: Floats

    @classmethod
    def of(cls, paths: Sequence[Sequence[tuple[int, float]]]) -> Incidence:
        """From (link, weight) pairs per flow."""
        flat = [(flow, link, weight) for flow, path in enumerate(paths) for link, weight in path]
        flow, link, weight = zip(*flat, strict=True) if flat else ((), (), ())
        return cls(np.array(flow, dtype=np.int64), np.array(link, dtype=np.int64), np.array(weight, dtype=np.float64))


def fair_rates(incidence: Incidence, caps: Floats, capacities: Floats) -> Floats:
    """Rates in bytes/s, (flows,).

    Args:
        incidence: paths of the flows.
        caps: (flows,) what each flow reaches alone, e.g. window over round trip; inf for none.
        capacities: (links,) bytes/s.

    A flow with neither cap nor link has rate inf.
    """
    num_flows, num_links = len(caps), len(capacities)
    rates = np.full(num_flows, np.inf)
    rising = np.ones(num_flows, dtype=bool)
    left = capacities.astype(np.float64).copy()
    while rising.any():
        live = rising[incidence.flow]
        load = np.bincount(incidence.link[live], incidence.weight[live], num_links)
        with np.errstate(divide="ignore", invalid="ignore"):
            level = np.where(load > 0, left / load, np.inf)
        limit = min(level.min(initial=np.inf), caps[rising].min())
        if np.isinf(limit):
            break
        full = level <= limit * (1 + _SLACK)
        stops = rising & (caps <= limit * (1 + _SLACK))
        stops[incidence.flow[live & full[incidence.link]]] = True
        rates[stops] = limit
        stopped = stops[incidence.flow] & live
        left -= limit * np.bincount(incidence.link[stopped], incidence.weight[stopped], num_links)
        np.maximum(left, 0.0, out=left)
        rising &= ~stops
    return rates
