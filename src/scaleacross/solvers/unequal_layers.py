"""Layers per stage on one accelerator type: every pipeline once more, with its slowest stage as fast as possible.

The embedding, the head and layers of several types make stages with equal numbers of layers unequal in time. So a
candidate with a pipeline also gets the split of ``partition_stages``, which is exact for its times and memory. Its
bounds are those of ``mixed_pools``, which hold however layers are split. They are no tighter than the mean load of a
rank and its least warm-up and cool-down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from scaleacross.cost_models.candidates import Candidates
from scaleacross.cost_models.layout import Layout
from scaleacross.cost_models.recomputation import is_by_stage
from scaleacross.cost_models.step import placement_free_s
from scaleacross.cost_models.work import Work
from scaleacross.solvers.balance import Balance, Balancer
from scaleacross.solvers.every_placement import EveryPlacement, layout_axes
from scaleacross.solvers.mixed_pools import MixedBounder, of_one_type
from scaleacross.solvers.place_parallelism import ANYWHERE, AxisOrder, PlacementDecision, Wanted, axes_of, orders_of
from scaleacross.solvers.pools import AcceleratorPool
from scaleacross.spec.job import Job
from scaleacross.spec.recomputation import RECOMPUTES, rerun_period
from scaleacross.workloads.layer_profile import ModelProfile


def unequal_placers(
    pools: Iterable[AcceleratorPool], job: Job, profile: ModelProfile, incumbent_s: Callable[[], float]
) -> list[UnequalLayers]:
    """The placers of unequal stages, one for every pool of one type; mixed pools balance by type (``balance``)."""
    return [
        UnequalLayers(pool, MixedBounder.on(pool, job, profile), incumbent_s=incumbent_s)
        for pool in pools
        if len(pool.accelerators) == 1
    ]


@dataclass
class UnequalLayers(EveryPlacement):
    """Places only candidates whose best stages have other numbers of layers than the equal split."""

    least_stages: ClassVar[int] = 2

    def place(self, candidates: Candidates, work: Work, wanted: Wanted = ANYWHERE) -> PlacementDecision | None:
        """The result of ``EveryPlacement.place``; None also where the equal split is the best or the only legal one."""
        # policies that rerun one of d layers need equal chunks (R11), so they have no other split
        several = rerun_period(RECOMPUTES[int(candidates.recompute[0])]) == 1
        if is_by_stage(candidates) or (several and self._balancer(candidates).unequal_split is not None):
            return super().place(candidates, work, wanted)
        return None

    def _promising(self, candidates: Candidates, work: Work, cutoff_s: float) -> dict[AxisOrder, float]:
        """The axis orders whose bound with these layers is below the cutoff, each with that bound in seconds.

        Bounds are taken on the best links of the pool; without a cutoff they are -inf.
        """
        orders = orders_of(candidates)
        if not np.isfinite(cutoff_s):
            return dict.fromkeys(orders, -np.inf)
        balancer, mixed, known = self._balancer(candidates), self.bounder, of_one_type(self.bounder)
        degrees, idle = candidates.decision(0).degrees, axes_of(candidates)[1]
        size, axes = degrees.world_size, layout_axes(degrees, (*idle, *orders[0]))
        layouts = (self._layout(size, allocation, axes) for allocation in self.allocations_of(candidates))
        balances = next(filter(None, (list(self._balances(balancer, layout)) for layout in layouts)), [])
        limit_s = cutoff_s + float(placement_free_s(mixed.volumes(candidates, work))[0])
        bounds = np.full(len(orders), np.inf)
        for balance in balances:  # all layouts of one type have the same balances
            ranks, works, _ = balancer.rows(balance)
            free_s = placement_free_s(known.volumes(ranks, works))
            if free_s.max() < limit_s:
                bounds = np.minimum(bounds, (free_s + known.order_bounds_s(ranks, works, orders)).max(axis=1))
        added_s = bounds - (limit_s - cutoff_s)
        return {order: added for order, added in zip(orders, added_s.tolist(), strict=True) if added < cutoff_s}

    def _balances(self, balancer: Balancer, layout: Layout) -> Iterable[Balance]:
        return balancer.by_stage(layout) if is_by_stage(balancer.candidates) else balancer.unequal(layout)
