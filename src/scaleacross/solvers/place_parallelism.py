"""Place the axes of candidates: which axis varies fastest over the devices, how many devices of each building.

Sets          A  axes of degree > 1;  Π  their orders, 5! at most;  J  allocations (``pools``), finite for any pool
Variables     π ∈ Π  order of the axes, fastest first;  j ∈ J  allocation
Parameters    c[j,S,a]    serial seconds of axis a when exactly the axes in S are faster and allocation j is used
              t[j,S,a,w]  seconds that axis a adds to window w (``overlap.windows``) in the same place
Objective     min over j, π of the exact step (``plan_cost.step_seconds``)
Bound         Σ_a c[j,S(π,a),a] + Σ_w exposed_w(Σ_a t[j,S(π,a),a,w]), pipelines at their lower bound,
              S(π,a) the axes before a
C5 forced     the last axis is the one asked for (used to evaluate alternatives)

The terms of an axis depend on the set of faster axes, not on their order. So the arcs (j, S, a) are evaluated once, and
orders are sums of arcs. The bounds of all orders on all allocations are computed in arrays. Placements then get exact
step times, least bound first, until the next bound is not below the best: that is the optimum of Π × J. The few orders
that are best on any allocation go first, and the best of them rules out most others before their arcs are evaluated.
Allocations that do not tile (a granule that cuts a group) are treated like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import ClassVar, Final

import numpy as np

from scaleacross.cost_models.axes import Terms, axis_terms, searched_network
from scaleacross.cost_models.candidates import Candidates, Floats, stride_of
from scaleacross.cost_models.groups import GroupShape, stacked_shapes
from scaleacross.cost_models.least_passes import LeastPasses
from scaleacross.cost_models.levels import Levels
from scaleacross.cost_models.links import stacked_links
from scaleacross.cost_models.overlap import windows
from scaleacross.cost_models.pipeline.unplaced import WAITED
from scaleacross.cost_models.replica_kinds import KnownReplicas
from scaleacross.cost_models.step import placement_free_s
from scaleacross.cost_models.waiting_groups import least_shape
from scaleacross.cost_models.work import Work
from scaleacross.solvers.arcs import added_s, sets_before
from scaleacross.solvers.balance import Balance
from scaleacross.solvers.beyond import Beyond
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.fixed_placement import FixedPlacement
from scaleacross.solvers.pools import AcceleratorPool, Allocation
from scaleacross.spec.parallelism import GRID_AXES, Degrees, GridAxis
from scaleacross.spec.placement import axis_orders

ALLOCATION_BLOCK: Final = 128
"""Allocations whose orders are bounded together: all of them for up to four buildings."""
ORDERS_FIRST: Final = 8
"""Orders that are tried before the others: enough to include a good one, and few of 120. A choice."""

AxisOrder = tuple[GridAxis, ...]
Place = tuple[Allocation, AxisOrder]


def never() -> bool:
    """Stop callback of a search without one: always false."""
    return False


@dataclass(frozen=True)
class PlacementDecision:
    """Axis order (fastest first, axes of degree 1 first of all), allocation, and the exposed communication in seconds.

    ``balance`` has layers and batch shares on mixed pools; None means equal ones. If ``complete`` is true, no placement
    of the space is better; otherwise some allocations were not tried.
    """

    axis_order: AxisOrder
    fill: Allocation
    communication_s: float
    complete: bool
    balance: Balance | None = None


@dataclass(frozen=True)
class Wanted:
    """Which placements of a candidate are looked for, and for how long.

    Attributes:
        slowest_axis: C5: only orders that end with this axis.
        enough_s: try no further allocations once a placement exposes at most this much communication. The decision is
            not ``complete`` if some were left.
        cutoff_s: placements that expose this much communication or more do not count; the result is None if all do.
        stop: called before every exact step time. Once it is true, the best so far is returned as not complete (None if
            there is none).
        left: called with a bound on the communication of placements left out because their estimate
            (``Bounded.estimate_s``) is not below ``cutoff_s``, or because ``patience`` ended. None: no placement is left
            out.
        patience: consecutive exact step times without an improvement, after which the rest of a block of allocations
            and orders is left out. Each further block, which resembles this one, gets half of it. Used only with
            ``left``.
    """

    slowest_axis: GridAxis | None = None
    enough_s: float = -np.inf
    cutoff_s: float = np.inf
    stop: Callable[[], bool] = never
    left: Callable[[float], None] | None = None
    patience: int | None = None

    def among(self, orders: Sequence[AxisOrder]) -> list[AxisOrder]:
        """The orders that end with ``slowest_axis``; all of them without one."""
        return [order for order in orders if self.slowest_axis is None or order[-1:] == (self.slowest_axis,)]


ANYWHERE: Final = Wanted()


@dataclass
class Placer:
    """Places candidates on one accelerator pool; remembers allocations, link figures and group shapes.

    ``least_stages`` is the least number of pipeline stages of its candidates. ``beyond`` has the ratios of step time to
    estimate of those placed so far.
    """

    least_stages: ClassVar[int] = 1
    pool: AcceleratorPool
    bounder: Bounder
    _placed: dict[Allocation, FixedPlacement] = field(default_factory=dict)
    _allocations: dict[Degrees, list[Allocation]] = field(default_factory=dict)
    _known: KnownReplicas = field(default_factory=KnownReplicas)
    beyond: Beyond = field(default_factory=Beyond)

    def place(self, candidates: Candidates, work: Work, wanted: Wanted = ANYWHERE) -> PlacementDecision | None:
        """The best placement of the single candidate in ``candidates``; None if there is none as ``wanted``.

        Allocations are tried block by block, largest granule first.
        """
        idle, cutoff_s, left = axes_of(candidates)[1], wanted.cutoff_s, wanted.left
        least_s = self._promising(candidates, work, cutoff_s)
        orders = sorted(wanted.among(list(least_s)), key=least_s.__getitem__)
        allocations, best = self.allocations_of(candidates) if orders else [], None
        tried, patience = (orders[:ORDERS_FIRST], orders[ORDERS_FIRST:]), wanted.patience
        for some, start in product(tried, range(0, len(allocations), ALLOCATION_BLOCK)):
            if best is not None and best.communication_s <= wanted.enough_s:
                return replace(best, complete=False)
            block = allocations[start : start + ALLOCATION_BLOCK]
            some = [order for order in some if least_s[order] < cutoff_s]
            if not some:
                continue
            bounds, estimates = self._figures_s(candidates, work, some, block)
            # estimates may exceed step times, so they may cut placements only if the caller records these
            order_by, slower = bounds if left is None else np.maximum(bounds, estimates), 0
            for index in np.argsort(order_by, axis=None, kind="stable").tolist():
                if order_by.flat[index] >= cutoff_s:
                    break
                if wanted.stop():
                    return best and replace(best, complete=False)
                if left is not None and slower == patience:
                    left(min(least_s.values()))
                    patience = max(1, patience // 2)
                    break
                allocation, order = block[index // len(some)], (*idle, *some[index % len(some)])
                exposed_s = self.exposed_s(candidates, work, allocation, order, cutoff_s)
                slower = 0 if exposed_s < cutoff_s else slower + 1
                if exposed_s < cutoff_s:
                    cutoff_s, best = exposed_s, PlacementDecision(order, allocation, exposed_s, complete=True)
            if left is not None:
                left(float(bounds[order_by >= cutoff_s].min(initial=np.inf)))
        return best

    def exposed_s(
        self, candidates: Candidates, work: Work, allocation: Allocation, order: AxisOrder, cutoff_s: float = np.inf
    ) -> float:
        """Exact seconds that one placement of a single candidate adds to ``Bounded.free_s``.

        The result is inf where pipeline and optimizer alone add ``cutoff_s`` or more.
        """
        placed = self.on(allocation)
        free_s = float(placement_free_s(self.bounder.volumes(candidates, work))[0])
        limits = free_s + cutoff_s, float(work.optimizer_s[0])
        return placed.step_s(placed.placed(candidates, 0, order), self._known, *limits) - free_s

    @property
    def by_stage(self) -> bool:
        """Whether it can place candidates with recomputation by stage; false here."""
        return False

    def unlimited(self) -> Placer:
        """A placer that places candidates however slow they are; this one has no limit of its own."""
        return self

    def on(self, allocation: Allocation) -> FixedPlacement:
        """Step times on one allocation, remembered."""
        if allocation not in self._placed:
            bounder = self.bounder
            network = searched_network(bounder.job, bounder.accelerators)
            self._placed[allocation] = FixedPlacement.of(self.pool, allocation, bounder.job, bounder.profile, network)
        return self._placed[allocation]

    def levels(self, allocation: Allocation) -> Levels:
        """Link figures of an allocation."""
        return self.on(allocation).levels

    def allocations_of(self, candidates: Candidates) -> list[Allocation]:
        """The allocations that hold a single candidate, remembered by degrees."""
        degrees = candidates.decision(0).degrees
        if degrees not in self._allocations:
            self._allocations[degrees] = self.pool.allocations_of(degrees)
        return self._allocations[degrees]

    def _promising(self, candidates: Candidates, work: Work, cutoff_s: float) -> dict[AxisOrder, float]:
        """The axis orders whose lower bound for any allocation is below the cutoff, each with that bound in seconds."""
        orders = orders_of(candidates)
        bounds = self.bounder.order_bounds_s(candidates, work, orders)[:, 0].tolist() if orders[0] else [-np.inf]
        return {order: bound for order, bound in zip(orders, bounds, strict=True) if bound < cutoff_s}

    def bounds_s(
        self, candidates: Candidates, work: Work, orders: Sequence[AxisOrder], allocations: Sequence[Allocation]
    ) -> Floats:
        """Lower bounds on the communication of a single candidate on orders of its active axes, (fills, orders)."""
        return self._figures_s(candidates, work, orders, allocations)[0]

    def _figures_s(
        self, candidates: Candidates, work: Work, orders: Sequence[AxisOrder], allocations: Sequence[Allocation]
    ) -> tuple[Floats, Floats]:
        """Lower bounds as in ``bounds_s``, and estimates (``Bounded.estimate_s``), each (fills, orders)."""
        parts = []
        for axis in orders[0]:
            sets, of_order = sets_before(orders, axis)
            at = (np.arange(len(allocations))[:, None] * len(sets) + of_order).ravel()
            parts.append(self.arcs(candidates, work, axis, sets, allocations).take(at))
        if not parts:
            return np.zeros((len(allocations), len(orders))), np.zeros((len(allocations), len(orders)))
        volumes, over = self.bounder.volumes(candidates, work), windows(candidates, work)
        early, shards = self.bounder.early(volumes), LeastPasses.of(volumes)
        estimates = added_s(parts, over, None, shards).reshape(len(allocations), len(orders))
        bounds = (
            estimates if early is None else added_s(parts, over, early, shards).reshape(len(allocations), len(orders))
        )
        return bounds, estimates

    def arcs(
        self,
        candidates: Candidates,
        work: Work,
        axis: GridAxis,
        subsets: Sequence[frozenset[GridAxis]],
        allocations: Sequence[Allocation],
    ) -> Terms:
        """c and t of one axis of a single candidate, one row per allocation and set of faster axes."""
        places = list(product(allocations, subsets))
        copies = np.zeros(len(places), dtype=np.int64)
        volumes = self.bounder.volumes(candidates.take(copies), work.take(copies))
        shapes = [self._axis_shapes(candidates, axis, faster, allocation) for allocation, faster in places]
        links = stacked_links([self.on(allocation).levels for allocation, _ in places])
        stacked = [stacked_shapes(column) for column in zip(*shapes, strict=True)]
        expert, ep = stacked[1:] if axis == "dp_shard" else (None, None)
        network = searched_network(self.bounder.job, self.bounder.accelerators)
        least = None if axis not in WAITED else (self._least(candidates, axis, stacked[-1], places), links)
        return axis_terms(axis, volumes, stacked[0], links, expert, ep, network=network, least=least)

    def _least(
        self,
        candidates: Candidates,
        axis: GridAxis,
        shapes: GroupShape,
        places: Sequence[tuple[Allocation, frozenset[GridAxis]]],
    ) -> GroupShape:
        """Group shapes of the ranks that wait least, one row per place, for an axis that a pipeline waits for."""
        degree = int(getattr(candidates, "ep" if axis == "dp_shard" else axis)[0])
        strides = np.array([int(stride_of(candidates, faster)[0]) for _, faster in places])
        largest = np.array([max(count for _, count in allocation) for allocation, _ in places])
        return least_shape(shapes, degree * strides, largest, np.repeat(candidates.pp, len(places)))

    def _axis_shapes(
        self, candidates: Candidates, axis: GridAxis, faster: frozenset[GridAxis], allocation: Allocation
    ) -> list[GroupShape]:
        stride = int(stride_of(candidates, faster)[0])
        degree, ep, placed = int(getattr(candidates, axis)[0]), int(candidates.ep[0]), self.on(allocation)
        shapes = [placed.shape(degree, stride)]
        if axis == "dp_shard":
            lanes = int(candidates.expert_lanes[0])
            shapes += [placed.shape(degree // ep, stride * ep), placed.shape(ep * lanes, max(1, stride // lanes))]
        return shapes


def axes_of(candidates: Candidates) -> tuple[AxisOrder, AxisOrder]:
    """Axes of degree > 1 of a single candidate, and the other axes."""
    active = tuple(axis for axis in GRID_AXES if int(getattr(candidates, axis)[0]) > 1)
    return active, tuple(axis for axis in GRID_AXES if axis not in active)


def orders_of(candidates: Candidates) -> list[AxisOrder]:
    """All orders of the axes of degree > 1 of a single candidate."""
    return list(axis_orders(axes_of(candidates)[0], bool(candidates.expert_lanes[0] > 1)))
