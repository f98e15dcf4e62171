"""Sets of shards of most worth that one rank may hold: knapsacks over seconds and every memory.

The linear program of a knapsack gives a dual price for each dimension. Items go in by worth over price, with prices
drawn around those. Good knapsacks are emptied in part and filled again, many at a time.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.solvers.backends.cpsat import Solver

GRID: Final = 100_000
"""Integer steps per rank, of seconds and of each memory; sizes of shards are rounded up to them."""
_EXACT_WORK: Final = 0.1
_AT_ONCE: Final = 64
_KEPT: Final = 8
"""Best knapsacks that the next pass empties in part."""
_MOST_NEW: Final = 12
_LEAST: Final = 1e-5
_NEAR_PASSES, _NEAR, _MOST_NEAR = 20, 0.95, 300
Counts = tuple[int, ...]
"""Number of shards of every item."""


class Knapsacks:
    """Knapsacks over items of ``sizes`` (items, dimensions), at most ``most`` of each; ``dice`` is the generator."""

    def __init__(self, sizes: Ints, most: Ints, dice: np.random.Generator) -> None:
        self.sizes, self.most, self.dice = sizes, most, dice

    def worth_more(self, worth: Floats, passes: int) -> tuple[set[Counts], float]:
        """Some knapsacks worth more than 1, and an upper bound on the worth of any.

        Args:
            passes: passes over good knapsacks.
        """
        own = np.flatnonzero((worth > 1e-9) & (self.most > 0))
        if not len(own):
            return set(), 0.0
        above, prices = self._priced(worth, own)
        found = self._filled(worth, own, prices, passes) if above > 1 + _LEAST else {}
        best = max(found.values(), default=0.0)
        return _first(found, 1 + max(_LEAST, 0.5 * (best - 1)), _MOST_NEW), above

    def near(self, worth: Floats) -> set[Counts]:
        """Many knapsacks of about the best worth, from which the integer program chooses whole ones."""
        own = np.flatnonzero((worth > 1e-9) & (self.most > 0))
        found = self._filled(worth, own, self._priced(worth, own)[1], _NEAR_PASSES) if len(own) else {}
        return _first(found, _NEAR * max(found.values(), default=0.0), _MOST_NEAR)

    def _priced(self, worth: Floats, own: Ints) -> tuple[float, Floats]:
        """Worth with fractions of items, which no knapsack exceeds, and the dual price of every dimension."""
        solver = pywraplp.Solver.CreateSolver("GLOP")
        rows = [solver.Constraint(-solver.infinity(), float(GRID)) for _ in range(self.sizes.shape[1])]
        for item in own.tolist():
            count = solver.NumVar(0, float(self.most[item]), "")
            solver.Objective().SetCoefficient(count, float(worth[item]))
            for row, size in zip(rows, self.sizes[item].tolist(), strict=True):
                row.SetCoefficient(count, float(size))
        solver.Objective().SetMaximization()
        if solver.Solve() != pywraplp.Solver.OPTIMAL:
            return float("inf"), np.ones(len(rows))
        return solver.Objective().Value() * (1 + 1e-6), np.array([max(0.0, row.dual_value()) for row in rows])

    def _filled(self, worth: Floats, own: Ints, prices: Floats, passes: int) -> dict[Counts, float]:
        """Knapsacks filled by drawn prices, emptied in part and filled again, each with its worth."""
        dims = self.sizes.shape[1]
        drawn = prices * np.exp(self.dice.normal(0, 0.5, (_AT_ONCE, dims)))
        # the first row keeps the dual prices, and the last rows ignore them
        drawn[0] = prices
        drawn = np.vstack([drawn, self.dice.dirichlet(np.full(dims, 0.5), _AT_ONCE // 4)])
        held = self._fill(worth, own, drawn, np.zeros((len(drawn), len(own)), dtype=np.int64))
        values: Floats = held @ worth[own]
        out = self._named(held, own, values)
        for _ in range(passes):
            held, first = np.unique(held, axis=0, return_index=True)
            top = np.argsort(-values[first], kind="stable")[:_KEPT]
            base = held[np.resize(top, _AT_ONCE)]
            keep = self.dice.random(base.shape) < self.dice.uniform(0.3, 1, (_AT_ONCE, 1))
            # an item keeps its copies, or a random part of them is removed
            thin = np.where(keep, base, (base * self.dice.random(base.shape)).astype(np.int64))
            again = self._fill(worth, own, prices * np.exp(self.dice.normal(0, 1.0, (_AT_ONCE, dims))), thin)
            held = np.vstack([held[top], again])
            values = held @ worth[own]
            out |= self._named(held, own, values)
        return out

    def _named(self, held: Ints, own: Ints, values: Floats) -> dict[Counts, float]:
        whole = np.zeros((len(held), len(self.sizes)), dtype=np.int64)
        whole[:, own] = held
        return dict(zip(map(tuple, whole.tolist()), values.tolist(), strict=True))

    def _fill(self, worth: Floats, own: Ints, prices: Floats, held: Ints) -> Ints:
        """Every row of ``held`` (knapsacks, own), filled up greedily in falling order of worth over price."""
        sizes, row, held = self.sizes[own], np.arange(len(held)), held.copy()
        order = np.argsort(-worth[own] / (prices @ sizes.T + 1e-12), axis=1, kind="stable")
        room = GRID - held @ sizes
        for item in order.T:
            size = sizes[item]
            more = np.where(size > 0, room // np.maximum(size, 1), GRID).min(axis=1)
            more = np.minimum(more, self.most[own[item]] - held[row, item])
            held[row, item] += more
            room = room - more[:, None] * size
        return held

    def best(self, worth: Floats) -> tuple[set[Counts], float]:
        """The result of ``worth_more`` by a constraint program, with at most one knapsack."""
        own = np.flatnonzero((worth > 1e-9) & (self.most > 0))
        model = cp_model.CpModel()
        taken = {item: model.new_int_var(0, int(self.most[item]), "") for item in own.tolist()}
        for size in self.sizes[own].T.tolist():
            model.add(cp_model.LinearExpr.weighted_sum([*taken.values()], size) <= GRID)
        # rounded up, so that the solver's bound stays an upper bound
        scaled = np.ceil(worth[own] * 1e6).astype(np.int64).tolist()
        model.maximize(cp_model.LinearExpr.weighted_sum([*taken.values()], scaled))
        solver = Solver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = _EXACT_WORK
        solver.solve(model)
        counts = tuple(int(solver.value(taken[item])) if item in taken else 0 for item in range(len(worth)))
        found = {counts} if float(np.dot(counts, worth)) > 1 + _LEAST else set[Counts]()
        return found, float(solver.best_objective_bound) / 1e6


def _first(found: dict[Counts, float], least: float, most: int) -> set[Counts]:
    """The best knapsacks of at least that worth, at most ``most`` of them."""
    return {counts for counts in sorted(found, key=lambda one: (-found[one], one))[:most] if found[counts] >= least}
