"""Rate under packet loss, by what the transport does about a lost packet; p is the loss probability."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def go_back_n_fraction(loss_fraction: ArrayLike, window_packets: ArrayLike) -> Floats:
    """Go-back-N sends the whole window again: (1−p) / (1−p+p·W), W packets in flight; W = 1 is selective repeat.

    Source: Bertsekas and Gallager, Data Networks (1992), section 2.4.
    """
    loss = np.asarray(loss_fraction, dtype=np.float64)
    return (1 - loss) / (1 - loss + loss * np.asarray(window_packets))
