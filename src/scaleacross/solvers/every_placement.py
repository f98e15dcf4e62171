"""Try every placement of a candidate: where work is balanced over accelerator types, or failures restrict the placement.

Space         every axis order on every fill (S1–S3 of ``fleets``), every balance (B1–B3 of ``balance``) of its layout
C1 failures   no unit (zone or building) holds more data-parallel replicas than ``job.failure_domains`` allows to lose

The *layout* of a placement is the types on each stage of each replica class; layouts are few. Each is balanced, floors of
computation sort the balances, and all orders and fills of a layout are priced in arrays until the next floor is not below the
best. There are at most 5! orders; fills depend on the number of buildings; so nothing grows with the accelerators but the
counting of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Final

import numpy as np

from scaleacross.cost_models.axes import axis_terms, searched_network
from scaleacross.cost_models.failures import replicas_lost
from scaleacross.cost_models.groups import stacked_shapes
from scaleacross.cost_models.layout import Layout, layout_of
from scaleacross.cost_models.links import Links, stacked_links
from scaleacross.cost_models.pipeline_penalty import Order
from scaleacross.cost_models.plan_cost import rows_of, stage_memory
from scaleacross.cost_models.settings import Floats, Settings, settings_of
from scaleacross.cost_models.step import placement_free_s, step_times
from scaleacross.cost_models.work import StackedTimes, Work, times_by_type
from scaleacross.solvers.balance import Balance, Balancer
from scaleacross.solvers.fleets import Fill, Fleet, shares
from scaleacross.solvers.mixed_fleets import pricing_on
from scaleacross.solvers.place_parallelism import PlacementDecision, Placer
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GRID_AXES, Degrees, GridAxis
from scaleacross.spec.placement import strides
from scaleacross.spec.plan import Decision
from scaleacross.workloads.layer_profile import ModelProfile

EXACT_BLOCK: Final = 8
"""Placements whose pipelines are timed together."""
LAYOUT_AXES: Final[tuple[GridAxis, ...]] = ("pp", "dp_shard", "dp_replicate")
"""Axes whose degrees and strides decide which types a stage of a replica has."""

Place = tuple[Fill, tuple[GridAxis, ...]]


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
        settings: Settings,
        work: Work,
        slowest_axis: GridAxis | None = None,
        enough_s: float = -np.inf,
        cutoff_s: float = np.inf,
    ) -> PlacementDecision | None:
        """The best placement and balance of a single candidate.

        None when no fill holds it, nothing fits in memory, or (unless ``slowest_axis`` is asked for) nothing is faster than
        the incumbent. ``communication_s`` of the decision is the step less what ``work`` takes, so that both add up to the
        step.
        """
        free_s = float(placement_free_s(self.pricing.volumes(settings, work))[0])
        limit_s = np.inf if slowest_axis else min(self.incumbent_s(), free_s + cutoff_s)
        best: PlacementDecision | None = None
        for floor_s, balance, rows, places in self._balanced(settings, slowest_axis):
            if floor_s >= limit_s:
                break
            if best is not None and best.communication_s <= enough_s:
                return replace(best, complete=False)
            step_s, (fill, order) = self._fastest(rows, places, limit_s)
            if step_s < limit_s:
                limit_s = step_s
                best = PlacementDecision(order, fill, step_s - free_s, complete=True, balance=balance)
        return best

    def every_of(self, decision: Decision) -> Iterator[tuple[float, PlacementDecision]]:
        """Step and placement of a decision wherever it can lie as it is; its own placement is not looked at.

        Left out are placements in which it does not fit, that lose too many replicas (C1), or that have other replica classes
        than its batch shares name.
        """
        job, profile, accelerators = self.pricing.job, self.pricing.profile, self.pricing.accelerators
        settings = settings_of(decision, job.global_batch_sequences)
        for layout, places in self._by_layout(settings, None).items():
            if not _holds(layout, decision):
                continue
            memory = stage_memory(job, profile, accelerators, decision, settings, layout)
            if any(stage.total_bytes > stage.capacity_bytes for stage in memory):
                continue
            rows = rows_of(job, profile, accelerators, decision, settings, layout)
            steps = self._steps_s(rows, places, timed=True, order=decision.pipeline.order)
            for step_s, (fill, axis_order) in zip(steps, places, strict=True):
                yield float(step_s), PlacementDecision(axis_order, fill, 0.0, complete=True)

    def unlimited(self) -> Placer:
        """The same placer without an incumbent."""
        return replace(self, incumbent_s=lambda: np.inf)

    def _balanced(
        self, settings: Settings, slowest_axis: GridAxis | None
    ) -> list[tuple[float, Balance, tuple[Settings, Work], list[Place]]]:
        """Every balance of every layout with its floor, its rows and the places of the layout, lowest floor first."""
        pricing = self.pricing
        balancer = Balancer(pricing.job, pricing.profile, pricing.accelerators, settings, self._layer_times(settings))
        out = []
        for layout, alike in self._by_layout(settings, slowest_axis).items():
            for balance in balancer.balances(layout) if self.balanced else [balancer.equal(layout)]:
                rows = balancer.rows(balance)
                floor_s = float(placement_free_s(pricing.volumes(*rows)).max())
                out.append((floor_s, balance, rows, alike))
        return sorted(out, key=lambda entry: entry[0])

    def _by_layout(self, settings: Settings, slowest_axis: GridAxis | None) -> dict[Layout, list[Place]]:
        places: dict[Layout, list[Place]] = {}
        degrees = settings.decision(0).degrees
        for place in self._places(settings, slowest_axis):
            places.setdefault(self._layout(degrees, place), []).append(place)
        return places

    def _places(self, settings: Settings, slowest_axis: GridAxis | None) -> Iterator[Place]:
        active = [axis for axis in GRID_AXES if int(getattr(settings, axis)[0]) > 1]
        idle = [axis for axis in GRID_AXES if axis not in active]
        for fill in self.fills_of(settings):
            for order in permutations(active):
                place = (fill, (*idle, *order))
                if (slowest_axis is None or order[-1] == slowest_axis) and self._c1_failures(settings, place):
                    yield place

    def _c1_failures(self, settings: Settings, place: Place) -> bool:
        wanted, (fill, order) = self.pricing.job.failure_domains, place
        if wanted is None:
            return True
        degrees = settings.decision(0).degrees
        lost = replicas_lost(self.fleet.topology, shares(fill), degrees, order, wanted.level)
        return lost <= wanted.max_replicas_lost

    def _layer_times(self, settings: Settings) -> list[StackedTimes]:
        key = tuple(int(getattr(settings, name)[0]) for name in ("tp", "cp", "ep", "micro_batch", "world_size"))
        if key not in self._times:
            pricing = self.pricing
            self._times[key] = times_by_type(pricing.profile, pricing.job, pricing.accelerators, settings)
        return self._times[key]

    def _layout(self, degrees: Degrees, place: Place) -> Layout:
        fill, order = place
        stride = strides(degrees, order)
        key = (fill, *((degrees.of(axis), stride[axis]) for axis in LAYOUT_AXES))
        if key not in self._layouts:
            self._layouts[key] = layout_of(self.fleet.topology, shares(fill), degrees, order)
        return self._layouts[key]

    def _fastest(self, rows: tuple[Settings, Work], places: Sequence[Place], limit_s: float) -> tuple[float, Place]:
        """The fastest of the places, and its step; what cannot be below ``limit_s`` is not timed."""
        floors = self._steps_s(rows, places, timed=False)
        best_s, best = np.inf, places[0]
        order = np.argsort(floors, kind="stable")
        for start in range(0, len(order), EXACT_BLOCK):
            block = [int(index) for index in order[start : start + EXACT_BLOCK]]
            if floors[block[0]] >= min(limit_s, best_s):
                break
            steps = self._steps_s(rows, [places[index] for index in block], timed=True)
            if steps.min() < best_s:
                best_s, best = float(steps.min()), places[block[int(steps.argmin())]]
        return best_s, best

    def _steps_s(
        self, rows: tuple[Settings, Work], places: Sequence[Place], *, timed: bool, order: Order = None
    ) -> Floats:
        """Step of every place, (places,): the longest of its rows; without ``timed`` pipeline messages take no time."""
        return self._row_steps_s(rows, places, timed=timed, order=order).max(axis=1)

    def _row_steps_s(
        self, rows: tuple[Settings, Work], places: Sequence[Place], *, timed: bool, order: Order = None
    ) -> Floats:
        """Step of every place as if each row were the longest, (places, rows)."""
        settings, work = rows
        place, row = (index.ravel() for index in np.indices((len(places), len(settings))))
        one = settings.take(row[: len(settings)])
        volumes = replace(self.pricing.volumes(settings.take(row), work.take(row)), order=order)
        links: Links = stacked_links([self.levels(places[int(index)][0]) for index in place])
        terms = []
        for axis in (axis for axis in GRID_AXES if timed or axis != "pp"):
            each = [self._axis_shapes(one, axis, _faster(axis_order, axis), fill) for fill, axis_order in places]
            stacked = [stacked_shapes([each[int(index)][part] for index in place]) for part in range(len(each[0]))]
            expert, ep = stacked[1:] if axis == "dp_shard" else (None, None)
            network = searched_network(self.pricing.job, self.pricing.accelerators)
            terms.append(axis_terms(axis, volumes, stacked[0], links, expert, ep, exact=True, network=network))
        return step_times(volumes, terms).step_s.reshape(len(places), len(settings))


def _holds(layout: Layout, decision: Decision) -> bool:
    """Whether the batch shares of a decision, if any, are of the replica classes of a layout."""
    shares = decision.batch_shares
    there = {one.buildings: one.num_replicas for one in layout}
    return shares is None or there == {share.buildings: share.num_replicas for share in shares}


def _faster(order: Sequence[GridAxis], axis: GridAxis) -> frozenset[GridAxis]:
    return frozenset(order[: order.index(axis)])
