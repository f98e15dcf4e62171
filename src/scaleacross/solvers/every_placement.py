"""Try every placement of a candidate: where work is balanced over accelerator types, or failures restrict the placement.

Space         every axis order on every fill (S1–S3 of ``fleets``), every balance (B1–B3 of ``balance``) of its layout
C1 failures   no unit (zone or building) holds more data-parallel replicas than ``job.failure_domains`` allows to lose

The *layout* of a placement is the types on each stage of each replica class; layouts are few. Each is balanced, floors of
computation sort the balances, and all orders and fills of a layout are bounded in arrays and priced exactly, from the least
bound up, until the next is not below the best. Orders whose own bound (``order_bounds_s``) is not below it are left out; of the
others the pipeline is timed first, and the rest only where both together may be below. There are at most 5! orders; fills
depend on the number of buildings; so nothing grows with the accelerators but the counting of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from scaleacross.cost_models.axes import axis_terms, searched_network
from scaleacross.cost_models.candidates import Candidates, Floats, candidate_of
from scaleacross.cost_models.failures import replicas_lost
from scaleacross.cost_models.groups import stacked_shapes
from scaleacross.cost_models.layer_seconds import LAYER_COLUMNS, StackedTimes, times_by_type
from scaleacross.cost_models.layout import Layout, layout_of
from scaleacross.cost_models.levels import CAMPUS
from scaleacross.cost_models.links import stacked_links
from scaleacross.cost_models.pipeline.unplaced import WAITED
from scaleacross.cost_models.plan_cost import stage_memory
from scaleacross.cost_models.recomputation import is_by_stage
from scaleacross.cost_models.step import StepTimes, placement_free_s, step_times
from scaleacross.cost_models.uneven import Rows
from scaleacross.cost_models.work import Work
from scaleacross.solvers.balance import Balance, Balancer
from scaleacross.solvers.fleets import Fill, Fleet, shares
from scaleacross.solvers.mixed_fleets import MixedPricing, pricing_on
from scaleacross.solvers.place_parallelism import AxisOrder, PlacementDecision, Placer, axes_of, never
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GRID_AXES, Degrees, GridAxis
from scaleacross.spec.placement import Placement, axis_orders, strides
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import RECOMPUTES, rerun_period
from scaleacross.workloads.layer_profile import ModelProfile

LAYOUT_AXES: Final[tuple[GridAxis, ...]] = ("pp", "dp_shard", "dp_replicate")
"""Axes whose degrees and strides decide which types a stage of a replica has."""

Place = tuple[Fill, AxisOrder]


def placer_on(
    fleet: Fleet,
    job: Job,
    profile: ModelProfile,
    incumbent_s: Callable[[], float] = lambda: np.inf,
    balanced: bool = True,
) -> Placer:
    """The placer for a fleet.

    Args:
        incumbent_s: where every placement is tried, nothing at or above this is placed.
        balanced: False on several types: equal layers and batches only, whether they fit in memory or not.
    """
    pricing = pricing_on(fleet, job, profile)
    if len(fleet.accelerators) == 1 and job.failure_domains is None:
        return Placer(fleet, pricing)
    return EveryPlacement(fleet, pricing, incumbent_s=incumbent_s, balanced=balanced)


@dataclass
class EveryPlacement(Placer):
    """Places and balances candidates by trying every placement."""

    incumbent_s: Callable[[], float] = lambda: np.inf
    balanced: bool = True
    _layouts: dict[tuple[object, ...], Layout] = field(default_factory=dict)
    _times: dict[tuple[int, ...], list[StackedTimes]] = field(default_factory=dict)

    def place(
        self,
        candidates: Candidates,
        work: Work,
        slowest_axis: GridAxis | None = None,
        enough_s: float = -np.inf,
        cutoff_s: float = np.inf,
        stop: Callable[[], bool] = never,
        left: Callable[[float], None] | None = None,
    ) -> PlacementDecision | None:
        """The best placement and balance of a single candidate.

        None when no fill holds it, nothing fits in memory, or (unless ``slowest_axis`` is asked for) nothing is faster than
        the incumbent. ``communication_s`` of the decision is the step less what ``work`` takes, so that both add up to the
        step.
        """
        free_s = float(placement_free_s(self.pricing.volumes(candidates, work))[0])
        limit_s = np.inf if slowest_axis else min(self.incumbent_s(), free_s + cutoff_s)
        best: PlacementDecision | None = None
        active, _ = axes_of(candidates)
        orders = self._promising(candidates, work, active, limit_s - free_s)
        for floor_s, balance, rows, places in self._balanced(candidates, slowest_axis, orders):
            if floor_s >= limit_s:
                break
            if stop() or (best is not None and best.communication_s <= enough_s):
                return best and replace(best, complete=False)
            step_s, (fill, order) = self._fastest(candidates, balance, rows, places, limit_s, stop)
            if step_s < limit_s:
                limit_s = step_s
                best = PlacementDecision(order, fill, step_s - free_s, complete=True, balance=balance)
        return best and replace(best, complete=not stop())

    def every_of(self, decision: Decision) -> Iterator[tuple[float, PlacementDecision]]:
        """Step and placement of a decision wherever it can lie as it is; its own placement is not looked at.

        Left out are placements in which it does not fit, that lose too many replicas (C1), or that have other replica classes
        than its batch shares name.
        """
        job, profile, accelerators = self.pricing.job, self.pricing.profile, self.pricing.accelerators
        candidates = candidate_of(decision, job.global_batch_sequences)
        for layout, places in self._by_layout(candidates, None).items():
            if not _holds(layout, decision):
                continue
            memory = stage_memory(job, profile, accelerators, decision, candidates, layout)
            if not all(stage.fits for stage in memory):
                continue
            for place in places:
                fill, axis_order = place
                yield self._step_s(decision, place), PlacementDecision(axis_order, fill, 0.0, complete=True)

    @property
    def by_stage(self) -> bool:
        """Whether it places candidates whose stages have recompute policies of their own: with bounds for unequal stages."""
        return self.balanced and isinstance(self.pricing, MixedPricing)

    def unlimited(self) -> Placer:
        """The same placer without an incumbent."""
        return replace(self, incumbent_s=lambda: np.inf)

    def _balanced(
        self, candidates: Candidates, slowest_axis: GridAxis | None, orders: Sequence[AxisOrder] | None = None
    ) -> list[tuple[float, Balance, Rows, list[Place]]]:
        """Every balance of every layout with its floor, its rows and the places of the layout, lowest floor first.

        ``orders`` of the active axes; None: all of them.
        """
        pricing, balancer = self.pricing, self._balancer(candidates)
        out = []
        for layout, alike in self._by_layout(candidates, slowest_axis, orders).items():
            for balance in self._balances(balancer, layout):
                rows = balancer.rows(balance)
                floor_s = float(placement_free_s(pricing.volumes(*rows[:2])).max())
                out.append((floor_s, balance, rows, alike))
        return sorted(out, key=lambda entry: entry[0])

    def _balancer(self, candidates: Candidates) -> Balancer:
        pricing = self.pricing
        return Balancer(pricing.job, pricing.profile, pricing.accelerators, candidates, self._layer_times(candidates))

    def _balances(self, balancer: Balancer, layout: Layout) -> Iterable[Balance]:
        """The balances to try on a layout: the equal one alone where a share of every chunk's layers is recomputed."""
        if self.balanced and is_by_stage(balancer.candidates):
            return balancer.by_stage(layout)
        several = self.balanced and rerun_period(RECOMPUTES[int(balancer.candidates.recompute[0])]) == 1
        return balancer.balances(layout) if several else [balancer.equal(layout)]

    def _by_layout(
        self, candidates: Candidates, slowest_axis: GridAxis | None, orders: Sequence[AxisOrder] | None = None
    ) -> dict[Layout, list[Place]]:
        places: dict[Layout, list[Place]] = {}
        degrees = candidates.decision(0).degrees
        for place in self.places(candidates, slowest_axis, orders):
            places.setdefault(self._layout(degrees, place), []).append(place)
        return places

    def places(
        self,
        candidates: Candidates,
        slowest_axis: GridAxis | None = None,
        orders: Sequence[AxisOrder] | None = None,
    ) -> Iterator[Place]:
        """Where a single candidate may lie, ``slowest_axis`` outermost; ``orders`` of its active axes, None: all."""
        active, idle = axes_of(candidates)
        orders = axis_orders(active, bool(candidates.expert_lanes[0] > 1)) if orders is None else orders
        for fill in self.fills_of(candidates) if orders else ():
            for order in orders:
                place = (fill, (*idle, *order))
                if (slowest_axis is None or order[-1] == slowest_axis) and self._c1_failures(candidates, place):
                    yield place

    def _c1_failures(self, candidates: Candidates, place: Place) -> bool:
        wanted, (fill, order) = self.pricing.job.failure_domains, place
        if wanted is None:
            return True
        degrees = candidates.decision(0).degrees
        lost = replicas_lost(self.fleet.topology, shares(fill), degrees, order, wanted.level)
        return lost <= wanted.max_replicas_lost

    def _layer_times(self, candidates: Candidates) -> list[StackedTimes]:
        key = tuple(int(getattr(candidates, name)[0]) for name in (*LAYER_COLUMNS, "recompute", "world_size"))
        if key not in self._times:
            pricing = self.pricing
            self._times[key] = times_by_type(pricing.profile, pricing.job, pricing.accelerators, candidates)
        return self._times[key]

    def _layout(self, degrees: Degrees, place: Place) -> Layout:
        fill, order = place
        stride = strides(degrees, order)
        key = (fill, *((degrees.of(axis), stride[axis] if degrees.of(axis) > 1 else 1) for axis in LAYOUT_AXES))
        if key not in self._layouts:
            self._layouts[key] = layout_of(self.fleet.topology, shares(fill), degrees, order)
        return self._layouts[key]

    def _fastest(
        self,
        candidates: Candidates,
        balance: Balance,
        rows: Rows,
        places: Sequence[Place],
        limit_s: float,
        stop: Callable[[], bool],
    ) -> tuple[float, Place]:
        """The fastest of the places, and its exact step; what cannot be below ``limit_s``, or comes after ``stop``, is not
        timed."""
        times = self._times_at(rows, places)
        floors, behind = times.step_s.max(axis=1), times.behind_s.min(axis=1)
        best_s, best = np.inf, places[0]
        if floors.min() >= limit_s:
            return best_s, best
        decision = balanced(candidates.decision(0), balance)
        for index in np.argsort(floors, kind="stable").tolist():
            below_s, place = min(limit_s, best_s), places[index]
            if floors[index] >= below_s or stop():
                break
            step_s = self._step_s(decision, place, below_s - float(behind[index]))
            if step_s < best_s:
                best_s, best = step_s, place
        return best_s, best

    def _step_s(self, decision: Decision, place: Place, limit_s: float = np.inf) -> float:
        """Exact step of a decision in a place; inf where the pipelines alone take ``limit_s``."""
        return self.on(place[0]).step_s(placed_at(decision, place), self._known, limit_s)

    def _floors_s(self, rows: Rows, places: Sequence[Place]) -> Floats:
        """Bounds on the step of every place, (places,): by the longest of the rows."""
        return self._times_at(rows, places).step_s.max(axis=1)

    def _times_at(self, rows: Rows, places: Sequence[Place]) -> StepTimes:
        """Bounds on the step of every row in every place, (places, rows), as if pipeline messages took no time.

        Rows wait for groups inside buildings as long as these take on their own accelerator type.
        """
        candidates, work, types = rows
        place, row = (index.ravel() for index in np.indices((len(places), len(candidates))))
        one = candidates.take(row[: len(candidates)])
        volumes = self.pricing.volumes(candidates.take(row), work.take(row))
        number = {fill: index for index, fill in enumerate(dict.fromkeys(fill for fill, _ in places))}
        whole, at = [self.levels(fill) for fill in number], np.array([number[fill] for fill, _ in places])[place]
        own = [levels.on(name) for name in self.pricing.types for levels in whole]
        links, at_own = stacked_links(whole, at), (types[row] + 1) * len(whole) + at
        network = searched_network(self.pricing.job, self.pricing.accelerators)
        terms = []
        for axis in (axis for axis in GRID_AXES if axis != "pp"):
            each = [self._axis_shapes(one, axis, _faster(axis_order, axis), fill) for fill, axis_order in places]
            stacked = [stacked_shapes([each[int(index)][part] for index in place]) for part in range(len(each[0]))]
            expert, ep = stacked[1:] if axis == "dp_shard" else (None, None)
            near = (
                [] if axis not in WAITED else self._least(one, axis, each, [(f, _faster(o, axis)) for f, o in places])
            )
            waited = [stacked[-1], *([stacked_shapes([near[int(index)] for index in place])] if near else [])]
            waits, *of_least = (
                stacked_links([*whole, *own], np.where(shape.span < CAMPUS, at_own, at)) for shape in waited
            )
            least = (waited[1], of_least[0]) if near else None
            terms.append(axis_terms(axis, volumes, stacked[0], links, expert, ep, network, waits, least))
        return step_times(volumes, terms).reshaped(len(places), len(candidates))


def placed_at(decision: Decision, place: Place) -> Decision:
    """A decision in a place."""
    fill, order = place
    return decision.model_copy(update={"placement": Placement(axis_order=order, fill=shares(fill))})


def balanced(decision: Decision, balance: Balance) -> Decision:
    """A decision with the layers, batch shares and recompute policies of a balance."""
    return decision.model_copy(update=balance.stated)


def _holds(layout: Layout, decision: Decision) -> bool:
    """Whether the batch shares of a decision, if any, are of the replica classes of a layout."""
    shares = decision.batch_shares
    there = {one.buildings: one.num_replicas for one in layout}
    return shares is None or there == {share.buildings: share.num_replicas for share in shares}


def _faster(order: Sequence[GridAxis], axis: GridAxis) -> frozenset[GridAxis]:
    return frozenset(order[: order.index(axis)])
