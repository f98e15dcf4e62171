"""Rate under packet loss, by what the transport does about a lost packet; p is the loss probability."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def go_back_n_fraction(loss_fraction: ArrayLike, window_packets: ArrayLike) -> Floats:
    """Go-back-N sends the whole window again: (1−p) / (1−p+p·W), W packets in flight.

    Source: Bertsekas and Gallager, Data Networks (1992), section 2.4.
    """
    loss = np.asarray(loss_fraction, dtype=np.float64)
    return (1 - loss) / (1 - loss + loss * np.asarray(window_packets))


def selective_repeat_fraction(loss_fraction: ArrayLike) -> Floats:
    """Selective repeat sends only what was lost again: 1−p."""
    return 1 - np.asarray(loss_fraction, dtype=np.float64)


def tcp_rate_bytes_per_s(segment_bytes: ArrayLike, one_way_latency_s: ArrayLike, loss_fraction: ArrayLike) -> Floats:
    """Most that one TCP connection with loss-based congestion control moves: MSS / (RTT·√(2p/3)); Mathis et al. (1997)."""
    with np.errstate(divide="ignore"):
        return np.asarray(segment_bytes, dtype=np.float64) / (
            2 * np.asarray(one_way_latency_s) * np.sqrt(2 * np.asarray(loss_fraction) / 3)
        )
