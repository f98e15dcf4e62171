"""Rate over a distance: what is in flight bounds what arrives.

A sender may have q queue pairs with w unacknowledged segments of s bytes each. Over a round trip of RTT it cannot exceed
q·w·s / RTT, however fast the link is; to fill a link of rate B it needs the bandwidth-delay product B·RTT in flight.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def window_rate_bytes_per_s(
    queue_pairs: ArrayLike, outstanding: ArrayLike, segment_bytes: ArrayLike, one_way_latency_s: ArrayLike
) -> Floats:
    """Most that one connection moves, q·w·s / RTT; inf without latency."""
    window = _floats(queue_pairs) * _floats(outstanding) * _floats(segment_bytes)
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(window / (2 * _floats(one_way_latency_s)))


def _floats(value: ArrayLike) -> Floats:
    return np.asarray(value, dtype=np.float64)
