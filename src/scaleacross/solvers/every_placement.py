"""Try every placement of a candidate, where work is balanced over accelerator types or failures restrict the placement.

Space         every axis order on every allocation (S1–S3, ``pools``), every balance of its layout (B1–B3, ``balance``)
C1 failures   no unit (zone or building) holds more data-parallel replicas than ``job.failure_domains`` allows to lose

The *layout* of a placement is the types on each stage of each replica class. Layouts are few, and each is balanced.
Balances whose computation alone takes too long are dropped. All others are bounded in arrays, on all orders and
allocations of their layouts at once. They get exact step times, least bound first, until the next bound is not below
the best. Orders whose own bound (``order_bounds_s``) is not below it are left out. Of the others the pipeline is timed
first, and the rest only where both together may be below the best. There are at most 5! orders, and allocations depend
on the number of buildings. So only the counting of groups grows with the accelerators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.axes import axis_terms, searched_network
from scaleacross.cost_models.candidates import Candidates, Floats, Ints, candidate_of
from scaleacross.cost_models.differing_ranks import Rows
from scaleacross.cost_models.failures import replicas_lost
from scaleacross.cost_models.groups import stacked_shapes
from scaleacross.cost_models.layer_seconds import LAYER_COLUMNS, StackedTimes, TimedLayers, times_by_type
from scaleacross.cost_models.layout import LAYOUT_AXES, Axis, Layout, layout_on
from scaleacross.cost_models.levels import CAMPUS
from scaleacross.cost_models.links import stacked_links
from scaleacross.cost_models.pipeline.unplaced import WAITED
from scaleacross.cost_models.plan_cost import stage_memory
from scaleacross.cost_models.recomputation import is_by_stage
from scaleacross.cost_models.step import StepTimes, placement_free_s, step_times
from scaleacross.cost_models.work import Work
from scaleacross.solvers.balance import Balance, Balancer
from scaleacross.solvers.mixed_pools import MixedBounder, bounder_on
from scaleacross.solvers.place_parallelism import (
    ANYWHERE,
    AxisOrder,
    Place,
    PlacementDecision,
    Placer,
    Wanted,
    axes_of,
    orders_of,
)
from scaleacross.solvers.pools import AcceleratorPool, Allocation, shares
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GRID_AXES, Degrees, GridAxis
from scaleacross.spec.placement import Placement, strides
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import RECOMPUTES, rerun_period
from scaleacross.spec.topology import Building
from scaleacross.workloads.layer_profile import ModelProfile

Strided = tuple[Axis, ...]
"""Degree and stride of each of LAYOUT_AXES."""


class Trial(NamedTuple):
    """A balance of a layout: least seconds of its computation, its rows of candidates, and its possible places."""

    floor_s: float
    balance: Balance
    rows: Rows
    places: Sequence[Place]


def placer_on(
    pool: AcceleratorPool,
    job: Job,
    profile: ModelProfile,
    incumbent_s: Callable[[], float] = lambda: np.inf,
    balanced: bool = True,
) -> Placer:
    """Return the placer for a pool.

    Args:
        incumbent_s: where every placement is tried, nothing at or above this is placed.
        balanced: False on several types: equal layers and batches only, whether they fit in memory or not.
    """
    bounder = bounder_on(pool, job, profile)
    if len(pool.accelerators) == 1 and job.failure_domains is None:
        return Placer(pool, bounder)
    return EveryPlacement(pool, bounder, incumbent_s=incumbent_s, balanced=balanced)


@dataclass
class EveryPlacement(Placer):
    """Places and balances candidates by trying every placement."""

    incumbent_s: Callable[[], float] = lambda: np.inf
    balanced: bool = True
    _layouts: dict[tuple[Allocation, Strided], Layout] = field(default_factory=dict)
    _times: dict[tuple[int, ...], list[StackedTimes]] = field(default_factory=dict)

    def place(self, candidates: Candidates, work: Work, wanted: Wanted = ANYWHERE) -> PlacementDecision | None:
        """Return the best placement and balance of a single candidate.

        None when no allocation holds it, nothing fits in memory, or (unless a slowest axis is asked for) nothing is
        faster than the incumbent. ``communication_s`` of the decision is the step less what ``work`` takes, so that
        both add up to the step.
        """
        free_s = float(placement_free_s(self.bounder.volumes(candidates, work))[0])
        limit_s = np.inf if wanted.slowest_axis else min(self.incumbent_s(), free_s + wanted.cutoff_s)
        best: PlacementDecision | None = None
        orders = wanted.among(list(self._promising(candidates, work, limit_s - free_s)))
        trials = [one for one in self._balanced(candidates, orders) if one.floor_s < limit_s]
        at = [(one.balance, place) for one in trials for place in one.places]
        floors, after_pipeline_s = self._floors_s(trials)
        for index in np.argsort(floors, kind="stable").tolist():
            if floors[index] >= limit_s:
                break
            if wanted.stop() or (best is not None and best.communication_s <= wanted.enough_s):
                return best and replace(best, complete=False)
            balance, (allocation, order) = at[index]
            decision = balanced(candidates.decision(0), balance)
            step_s = self._step_s(decision, (allocation, order), limit_s, float(after_pipeline_s[index]))
            if step_s < limit_s:
                limit_s = step_s
                best = PlacementDecision(order, allocation, step_s - free_s, complete=True, balance=balance)
        return best

    def every_of(self, decision: Decision) -> Iterator[tuple[float, PlacementDecision]]:
        """Yield step time and placement of a decision wherever it can lie unchanged; its own placement is ignored.

        Left out are placements in which it does not fit, that lose too many replicas (C1), or that have other replica
        classes than its batch shares name.
        """
        job, profile, accelerators = self.bounder.job, self.bounder.profile, self.bounder.accelerators
        candidates = candidate_of(decision, job.global_batch_sequences)
        for layout, places in self._by_layout(candidates).items():
            if not _holds(layout, decision):
                continue
            memory = stage_memory(job, profile, accelerators, decision, candidates, layout)
            if not all(stage.fits for stage in memory):
                continue
            for place in places:
                allocation, axis_order = place
                yield self._step_s(decision, place), PlacementDecision(axis_order, allocation, 0.0, complete=True)

    @property
    def by_stage(self) -> bool:
        """Whether it places candidates with a recompute policy per stage: its bounds must hold for unequal stages."""
        return self.balanced and isinstance(self.bounder, MixedBounder)

    def unlimited(self) -> Placer:
        """Return the same placer without an incumbent."""
        return replace(self, incumbent_s=lambda: np.inf)

    def _balanced(self, candidates: Candidates, orders: Sequence[AxisOrder] | None) -> list[Trial]:
        """Return every balance of every layout, lowest floor first; ``orders`` of the active axes, None for all."""
        bounder, balancer = self.bounder, self._balancer(candidates)
        out = []
        for layout, alike in self._by_layout(candidates, orders).items():
            for balance in self._balances(balancer, layout):
                rows = balancer.rows(balance)
                floor_s = float(placement_free_s(bounder.volumes(*rows[:2])).max())
                out.append(Trial(floor_s, balance, rows, alike))
        return sorted(out, key=lambda one: one.floor_s)

    def _balancer(self, candidates: Candidates) -> Balancer:
        bounder, times = self.bounder, self._layer_times(candidates)
        return Balancer(TimedLayers(bounder.profile, bounder.job, bounder.accelerators, candidates, times))

    def _balances(self, balancer: Balancer, layout: Layout) -> Iterable[Balance]:
        """Return the balances to try on a layout: only the equal one if a part of every chunk's layers runs again."""
        if self.balanced and is_by_stage(balancer.candidates):
            return balancer.by_stage(layout)
        several = self.balanced and rerun_period(RECOMPUTES[int(balancer.candidates.recompute[0])]) == 1
        return balancer.balances(layout) if several else [balancer.equal(layout)]

    def _by_layout(
        self, candidates: Candidates, orders: Sequence[AxisOrder] | None = None
    ) -> dict[Layout, list[Place]]:
        places: dict[Layout, list[Place]] = {}
        degrees = candidates.decision(0).degrees
        strided: dict[AxisOrder, Strided] = {}  # an order has as many places as there are allocations
        for place in self.places(candidates, orders):
            allocation, order = place
            if order not in strided:
                strided[order] = layout_axes(degrees, order)
            places.setdefault(self._layout(degrees.world_size, allocation, strided[order]), []).append(place)
        return places

    def places(self, candidates: Candidates, orders: Sequence[AxisOrder] | None = None) -> Iterator[Place]:
        """Yield the places where a single candidate may lie; ``orders`` of its active axes, None for all."""
        idle, orders = axes_of(candidates)[1], orders_of(candidates) if orders is None else orders
        for allocation in self.allocations_of(candidates) if orders else ():
            for order in orders:
                place = (allocation, (*idle, *order))
                if self._c1_failures(candidates, place):
                    yield place

    def _c1_failures(self, candidates: Candidates, place: Place) -> bool:
        wanted, (allocation, order) = self.bounder.job.failure_domains, place
        if wanted is None:
            return True
        degrees = candidates.decision(0).degrees
        lost = replicas_lost(self.pool.topology, shares(allocation), degrees, order, wanted.level)
        return lost <= wanted.max_replicas_lost

    def _layer_times(self, candidates: Candidates) -> list[StackedTimes]:
        key = tuple(int(getattr(candidates, name)[0]) for name in (*LAYER_COLUMNS, "recompute", "world_size"))
        if key not in self._times:
            bounder = self.bounder
            self._times[key] = times_by_type(bounder.profile, bounder.job, bounder.accelerators, candidates)
        return self._times[key]

    @cached_property
    def _buildings(self) -> dict[str, Building]:
        return {building.name: building for building in self.pool.topology.buildings}

    def _layout(self, size: int, allocation: Allocation, strided: Strided) -> Layout:
        key = allocation, strided
        if key not in self._layouts:
            used = [self._buildings[name] for name, _ in allocation]
            self._layouts[key] = layout_on(used, [count for _, count in allocation], size, *strided)
        return self._layouts[key]

    def _step_s(
        self, decision: Decision, place: Place, limit_s: float = np.inf, after_pipeline_s: float = 0.0
    ) -> float:
        """Return the exact step in a place, s; inf once it is known to take ``limit_s`` (``step_seconds``)."""
        return self.on(place[0]).step_s(placed_at(decision, place), self._known, limit_s, after_pipeline_s)

    def _floors_s(self, trials: Sequence[Trial]) -> tuple[Floats, Floats]:
        """Return lower bounds on the step and on what follows the pipeline, s, (places,) each, trial by trial.

        The bound of a place is that of the longest of the trial's rows.
        """
        if not trials:
            return np.zeros(0), np.zeros(0)
        times, sizes = self._times_at(trials), [len(one.rows.types) for one in trials for _ in one.places]
        # the rows of one trial in one place are adjacent, so ``reduceat`` reduces each run of them
        starts = np.cumsum([0, *sizes[:-1]])
        return np.maximum.reduceat(times.step_s, starts), np.minimum.reduceat(times.after_pipeline_s, starts)

    def _times_at(self, trials: Sequence[Trial]) -> StepTimes:
        """Return lower bounds on the step of every row in every place, as if pipeline messages took no time.

        They are ordered trial by trial, place by place, row by row. A row waits for a group inside a building as long
        as the group takes on the row's own accelerator type.
        """
        places = {place: index for index, place in enumerate(dict.fromkeys(p for one in trials for p in one.places))}
        place, row = _pairs(trials, places)
        first = trials[0].rows.candidates.take(np.zeros(1, dtype=np.int64))
        rows = Rows.concatenated([one.rows for one in trials]).take(row)
        volumes = self.bounder.volumes(rows.candidates, rows.work)
        allocations = {
            allocation: index for index, allocation in enumerate(dict.fromkeys(allocation for allocation, _ in places))
        }
        whole = [self.levels(allocation) for allocation in allocations]
        at = np.array([allocations[allocation] for allocation, _ in places])[place]
        own = [levels.on(name) for name in self.bounder.types for levels in whole]
        # in ``[*whole, *own]`` the links of type t on fill i follow at (t + 1) · fills + i
        links, at_own = stacked_links(whole, at), (rows.types + 1) * len(whole) + at
        network = searched_network(self.bounder.job, self.bounder.accelerators)
        terms = []
        for axis in (axis for axis in GRID_AXES if axis != "pp"):
            arcs = [(allocation, _faster(order, axis)) for allocation, order in places]
            shapes = [self._axis_shapes(first, axis, faster, allocation) for allocation, faster in arcs]
            each = [stacked_shapes(column) for column in zip(*shapes, strict=True)]
            stacked = [shape.take(place) for shape in each]
            expert, ep = stacked[1:] if axis == "dp_shard" else (None, None)
            least = None
            if axis in WAITED:
                shape = self._least(first, axis, each[-1], arcs).take(place)
                least = shape, stacked_links([*whole, *own], np.where(shape.span < CAMPUS, at_own, at))
            terms.append(axis_terms(axis, volumes, stacked[0], links, expert, ep, network, least))
        return step_times(volumes, terms)


