"""Place the axes of one candidate: which axis varies fastest over the devices, how many devices of each building.

Sets          A  axes of degree > 1;  S ⊆ A  axes faster than the next one;  J  fills (``fleets``)
              W  overlap windows (``overlap.windows``) of length L_w, least exposed share 1/n_w, p_w occurrences per step
Parameters    c[j,S,a]    serial seconds of axis a when exactly the axes in S are faster and fill j is used
              t[j,S,a,w]  seconds that axis a adds to window w in the same place
Variables     y[j,S,a] ∈ {0,1}  on fill j, axis a comes right after the axes in S;
              e[w] ≥ 0  exposed seconds of window w
Objective     min Σ c[j,S,a]·y[j,S,a] + Σ_w e[w]
C1 one fill   Σ_{j,a} y[j,∅,a] = 1
C2 flow       Σ_a y[j,S∖a,a] = Σ_a y[j,S,a]            for every j and every S other than ∅ and A
C3 granule    e[w] ≥ p_w/n_w · Σ t[j,S,a,w]·y[j,S,a]
C4 window     e[w] ≥ p_w · (Σ t[j,S,a,w]·y[j,S,a] − L_w)
C5 forced     the last axis is the one asked for (used to price alternatives)

An axis order is a path from ∅ to A through the subsets, so C1 and C2 describe a shortest path and the relaxation is
nearly integral; C3 and C4 couple the axes that share a window. Fills that do not tile (a granule that cuts a group) are
priced like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import permutations
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.axes import axis_terms, searched_network
from scaleacross.cost_models.groups import GroupShape, exact_shape
from scaleacross.cost_models.levels import Levels, build_levels
from scaleacross.cost_models.links import stacked_links
from scaleacross.cost_models.overlap import WINDOW_NAMES, exposed_s, windows
from scaleacross.cost_models.settings import Floats, Settings
from scaleacross.cost_models.work import Work
from scaleacross.solvers.backends import cpsat
from scaleacross.solvers.backends.linear_model import Expression, LinearModel, Solution
from scaleacross.solvers.balance import Balance
from scaleacross.solvers.candidates import Pricing
from scaleacross.solvers.fleets import Fill, Fleet, shares
from scaleacross.spec.parallelism import GRID_AXES, GridAxis

FILL_BLOCK: Final = 16
"""Fills in one model: all of them for two or three buildings."""

Solver = Callable[[LinearModel, float, int], Solution]
Arc = tuple[int, frozenset[GridAxis], GridAxis]


class ArcCost(NamedTuple):
    """c[j,S,a] and t[j,S,a,·] of the module docstring, seconds."""

    serial_s: float
    window_s: Floats


@dataclass(frozen=True)
class PlacementDecision:
    """Axis order (fastest first, axes of degree 1 first of all), fill, and the exposed communication in seconds.

    ``balance`` holds layers and batch shares on fleets of several accelerator types, None where they are equal.

    ``complete`` says that nothing of the space is better; otherwise some fills were not tried, or a time limit ended
    the proof.
    """

    axis_order: tuple[GridAxis, ...]
    fill: Fill
    communication_s: float
    complete: bool
    balance: Balance | None = None


@dataclass
class Placer:
    """Places candidates on one fleet; remembers fills' levels and group shapes between candidates."""

    fleet: Fleet
    pricing: Pricing
    solver: Solver = cpsat.solve
    seed: int = 0
    _levels: dict[Fill, Levels] = field(default_factory=dict)
    _shapes: dict[tuple[Fill, int, int], GroupShape] = field(default_factory=dict)

    def place(
        self,
        settings: Settings,
        work: Work,
        time_limit_s: float,
        slowest_axis: GridAxis | None = None,
        enough_s: float = -np.inf,
        cutoff_s: float = np.inf,
    ) -> PlacementDecision | None:
        """The best placement of a single candidate (``settings`` has one row), None when no fill holds it.

        Args:
            slowest_axis: C5: only orders that end with this axis.
            enough_s: fills are tried block by block, largest granule first; no further block once a placement exposes
                no more communication than this. The decision says whether all of them were tried.
            cutoff_s: placements that expose this much communication or more are of no interest: axis orders whose lower
                bound says so are left out, and None is returned when all are.
        """
        active = tuple(axis for axis in GRID_AXES if int(getattr(settings, axis)[0]) > 1)
        idle = tuple(axis for axis in GRID_AXES if axis not in active)
        fills = self.fleet.fills_of(settings.decision(0).degrees)
        if fills and not active:
            return PlacementDecision(idle, fills[0], 0.0, complete=True)
        best: PlacementDecision | None = None
        proved = True
        arcs = self._promising(settings, work, active, cutoff_s)
        if not arcs:
            return None
        for start in range(0, len(fills), FILL_BLOCK):
            if best is not None and best.communication_s <= enough_s:
                return replace(best, complete=False)
            block = fills[start : start + FILL_BLOCK]
            costs = self._arc_costs(settings, work, arcs, block)
            model, variables = build_model(costs, active, settings, work, slowest_axis)
            solution = self.solver(model, time_limit_s, self.seed)
            proved &= solution.status in ("optimal", "infeasible")
            if solution.values:
                chosen = {arc: costs[arc] for arc, variable in variables.items() if solution.values[variable] > 0.5}
                found = _decode(chosen, idle, block, _communication_s(list(chosen.values()), settings, work))
                best = found if best is None or found.communication_s < best.communication_s else best
        return None if best is None else replace(best, complete=proved)

    def every(self, settings: Settings, work: Work) -> Iterator[PlacementDecision]:
        """Every axis order on every fill of a single candidate, each with its exposed communication; nothing is solved."""
        active = tuple(axis for axis in GRID_AXES if int(getattr(settings, axis)[0]) > 1)
        idle = tuple(axis for axis in GRID_AXES if axis not in active)
        arcs = self._promising(settings, work, active, np.inf)
        for fill in self.fleet.fills_of(settings.decision(0).degrees):
            costs = self._arc_costs(settings, work, arcs, [fill])
            for order in permutations(active):
                path = [costs[0, frozenset(order[:at]), axis] for at, axis in enumerate(order)]
                seconds = _communication_s(path, settings, work) if path else 0.0
                yield PlacementDecision((*idle, *order), fill, seconds, complete=True)

    def unlimited(self) -> Placer:
        """A placer that places candidates however slow they are: this one."""
        return self

    def levels(self, fill: Fill) -> Levels:
        """Link figures of a fill."""
        if fill not in self._levels:
            self._levels[fill] = build_levels(self.fleet.topology, shares(fill), self.fleet.graph)
        return self._levels[fill]

    def _promising(
        self, settings: Settings, work: Work, active: Sequence[GridAxis], cutoff_s: float
    ) -> dict[GridAxis, list[frozenset[GridAxis]]]:
        """The (axis, faster axes) of every axis order whose lower bound is below the cutoff, in a fixed order."""
        orders = list(permutations(active))
        if np.isfinite(cutoff_s):
            bounds = self.pricing.order_bounds_s(settings, work, orders)[:, 0]
            orders = [order for order, bound in zip(orders, bounds, strict=True) if bound < cutoff_s]
        out: dict[GridAxis, list[frozenset[GridAxis]]] = {}
        for axis in active if orders else ():
            faster = {tuple(sorted(order[: order.index(axis)])) for order in orders}
            out[axis] = [frozenset(subset) for subset in sorted(faster)]
        return out

    def _arc_costs(
        self,
        settings: Settings,
        work: Work,
        promising: Mapping[GridAxis, Sequence[frozenset[GridAxis]]],
        fills: Sequence[Fill],
    ) -> dict[Arc, ArcCost]:
        costs: dict[Arc, ArcCost] = {}
        for axis, subsets in promising.items():
            arcs: list[Arc] = [(index, subset, axis) for index in range(len(fills)) for subset in subsets]
            copies = np.zeros(len(arcs), dtype=np.int64)
            volumes = self.pricing.volumes(settings.take(copies), work.take(copies))
            shapes = [self._axis_shapes(settings, axis, subset, fills[index]) for index, subset, _ in arcs]
            links = stacked_links([self.levels(fills[index]) for index, _, _ in arcs])
            stacked = [stacked_shapes(column) for column in zip(*shapes, strict=True)]
            expert, ep = stacked[1:] if axis == "dp_shard" else (None, None)
            network = searched_network(self.pricing.job, self.pricing.accelerators)
            terms = axis_terms(axis, volumes, stacked[0], links, expert, ep, exact=True, network=network)
            serial = terms.serial_total_s
            costs |= {arc: ArcCost(float(serial[i]), terms.window_s[:, i]) for i, arc in enumerate(arcs)}
        return costs

    def _axis_shapes(
        self, settings: Settings, axis: GridAxis, faster: frozenset[GridAxis], fill: Fill
    ) -> list[GroupShape]:
        stride = int(np.prod([getattr(settings, other)[0] for other in faster], dtype=np.int64))
        degree, ep = int(getattr(settings, axis)[0]), int(settings.ep[0])
        shapes = [self.shape(degree, stride, fill)]
        if axis == "dp_shard":
            shapes += [self.shape(degree // ep, stride * ep, fill), self.shape(ep, stride, fill)]
        return shapes

    def shape(self, degree: int, stride: int, fill: Fill) -> GroupShape:
        """Shape of the groups of an axis on a fill."""
        key = (fill, degree, stride)
        if key not in self._shapes:
            self._shapes[key] = exact_shape(degree, stride, self.levels(fill))
        return self._shapes[key]


def _decode(
    chosen: dict[Arc, ArcCost], idle: Sequence[GridAxis], fills: Sequence[Fill], communication_s: float
) -> PlacementDecision:
    """The path of chosen arcs as an axis order."""
    order: list[GridAxis] = []
    while len(order) < len(chosen):
        order += [axis for _, faster, axis in chosen if faster == frozenset(order)]
    fill = fills[next(iter(chosen))[0]]
    return PlacementDecision((*idle, *order), fill, communication_s, complete=True)


def _communication_s(chosen: Sequence[ArcCost], settings: Settings, work: Work) -> float:
    """The objective of the chosen arcs in floating point (a backend may have rounded)."""
    in_windows = np.sum([arc.window_s for arc in chosen], axis=0)
    exposed = (
        exposed_s(seconds, window)[0] for seconds, window in zip(in_windows, windows(settings, work), strict=True)
    )
    return sum(arc.serial_s for arc in chosen) + float(sum(exposed))


def stacked_shapes(shapes: Sequence[GroupShape]) -> GroupShape:
    """One row per shape."""
    return GroupShape(*(np.stack([getattr(shape, f.name) for shape in shapes]) for f in fields(GroupShape)))


def build_model(
    costs: dict[Arc, ArcCost],
    active: Sequence[GridAxis],
    settings: Settings,
    work: Work,
    slowest_axis: GridAxis | None = None,
) -> tuple[LinearModel, dict[Arc, int]]:
    """The model of the module docstring, and the variable of every arc."""
    model = LinearModel()
    arcs = {arc: model.binary(f"y[{arc[0]},{'+'.join(sorted(arc[1]))},{arc[2]}]") for arc in costs}
    for arc, variable in arcs.items():
        model.objective[variable] = costs[arc].serial_s
    _c1_one_fill(model, arcs)
    _c2_flow(model, arcs, frozenset(active))
    _c3_c4_windows(model, arcs, costs, settings, work)
    if slowest_axis is not None:
        _c5_forced(model, arcs, frozenset(active), slowest_axis)
    return model, arcs


def _c1_one_fill(model: LinearModel, arcs: dict[Arc, int]) -> None:
    model.add("C1 one fill", {v: 1.0 for (_, faster, _), v in arcs.items() if not faster}, "==", 1.0)


def _c2_flow(model: LinearModel, arcs: dict[Arc, int], everything: frozenset[GridAxis]) -> None:
    through: dict[tuple[int, frozenset[GridAxis]], Expression] = {}
    for (fill, faster, axis), variable in arcs.items():
        through.setdefault((fill, faster | {axis}), {})[variable] = 1.0
        through.setdefault((fill, faster), {})[variable] = -1.0
    for (_, subset), terms in through.items():
        if subset and subset != everything:
            model.add("C2 flow", terms, "==", 0.0)


def _c3_c4_windows(
    model: LinearModel, arcs: dict[Arc, int], costs: dict[Arc, ArcCost], settings: Settings, work: Work
) -> None:
    for index, window in enumerate(windows(settings, work)):
        seconds = {v: float(costs[arc].window_s[index]) for arc, v in arcs.items()}
        if not any(seconds.values()):
            continue
        per_step, least, length = (
            float(column[0]) for column in (window.per_step, window.least_fraction, window.length_s)
        )
        exposed = model.continuous(f"e[{WINDOW_NAMES[index]}]")
        model.objective[exposed] = 1.0
        for name, share, free in (("C3 granule", per_step * least, 0.0), ("C4 window", per_step, per_step * length)):
            model.add(name, {exposed: 1.0} | {v: -share * s for v, s in seconds.items()}, ">=", -free)


def _c5_forced(
    model: LinearModel, arcs: dict[Arc, int], everything: frozenset[GridAxis], slowest_axis: GridAxis
) -> None:
    wrong = {v: 1.0 for (_, faster, axis), v in arcs.items() if faster | {axis} == everything and axis != slowest_axis}
    if wrong:
        model.add("C5 forced", wrong, "==", 0.0)
