"""A lower bound on the busiest rank from a relaxation: tables are cut into fractions, and ranks of a class are pooled.

For any θ let LP(θ) be the least mean load when only shards of at most θ seconds are allowed. A plan of T seconds has no
longer shard, so LP(T) ≤ T. LP falls with θ, hence T ≥ inf{θ : LP(θ) ≤ θ}. Bisection over the distinct shard costs finds
it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from ortools.linear_solver import pywraplp

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.embedding.options import Fleet
from scaleacross.solvers.embeddings.choices import Alike, Place, class_capacity, places_of

_SAFETY = 1 - 1e-6
"""Factor on bounds, since the simplex method stops at tolerances of 1e-7 of scaled rows."""


class Relaxation:
    """The linear program, built once; ``solve(θ)`` excludes places whose shards take longer than θ."""

    def __init__(self, groups: Sequence[Alike], fleet: Fleet) -> None:
        self.places: list[Place] = places_of(groups, fleet)
        self._unit_s = max(float(np.median([place.shard_s for place in self.places] or [1.0])), 1e-12)
        solver = pywraplp.Solver.CreateSolver("GLOP")
        self._solver = solver
        ranks, room = class_capacity(fleet)
        self._top = solver.NumVar(0, solver.infinity(), "T")
        self._shard_s: Floats = np.array([place.shard_s for place in self.places])
        self._allowed = np.ones(len(self.places), dtype=bool)
        self._counts = [solver.NumVar(0, len(groups[place.group].tables), "") for place in self.places]
        rows = [solver.Constraint(len(group.tables), len(group.tables)) for group in groups]
        for place, count in zip(self.places, self._counts, strict=True):
            rows[place.group].SetCoefficient(count, 1)
        for index, number in enumerate(ranks):
            load = solver.Constraint(-solver.infinity(), 0)
            load.SetCoefficient(self._top, -float(number))
            self._fill(load, [float(place.seconds[index]) / self._unit_s for place in self.places])
            for tier, capacity in enumerate(room[index]):
                stored = solver.Constraint(-solver.infinity(), 1.0 if capacity else 0.0)
                self._fill(stored, [float(place.memory[index, tier]) / (capacity or 1.0) for place in self.places])
        solver.Minimize(self._top)

    def _fill(self, row: pywraplp.Constraint, figures: Sequence[float]) -> None:
        for figure, count in zip(figures, self._counts, strict=True):
            if figure:
                row.SetCoefficient(count, figure)

    def solve(self, limit_s: float) -> tuple[float, dict[tuple[int, int], float]] | None:
        """Least mean load (s) with shards of at most ``limit_s``, and tables by (group, option); None if none fits."""
        mean_s = self._mean_s(limit_s)
        if mean_s is None:
            return None
        counts: dict[tuple[int, int], float] = {}
        for place, count in zip(self.places, self._counts, strict=True):
            value = count.solution_value()
            if value > 1e-9:
                key = (place.group, place.option)
                counts[key] = counts.get(key, 0.0) + value
        return mean_s, counts

    def _mean_s(self, limit_s: float) -> float | None:
        """LP(θ) at θ = ``limit_s``, in seconds."""
        allowed = self._shard_s <= limit_s
        for index in np.flatnonzero(allowed != self._allowed).tolist():
            self._counts[index].SetUb(self._solver.infinity() if allowed[index] else 0.0)
        self._allowed = allowed
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        return float(self._top.solution_value()) * self._unit_s

    def bound_s(self) -> float | None:
        """The bound inf{θ : LP(θ) ≤ θ} in seconds; None where no fractions of tables fit the memories."""
        costs: Floats = np.unique(self._shard_s)
        if not len(costs) or (whole_s := self._mean_s(float(costs[-1]))) is None:
            return None
        high = len(costs) - 1
        low, stride = int(np.searchsorted(costs, whole_s, side="right")) - 1, 1
        low = max(0, low)
        while low < high:  # mostly near LP without limits: strides double from there
            middle = min(low + stride - 1, (low + high) // 2)
            found = self._mean_s(float(costs[middle]))
            # LP is constant from one cost to the next, so the bound is below the next cost if LP is
            if found is not None and found < costs[middle + 1]:
                high = middle
            else:
                low, stride = middle + 1, 2 * stride
        best_s = self._mean_s(float(costs[high]))
        return None if best_s is None else max(float(costs[high]), best_s) * _SAFETY

    def within(self, limit_s: float) -> set[tuple[int, int]]:
        """(group, option) pairs that a plan below ``limit_s`` may use; all pairs where the program has no answer.

        LP(θ) plus the reduced cost of one whole table at a place is a lower bound on every plan that uses the place.
        """
        least_s = self._mean_s(limit_s)
        if least_s is None:
            return {(place.group, place.option) for place in self.places}
        # the last term allows for the tolerance of the simplex method
        spare = (limit_s - least_s) / self._unit_s + limit_s / self._unit_s * (1 - _SAFETY)
        return {
            (place.group, place.option)
            for place, count, allowed in zip(self.places, self._counts, self._allowed, strict=True)
            if allowed and count.reduced_cost() <= spare
        }

    def limits(self, bound_s: float) -> list[float]:
        """Values of θ worth trying, from the bound to four times the bound."""
        costs = np.unique(self._shard_s).tolist()
        wanted = [bound_s * (1 + over) for over in (0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4, 0.8, 1.6, 3)]
        return sorted({costs[max(0, bisect_right(costs, one * (1 + 1e-9)) - 1)] for one in wanted})
