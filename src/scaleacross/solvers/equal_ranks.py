"""Bounds and estimates for baselines on mixed pools: equal layers and batches on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats
from scaleacross.cost_models.step import placement_free_s
from scaleacross.cost_models.work import Work
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.mixed_pools import MixedBounder
from scaleacross.solvers.pools import AcceleratorPool
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GridAxis
from scaleacross.workloads.layer_profile import ModelProfile


class EqualRanks(Bounder):
    """Bounder of equal layers and batches on a mixed pool, as baselines plan.

    Memory and estimates are those of ranks that all have the slowest type. Bounds are those of ``MixedBounder``,
    because the step of such ranks is no bound: of two stages the longer one may lie in a building of faster
    accelerators.
    """

    @cached_property
    def _heterogeneous(self) -> MixedBounder:
        return MixedBounder(**{each.name: getattr(self, each.name) for each in fields(Bounder)})

    def partial_free_s(self, partials: Candidates) -> Floats:
        """Return ``MixedBounder.partial_free_s``."""
        return self._heterogeneous.partial_free_s(partials)

    def partial_bound_s(self, partials: Candidates) -> Floats:
        """Return ``MixedBounder.partial_bound_s``."""
        return self._heterogeneous.partial_bound_s(partials)

    def coarse(self, candidates: Candidates) -> Bounded:
        """Return work and estimate of ranks of the slowest type with the bound of ``MixedBounder``."""
        return replace(super().coarse(candidates), bound_s=self._heterogeneous.coarse(candidates).bound_s)

    def order_figures_s(self, candidates: Candidates, work: Work, orders: Sequence[Sequence[GridAxis]]) -> Floats:
        """Return bounds and estimates less ``placement_free_s`` of ``work``, s, (2, orders, n)."""
        least = self._heterogeneous.coarse(candidates).work
        # ``MixedBounder`` bounds refer to another placement-free part, so both are put on that of ``work``
        other_s = placement_free_s(self.volumes(candidates, least)) - placement_free_s(self.volumes(candidates, work))
        bounds = self._heterogeneous.order_bounds_s(candidates, least, orders) + other_s
        return np.stack([bounds, super().order_figures_s(candidates, work, orders)[1]])


def equal_ranks_on(pool: AcceleratorPool, job: Job, profile: ModelProfile) -> Bounder:
    """Return the bounder of baselines with the library's networks: ``EqualRanks`` on a mixed pool, else ``Bounder``."""
    kind = EqualRanks if len(pool.accelerators) > 1 else Bounder
    return kind.on(pool, job, profile, network="library")
