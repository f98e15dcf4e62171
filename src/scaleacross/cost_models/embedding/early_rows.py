"""Exposed time of rows fetched ahead of their batch: rows that two consecutive batches read cannot be fetched early.

Symbols: F seconds to fetch all rows of a batch, of which concurrent products lose h seconds to the exchange's driver
(``network.drivers``); C seconds of computation concurrent with it; c the share of rows that the batch before reads as
well (and updates); α the latency of one more exchange.

    exposed = max((1 − c)·h, (1 − c)·F − C) + c·F + α

A row with the share p of all reads is in a batch of R reads with probability q = 1 − (1 − p)^R: c = Σ q² / Σ q over
rows. Reads are assumed to be independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.embedding.problem import EmbeddingProblem
from scaleacross.spec.network_choice import Driver
from scaleacross.spec.recommendation import EarlyRows, RankLoad
from scaleacross.workloads.recommendation import Dlrm, Locality

_BINS: Final = 400


def early_rows(
    problem: EmbeddingProblem, model: Dlrm, ranks: Sequence[RankLoad], driver: Driver = "multiprocessors"
) -> EarlyRows | None:
    """Exposed time of a plan if rows were fetched a batch ahead; None for TorchRec's estimator or several groups.

    Half of the busiest rank's exchange and a third of its look-ups are fetched early; the dense part is concurrent with
    them. The collision fraction is the mean over tables, weighted by their vectors. ``driver`` is that of ``problem``.
    """
    if problem.job.cost_model == "torchrec" or problem.num_groups > 1:
        return None
    batch = problem.job.global_batch_samples
    tables = [(table, batch * table.reads_per_sample) for table in model.tables]
    shares = [collision_fraction(model.locality, table.rows, reads) for table, reads in tables]
    weights = [table.num_tables * table.outputs_per_sample * table.dimension for table, _ in tables]
    collided = float(np.average(shares, weights=weights))
    busiest = max(ranks, key=lambda load: load.seconds)
    fetch_s = busiest.lookup_s / 3 + busiest.exchange_s / 2
    taken_s, computed_s = busiest.taken_s / 2, problem.top_s + problem.bottom_s
    exposed = exposed_fetch_s(fetch_s, computed_s, collided, problem.start_s / 2, taken_s)
    return EarlyRows(collision_fraction=collided, fetch_s=fetch_s, exposed_s=float(exposed), driver=driver)


def exposed_fetch_s(
    fetch_s: ArrayLike,
    computation_s: ArrayLike,
    collision_fraction: ArrayLike,
    start_s: ArrayLike = 0.0,
    taken_s: ArrayLike = 0.0,
) -> Floats:
    """Seconds that fetching adds to a step; ``taken_s`` is the time that products lose to it."""
    fetch, share = np.asarray(fetch_s, dtype=np.float64), np.asarray(collision_fraction, dtype=np.float64)
    early = np.maximum((1 - share) * np.asarray(taken_s), (1 - share) * fetch - np.asarray(computation_s))
    return np.asarray(early + share * fetch + np.asarray(start_s))


def collision_fraction(locality: Locality, rows: int, reads: float) -> float:
    """Expected share of a batch's distinct rows that the batch before reads too; a batch has ``reads`` of ``rows``."""
    edges = np.unique(np.concatenate(([0.0], np.geomspace(1 / rows, 1.0, min(_BINS, rows)))))
    taken = np.array([locality.read_share(share, rows) for share in edges])
    count = np.diff(edges) * rows
    # read share of one row: a bin of the read distribution over the rows in it
    each = np.clip(np.diff(taken) / taken[-1] / count, 0.0, 1.0)
    inside = -np.expm1(reads * np.log1p(-np.minimum(each, 1 - 1e-15)))
    found = float((count * inside).sum())
    return float((count * inside * inside).sum()) / found if found and math.isfinite(found) else 0.0