def _pairs(trials: Sequence[Trial], number: Mapping[Place, int]) -> tuple[Ints, Ints]:
    """Return the numbers of the place and of the row of every pair, (pairs,) each, in the order of ``_times_at``."""
    of_places, of_rows, before = [], [], 0
    for one in trials:
        rows = np.arange(before, before + len(one.rows.types))
        of_places.append(np.repeat([number[place] for place in one.places], len(rows)))
        of_rows.append(np.tile(rows, len(one.places)))
        before += len(rows)
    return np.concatenate(of_places), np.concatenate(of_rows)


def placed_at(decision: Decision, place: Place) -> Decision:
    """Return the decision with its placement set to a place."""
    allocation, order = place
    return decision.model_copy(update={"placement": Placement(axis_order=order, fill=shares(allocation))})


def balanced(decision: Decision, balance: Balance) -> Decision:
    """Return the decision with the layers, batch shares and recompute policies of a balance."""
    return decision.model_copy(update=balance.stated)


def _holds(layout: Layout, decision: Decision) -> bool:
    """Return whether the batch shares of a decision, if any, match the replica classes of a layout."""
    shares = decision.batch_shares
    there = {one.buildings: one.num_replicas for one in layout}
    return shares is None or there == {share.buildings: share.num_replicas for share in shares}


def layout_axes(degrees: Degrees, order: Sequence[GridAxis]) -> Strided:
    """Return the degree and stride of every axis of LAYOUT_AXES, the largest stride where it makes no difference."""
    stride, most = strides(degrees, order), degrees.world_size
    return tuple((degrees.of(axis), stride[axis] if degrees.of(axis) > 1 else most) for axis in LAYOUT_AXES)


def _faster(order: Sequence[GridAxis], axis: GridAxis) -> frozenset[GridAxis]:
    return frozenset(order[: order.index(axis)])
