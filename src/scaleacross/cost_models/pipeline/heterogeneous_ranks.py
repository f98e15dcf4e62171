"""Lower bound on warm-up and cool-down of a pipeline of heterogeneous ranks that are not known yet.

The bound assumes that its work is spread over the ranks in the best way. Rank r of p takes T[r] ≥ 0 seconds for the
forward and backward of a micro-batch at a relative speed f[r], φ ≤ f[r] ≤ 1. Together the ranks do Σ f·T ≥ W for each
of m micro-batches. If all take equally long, each takes the pace W/Σf. Whatever T is, some rank takes x ≥ pace, and the
step S ≥ m·x. Beyond that a rank waits:

any order     for the first micro-batch to pass the ranks before it, and after its last action for theirs, d·T[j] each:
              S ≥ m·T[r] + d·Σ_{j<r} T[j]. The most work Σ f·T that a step of S can hold is at a vertex of these
              inequalities, where every rank has nothing to do or no time left: the k-th of those that work has
              T = S/m·ρ^k, ρ = 1 − d/m. It is most where all work, the fast ones first: S ≥ m·W / Σ f[k]·ρ^k with f
              descending
GPipe         all other ranks twice, forward and backward:  S ≥ (m−1)·x + ΣT
1F1B          rank r has p−r−1 forwards ahead of its first backward and as many backwards after its last forward:
              S ≥ m·T[r] + Σ_{j<r} T[j] + 2·Σ_{j>r} T[j] − (p−r−1)·T[r] for m > p−r, hence S ≥ (m−p−1)·x + 2·ΣT; where
              m = p and rank 0 is the slowest, the inequality of rank 1 says as much

and ΣT ≥ p·pace − (p−1)·(1/φ−1)·(x − pace): the work that the slow ranks give away is done by at most p−1 others, 1/φ
times as fast. The laws of GPipe and 1F1B are solved for S with S ≥ m·x. The result is S ≥ (m + e)·pace; e grows with m.

Paces of replicas differ by 1/φ at most. A replica with few micro-batches, m[i] + e ≤ m·φ, is below S ≥ m·pace anyway.
So e of max(m⁻, m·φ − (p−1)) holds for every replica, and for their mean. In any order, replica i of m[i] ≤ m⁺
micro-batches has S·Σ f[i,k]·ρ^k ≥ m[i]·W with the ρ of m⁺. In the sum over replicas, the f of all replicas together,
the fast ones in the first places of all, carry Σ m[i].
"""

from __future__ import annotations

from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.pipeline.timed_bounds import among

ORDERED: Final = ("GPipe", "1F1B")
"""Schedules with a law of their own."""
TINY: Final = 1e-12
"""Least ρ, so that its logarithm is finite."""


def speed_in_any_order(speeds: Floats, numbers: Ints, replicas: Ints, lost: Floats) -> Floats:
    """Upper bound on Σ f·ρ^k of the module docstring over the ranks of all replicas, (n,).

    Args:
        speeds: f of every type, descending, (types, n).
        numbers: ranks of the i fastest types, cumulative, (types, n); the last row has all ranks.
        replicas: number of replicas, (n,).
        lost: 1 − ρ, (n,).
    """
    places, more = numbers // replicas, numbers % replicas
    # log ρ; places of a replica form the geometric series (1 − ρ^places) / (1 − ρ)
    rate = np.log1p(-np.minimum(lost, 1 - TINY))
    whole = np.where(lost > 0, -np.expm1(places * rate) / np.where(lost > 0, lost, 1.0), places)
    within = replicas * whole + more * np.exp(places * rate)
    return np.asarray((np.diff(within, axis=0, prepend=0.0) * speeds).sum(axis=0))


def own_fill_paces(schedule_codes: Ints, num_ranks: Ints, fewest_micro_batches: Floats, slowest: Floats) -> Floats:
    """e of GPipe and 1F1B, (n,); 0 for other schedules.

    Args:
        schedule_codes: indices of SCHEDULE_NAMES.
        fewest_micro_batches: m that every replica has, or that the law may assume (``at_least``).
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
    """Lower bound on S − m·pace, (n,), where all ranks together take ``once_s`` at the speed of the fastest: ΣT ≥ once.

    0 for schedules without a law of their own.
    """
    p, m = num_ranks, fewest_micro_batches
    one_f_one_b = np.minimum(1.0, m / (p + 1)) * (2 * once_s - (p + 1) * pace_s)
    gpipe = among(schedule_codes, ("GPipe",))
    own = np.where(gpipe, once_s - pace_s, one_f_one_b)
    return np.where(among(schedule_codes, ORDERED), np.maximum(0.0, own), 0.0)


def at_least(fewest: Ints, mean: Ints, num_ranks: Ints, slowest: Floats, alike: Bools) -> Floats:
    """Micro-batches for which e may be taken, (n,); the ``mean`` where there is only one replica (``alike``)."""
    return np.where(alike, mean, np.maximum(fewest, mean * slowest - (num_ranks - 1)))
