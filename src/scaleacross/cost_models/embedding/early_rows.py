"""What rows fetched ahead of their batch still cost: those that two batches in a row read cannot come early.

Symbols: F seconds to fetch all rows of a batch, C seconds of computation beside it, c the share of rows that the batch before
reads as well (and updates), α the latency of one more exchange.

    exposed = max(0, (1 − c)·F − C) + c·F + α

A row that takes the share p of all reads is in a batch of R reads with probability q = 1 − (1 − p)^R: c = Σ q² / Σ q over rows.
Reads are taken as independent.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from scaleacross.cost_models.settings import Floats
from scaleacross.workloads.recommendation import Locality

_BINS: Final = 400


def exposed_fetch_s(
    fetch_s: ArrayLike, computation_s: ArrayLike, collision_fraction: ArrayLike, start_s: ArrayLike = 0.0
) -> Floats:
    """Seconds of fetching that no computation hides."""
    fetch, share = np.asarray(fetch_s, dtype=np.float64), np.asarray(collision_fraction, dtype=np.float64)
    early = np.maximum(0.0, (1 - share) * fetch - np.asarray(computation_s))
    return np.asarray(early + share * fetch + np.asarray(start_s))


def collision_fraction(locality: Locality, rows: int, reads: float) -> float:
    """Expected share of the different rows of a batch that the batch before reads too; ``reads`` of a batch from ``rows``."""
    edges = np.unique(np.concatenate(([0.0], np.geomspace(1 / rows, 1.0, min(_BINS, rows)))))
    taken = np.array([locality.read_share(share, rows) for share in edges])
    count = np.diff(edges) * rows
    each = np.clip(np.diff(taken) / taken[-1] / count, 0.0, 1.0)
    inside = -np.expm1(reads * np.log1p(-np.minimum(each, 1 - 1e-15)))
    found = float((count * inside).sum())
    return float((count * inside * inside).sum()) / found if found and math.isfinite(found) else 0.0
