"""A bound that knows that shards are whole: what fits a rank together, for tens of tables on equal ranks.

Is T seconds too little? A *pattern* is a set of shards that one rank may hold. Let tables be cut into fractions over options, and
let the shards of single ranks and of hosts be covered by patterns: no more than all ranks may be needed (configuration program of
bin packing; Gilmore and Gomory, 1961). Options on all ranks take U seconds of every rank; for U in [a, b] patterns have T − a. T
is refuted when every part of [0, T] is. Patterns come from a dynamic program over times rounded down, which never loses one; what
the master needs over what the best pattern is worth bounds the ranks needed at any moment (Farley, 1990). Memory is added up over
ranks, as in ``bound``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from ortools.linear_solver import pywraplp

from scaleacross.cost_models.embedding.options import Fleet, Option, holders
from scaleacross.cost_models.settings import Floats, Ints
from scaleacross.solvers.embeddings.choices import Alike

MOST_TABLES: Final = 40
_GRID: Final = 4000
_THINNEST: Final = 0.004
"""Of T: parts of [0, T] that are not cut further."""
_MOST_ROUNDS: Final = 400
Pattern = tuple[tuple[int, int], ...]
"""(item, copies) pairs."""


class PatternBound:
    """Refutes step times; patterns that were found are kept for the next."""

    def __init__(self, groups: Sequence[Alike], fleet: Fleet) -> None:
        self.groups, self.fleet, self.ranks = groups, fleet, fleet.num_ranks
        self.left: Callable[[], float] = lambda: 0.0
        self.items = [
            (number, option)
            for number, group in enumerate(groups)
            for _, option in group.options
            if option.spread != "all"
        ]
        self.everywhere = [
            (number, option)
            for number, group in enumerate(groups)
            for _, option in group.options
            if option.spread == "all"
        ]
        self.seconds: Floats = np.array([float(option.seconds[0]) for _, option in self.items])
        self.pool: set[Pattern] = {((item, 1),) for item in range(len(self.items))}

    def raised(self, low_s: float, high_s: float, left: Callable[[], float]) -> float:
        """The largest step time refuted in the time that is ``left``, at least ``low_s``; ``high_s`` is reached by a plan."""
        self.left = left
        top, trial = high_s, max(low_s, 0.985 * high_s)
        while self.left() > 0 and top - low_s > 0.002 * high_s:
            if self._refuted(trial):
                low_s = trial
            else:
                top = trial
            trial = (low_s + top) / 2
        return low_s

    def _refuted(self, limit_s: float) -> bool:
        parts = [(0.0, limit_s)]
        while parts:
            first, last = parts.pop()
            if self._part_refuted(limit_s, first, last):
                continue
            if last - first < _THINNEST * limit_s or self.left() <= 0:
                return False
            middle = (first + last) / 2
            parts += [(first, middle), (middle, last)]
        return True

    def _part_refuted(self, limit_s: float, first: float, last: float) -> bool:
        """Whether no plan of ``limit_s`` has options on all ranks that take between ``first`` and ``last``."""
        room = limit_s - first
        master = _Master(self, limit_s, room, last)
        sizes = np.floor(self.seconds / max(room, 1e-30) * _GRID).astype(np.int64)
        for _ in range(_MOST_ROUNDS):
            solved = master.solve()
            if solved is None:
                return True
            needed, worth = solved
            if needed <= self.ranks or self.left() <= 0:
                return False
            value, pattern = self._best(worth, sizes)
            if needed / max(1.0, value) > self.ranks * (1 + 1e-6):
                return True
            if value <= 1 + 1e-7:
                return False
            self.pool.add(pattern)
            master.add(pattern)
        return False

    def _best(self, worth: Floats, sizes: Ints) -> tuple[float, Pattern]:
        """The pattern worth most: of every table copies of one option, or none."""
        best, taken = np.zeros(_GRID + 1), []
        for number, group in enumerate(self.groups):
            own = [item for item, (of, _) in enumerate(self.items) if of == number and worth[item] > 1e-12]
            for _ in group.tables if own else ():
                best, choice = self._with_table(best, own, worth, sizes)
                taken.append(choice)
        at, found = _GRID, dict[int, int]()
        for choice in reversed(taken):
            item, copies = divmod(int(choice[at]), 64)
            if copies:
                found[item] = found.get(item, 0) + copies
                at -= int(sizes[item]) * copies
        return float(best[_GRID]), tuple(sorted(found.items()))

    def _with_table(self, best: Floats, own: Sequence[int], worth: Floats, sizes: Ints) -> tuple[Floats, Ints]:
        after, choice = best.copy(), np.zeros(_GRID + 1, dtype=np.int64)
        for item in own:
            for copies in range(1, min(63, _most_copies(self.items[item][1])) + 1):
                size = int(sizes[item]) * copies
                if size > _GRID:
                    break
                tried = best[: _GRID + 1 - size] + worth[item] * copies
                better = tried > after[size:] + 1e-12
                after[size:][better] = tried[better]
                choice[size:][better] = item * 64 + copies
        return after, choice


def _most_copies(option: Option) -> int:
    """Shards of one table on one rank."""
    return option.num_shards if option.spread == "one" else 1


class _Master:
    """Least patterns that cover the shards of fractions of tables."""

    def __init__(self, bound: PatternBound, limit_s: float, room_s: float, most_everywhere_s: float) -> None:
        fleet, ranks = bound.fleet, bound.ranks
        self.solver = solver = pywraplp.Solver.CreateSolver("GLOP")
        whole = [solver.Constraint(len(group.tables), len(group.tables)) for group in bound.groups]
        self.links = [solver.Constraint(0, solver.infinity()) for _ in bound.items]
        load = solver.Constraint(-solver.infinity(), ranks * limit_s)
        everywhere = solver.Constraint(-solver.infinity(), most_everywhere_s)
        capacity = fleet.capacity.sum(axis=0)
        stored = [solver.Constraint(-solver.infinity(), 1.0 if room else 0.0) for room in capacity]
        for item, (number, option) in enumerate((*bound.items, *bound.everywhere)):
            count, seconds = holders(option, fleet), float(option.seconds[0])
            possible = seconds <= (room_s if option.spread != "all" else most_everywhere_s)
            share = solver.NumVar(0, solver.infinity() if possible else 0, "")
            whole[number].SetCoefficient(share, 1)
            load.SetCoefficient(share, count * seconds)
            for tier, row in enumerate(stored):
                row.SetCoefficient(share, count * float(option.memory[tier]) / (capacity[tier] or 1.0))
            if option.spread == "all":
                everywhere.SetCoefficient(share, seconds)
            else:
                self.links[item].SetCoefficient(share, -count)
        for pattern in bound.pool:
            if sum(bound.seconds[item] * copies for item, copies in pattern) <= room_s:
                self.add(pattern)
        solver.Objective().SetMinimization()

    def add(self, pattern: Pattern) -> None:
        """A pattern more."""
        used = self.solver.NumVar(0, self.solver.infinity(), "")
        self.solver.Objective().SetCoefficient(used, 1)
        for item, copies in pattern:
            self.links[item].SetCoefficient(used, copies)

    def solve(self) -> tuple[float, Floats] | None:
        """Patterns needed and what a shard of each item is worth; None where tables have no place."""
        if self.solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        return self.solver.Objective().Value(), np.array([max(0.0, row.dual_value()) for row in self.links])
