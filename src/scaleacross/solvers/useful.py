"""The useful share of the time in a search for useful tokens per second.

The score is T/G: wall-clock seconds for the tokens of one step. A bound on it is a bound on T divided by a bound on G:

U1 share    for R fault units on N accelerators no placement, schedule or batch policy has a higher share than G*(R, N).
            G* assumes the best of everything. Every failure of a host or an accelerator hits one unit only (it hits one
            at least), and no rack, zone, building or link fails. A missing unit takes 1/R of the tokens. Hosts are as
            small as the smallest of the pool: states load fastest, and most of them make up a unit. Hosts in repair
            are as rare as with the largest (``share.most_useful_share``). With R > 1 checkpoints cost and lose nothing
U2 ratio    T/G ≥ (bound on T)/G*(R, N), because G ≤ G*(R, N) and both are positive
U3 partial  a partial candidate stands for every R that divides dp: the greatest G*(R, N) of these counts

U1 holds because the share falls with the rate of strikes of any kind, with the units that a strike hits, with the time
to recover and with ``unit_loss``, term by term of ``goodput.share``. The window that a strike on all units opens is no
shorter than the windows of a strike on one, (1/R)·D + (1 − 1/R)·s ≤ D ≤ D_all. D depends on R, N and the hosts alone,
so it is nearly exact in the bound. With R = 1 checkpoints are those of the exact share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats, Ints
from scaleacross.cost_models.goodput import fault_model, recovering
from scaleacross.cost_models.goodput.recovery import recovery_times
from scaleacross.cost_models.goodput.share import best_interval_s, most_useful_share, stop_rate, useful_share
from scaleacross.cost_models.goodput.strikes import Laid, fewest_strikes
from scaleacross.solvers.pools import Allocation, shares
from scaleacross.solvers.search_space import divisors
from scaleacross.spec.goodput import FaultModel
from scaleacross.spec.parallelism import Degrees, GridAxis
from scaleacross.spec.placement import strides
from scaleacross.spec.reliability import Failures, Recovery
from scaleacross.workloads.problem import Problem

LEAST = 1e-12
"""Smaller shares count as this much, so that scores stay finite."""


@dataclass(frozen=True)
class UsefulShare:
    """Useful shares of placed candidates and upper bounds on them, both remembered."""

    problem: Problem
    _exact: dict[tuple[object, ...], float] = field(default_factory=dict)
    _most: dict[tuple[int, int], float] = field(default_factory=dict)

    def exact(
        self, degrees: Degrees, micro_batches: int, allocation: Allocation, axis_order: Sequence[GridAxis]
    ) -> float:
        """Useful share of one placed candidate."""
        stride = strides(degrees, axis_order)["dp_replicate"]
        key = (degrees.dp_replicate, stride, micro_batches, allocation)
        if key not in self._exact:
            problem = self.problem
            laid = Laid(problem.topology, shares(allocation), degrees, axis_order)
            model = fault_model(problem.job, problem.profile, laid, micro_batches)
            self._exact[key] = max(useful_share(model)[0], LEAST)
        return self._exact[key]

    def bound(self, candidates: Candidates) -> Floats:
        """U1: upper bound on the share of every placement of a candidate, (n,)."""
        return self._of_rows(candidates.dp_replicate, candidates.world_size, split=False)

    def partial_bound(self, partials: Candidates) -> Floats:
        """U3: upper bound on the share of every candidate of a partial candidate, (n,)."""
        return self._of_rows(partials.dp, partials.world_size, split=True)

    def _of_rows(self, units: Ints, sizes: Ints, split: bool) -> Floats:
        pairs, row = np.unique(np.stack([units, sizes]), axis=1, return_inverse=True)
        most = [
            max(self._of(one, int(size)) for one in (divisors(int(count)) if split else [int(count)]))
            for count, size in pairs.T
        ]
        return np.array(most, dtype=np.float64)[row.ravel()]

    def _of(self, units: int, size: int) -> float:
        """G*(R, N) of U1."""
        if (units, size) not in self._most:
            most = max(building.accelerators_per_host for building in self.problem.topology.buildings)
            self._most[units, size] = max(most_useful_share(self._best_case(units, size), -(-size // most)), LEAST)
        return self._most[units, size]

    def _best_case(self, units: int, size: int) -> FaultModel:
        job, topology = self.problem.job, self.problem.topology
        recovery, failures = job.reliability or Recovery(), topology.reliability or Failures()
        alone = units if recovery.policy == "shrink" else 1
        hosts = [building.accelerators_per_host for building in topology.buildings]
        times = recovery_times(job, self.problem.profile, size, alone, min(hosts))
        strikes = fewest_strikes(failures, size, max(hosts))
        model = recovering(alone, strikes, times, recovery, failures, 1 / alone, -(-size // min(hosts)))
        if alone > 1:
            return model
        interval_s = times.interval_s(recovery, stop_rate(model))
        if interval_s is not None and recovery.checkpoint_interval_s != "auto":
            # storage of fewer hosts may need a longer interval, so the best of all from the stated one on counts
            fewest = recovery_times(job, self.problem.profile, size, alone, max(hosts))
            most_s = max(interval_s, fewest.least_interval_s)
            best_s = best_interval_s(stop_rate(model), times.blocking_s)
            interval_s = most_s if best_s is None else min(max(interval_s, best_s), most_s)
        return model.model_copy(update={"checkpoint_interval_s": interval_s})
