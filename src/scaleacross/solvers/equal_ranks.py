"""Equal layers and batches on mixed pools: how baselines' candidates are bounded and estimated there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats
from scaleacross.cost_models.step import placement_free_s
from scaleacross.cost_models.work import Work
from scaleacross.solvers.candidates import Pricing
from scaleacross.solvers.fleets import Fleet
from scaleacross.solvers.mixed_fleets import MixedPricing
from scaleacross.solvers.priced import Priced
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GridAxis
from scaleacross.workloads.layer_profile import ModelProfile


class EqualRanks(Pricing):
    """Equal layers and batches on a mixed pool, as baselines plan: memory and estimates are those of ranks that all have the
    slowest type, bounds are those of ``MixedPricing``.

    A bound on ranks of the slowest type is none: of two stages the longer one may lie in a building of faster accelerators.
    """

    @cached_property
    def _unlike(self) -> MixedPricing:
        return MixedPricing(**{each.name: getattr(self, each.name) for each in fields(Pricing)})

    def base_free_s(self, bases: Candidates) -> Floats:
        """As of ``MixedPricing``."""
        return self._unlike.base_free_s(bases)

    def base_bound_s(self, bases: Candidates) -> Floats:
        """As of ``MixedPricing``."""
        return self._unlike.base_bound_s(bases)

    def coarse(self, candidates: Candidates) -> Priced:
        """Work and estimate of ranks of the slowest type, bound of ``MixedPricing``."""
        return replace(super().coarse(candidates), bound_s=self._unlike.coarse(candidates).bound_s)

    def order_figures_s(self, candidates: Candidates, work: Work, orders: Sequence[Sequence[GridAxis]]) -> Floats:
        """Bounds and estimates, both less ``placement_free_s`` of ``work``."""
        least = self._unlike.coarse(candidates).work
        other_s = placement_free_s(self.volumes(candidates, least)) - placement_free_s(self.volumes(candidates, work))
        bounds = self._unlike.order_bounds_s(candidates, least, orders) + other_s
        return np.stack([bounds, super().order_figures_s(candidates, work, orders)[1]])


def equal_ranks_on(fleet: Fleet, job: Job, profile: ModelProfile) -> Pricing:
    """The pricing of baselines, with the library's networks: of one type, or ``EqualRanks``."""
    kind = EqualRanks if len(fleet.accelerators) > 1 else Pricing
    return kind.on(fleet, job, profile, network="library")
