"""Fill and drain of a pipeline whose ranks are not known, at least: how its work may best be spread over unlike ranks.

Rank r of p takes T[r] ≥ 0 seconds for the forward and backward of a micro-batch at a relative speed f[r], φ ≤ f[r] ≤ 1. Together
the ranks do Σ f·T ≥ W for each of m micro-batches; spread so that all take as long, each takes the pace W/Σf. Whatever T is, some
rank takes x ≥ pace, and the step S ≥ m·x. Beyond that a rank waits:

any order     for the first micro-batch to pass the ranks before it, and after its last action for theirs, d·T[j] each:
              S ≥ m·T[r] + d·Σ_{j<r} T[j]. The most work Σ f·T that a step of S can hold is at a vertex of these inequalities,
              where every rank has nothing to do or no time left: the k-th of those that work has T = S/m·ρ^k, ρ = 1 − d/m. It
              is most where all work, the fast ones first: S ≥ m·W / Σ f[k]·ρ^k, f in descending order
GPipe         all other ranks twice, forward and backward:  S ≥ (m−1)·x + ΣT
1F1B          rank r has p−r−1 forwards ahead of its first backward and as many backwards behind its last forward:
              S ≥ m·T[r] + Σ_{j<r} T[j] + 2·Σ_{j>r} T[j] − (p−r−1)·T[r] for m > p−r, hence S ≥ (m−p−1)·x + 2·ΣT; where m = p
              and rank 0 is the slowest, the inequality of rank 1 says as much

and ΣT ≥ p·pace − (p−1)·(1/φ−1)·(x − pace): what the slow ranks give away the others, p−1 at most, do 1/φ times as fast. Solved
for S with S ≥ m·x, those of GPipe and 1F1B are S ≥ (m + e)·pace with an e that grows with m. Paces of replicas differ by 1/φ at
most, and one of few micro-batches, m[i] + e ≤ m·φ, is below S ≥ m·pace anyhow: e of max(m⁻, m·φ − (p−1)) holds for every replica,
and for their mean. In any order replica i of m[i] ≤ m⁺ micro-batches has S·Σ f[i,k]·ρ^k ≥ m[i]·W with the ρ of m⁺: added up, the
f of all replicas together, the fast ones in the first places of all, take Σ m[i].
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleacross.cost_models.pipeline.timed_bounds import Ints, among

Floats = NDArray[np.float64]

ORDERED: Final = ("GPipe", "1F1B")
"""Schedules with a law of their own."""
TINY: Final = 1e-12
"""ρ where it is 0, whose logarithm is finite."""


def speed_in_any_order(speeds: Floats, numbers: Ints, replicas: Ints, lost: Floats) -> Floats:
    """Σ f·ρ^k of the module docstring over the ranks of all replicas, at most, (n,).

    Args:
        speeds: f of every type, descending, (types, n).
        numbers: ranks of the i fastest types, (types, n); the last ones are all.
        replicas: how many there are, (n,).
        lost: 1 − ρ, (n,).
    """
    places, more = numbers // replicas, numbers % replicas
    rate = np.log1p(-np.minimum(lost, 1 - TINY))
    whole = np.where(lost > 0, -np.expm1(places * rate) / np.where(lost > 0, lost, 1.0), places)
    within = replicas * whole + more * np.exp(places * rate)
    return np.asarray((np.diff(within, axis=0, prepend=0.0) * speeds).sum(axis=0))


def own_fill_paces(schedule_codes: Ints, num_ranks: Ints, fewest_micro_batches: Floats, slowest: Floats) -> Floats:
    """e of GPipe and 1F1B, (n,); 0 for other schedules.

    Args:
        schedule_codes: indices of SCHEDULE_NAMES.
        fewest_micro_batches: m that every replica has, or may be taken to have (``at_least``).
        slowest: φ.
    """
    p, m = num_ranks, fewest_micro_batches
    given = (p - 1) * (1 / slowest - 1)
    gpipe = among(schedule_codes, ("GPipe",))
    least = np.where(gpipe, 1 + given, p + 1 + 2 * given)
    own = (p - 1) * np.minimum(1.0, m / least)
    return np.where(among(schedule_codes, ORDERED), own, 0.0)


def fill_past_once_s(
    schedule_codes: Ints, num_ranks: Ints, fewest_micro_batches: Floats, once_s: Floats, pace_s: Floats
) -> Floats:
    """S − m·pace at least where all ranks together take ``once_s`` at the speed of the fastest, (n,): ΣT ≥ once; 0 for others."""
    p, m = num_ranks, fewest_micro_batches
    one_f_one_b = np.minimum(1.0, m / (p + 1)) * (2 * once_s - (p + 1) * pace_s)
    gpipe = among(schedule_codes, ("GPipe",))
    own = np.where(gpipe, once_s - pace_s, one_f_one_b)
    return np.where(among(schedule_codes, ORDERED), np.maximum(0.0, own), 0.0)


def at_least(fewest: Ints, mean: Ints, num_ranks: Ints, slowest: Floats, alike: NDArray[np.bool_]) -> Floats:
    """Micro-batches for which e may be taken, (n,): all have the ``mean`` where there is one replica (``alike``)."""
    return np.where(alike, mean, np.maximum(fewest, mean * slowest - (num_ranks - 1)))
