"""Which shards fit a rank together: step times refuted, and plans found, for tens of tables on equal ranks.

Is T seconds too little? A *pattern* is a set of shards that one rank may hold. Let tables be cut into fractions over
options, and let patterns cover the shards of single ranks and of hosts. Then no more patterns than ranks may be needed
(configuration program of bin packing; Gilmore and Gomory, 1961). Options on all ranks take U seconds of every rank; for
U in [a, b] patterns have T − a. Patterns come from a dynamic program over times rounded down, which never loses one.
The need of the master divided by the worth of the best pattern is a lower bound on the ranks at any moment (Farley,
1990). Memory is added up over ranks, as in ``bound``.

Where the program has an answer, U is halved, or an option is fixed or excluded, and both parts are tried (branch and
price). T is refuted when every part is. A part whose options are whole is given to ``place``, which packs their shards
or proves that they do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from ortools.linear_solver import pywraplp

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.embedding.options import Fleet, Option, holders
from scaleacross.solvers.embeddings.choices import Alike

MOST_TABLES: Final = 40
_GRID: Final = 4000
_THINNEST: Final = 0.004
"""Share of T: narrower intervals of U are not halved further."""
_MOST_UNPLACED: Final = 2
"""Whole-option choices that could neither be packed nor refuted, before the next T is tried."""
_MOST_TRIED: Final = 6
"""Whole-option choices in all, before the next T is tried."""
_CLOSE: Final = 0.002
_MOST_ROUNDS: Final = 400
_WHOLE: Final = 1e-6
_SLACK: Final = 1e-4
"""Share of T by which the U of a part may lie below that of its choice."""
Pattern = tuple[tuple[int, int], ...]
"""(item, copies) pairs; an item is an option of a group that does not load all ranks."""
Answer = Literal["refuted", "placed", "open"]
Place = Callable[[Sequence[Sequence[int]], float], tuple[Answer, float]]
"""(tables per option of every group; T) -> whether their shards fit below T, and seconds of the best plan so far."""


@dataclass(frozen=True)
class _Part:
    """Plans still possible: U from ``first`` to ``last`` seconds, tables from ``fewest`` to ``most``, (options,)."""

    first: float
    last: float
    fewest: Floats
    most: Floats


class PatternSearch:
    """Refutes step times and finds plans; patterns found once are kept for the next step time."""

    def __init__(self, groups: Sequence[Alike], fleet: Fleet, place: Place) -> None:
        self.groups, self.fleet, self.ranks, self.place = groups, fleet, fleet.num_ranks, place
        self.left: Callable[[], float] = lambda: 0.0
        self.best_s = float("inf")
        listed = [(number, option) for number, group in enumerate(groups) for _, option in group.options]
        self.items = [pair for pair in listed if pair[1].spread != "all"]
        self.everywhere = [pair for pair in listed if pair[1].spread == "all"]
        self.options = (*self.items, *self.everywhere)
        self.seconds: Floats = np.array([float(option.seconds[0]) for _, option in self.options])
        self.work = self.seconds * [holders(option, fleet) for _, option in self.options]
        self.pool: set[Pattern] = {((item, 1),) for item in range(len(self.items))}

    def narrowed(self, low_s: float, high_s: float, left: Callable[[], float]) -> float:
        """The largest step time in seconds refuted in the time that is ``left``, at least ``low_s``.

        A plan reaches ``high_s``. The least step time that stayed open lies between the two. The wider of the intervals
        on its sides is halved.
        """
        self.left, self.best_s, stuck_s = left, high_s, high_s
        while self.left() > 0 and high_s - low_s > _CLOSE * high_s:
            below = stuck_s - low_s >= high_s - stuck_s
            trial = (low_s + stuck_s) / 2 if below else (stuck_s + high_s) / 2
            answer = self._answered(trial)
            high_s = min(high_s, self.best_s)
            stuck_s = min(stuck_s, high_s)
            if answer == "placed":
                continue
            if answer == "refuted":
                low_s, stuck_s = max(low_s, trial), max(stuck_s, trial)
            elif below:
                stuck_s = trial
            else:
                break
        return low_s

    def _answered(self, limit_s: float) -> Answer:
        """Whether ``limit_s`` is refuted, or a plan reaches it, or neither is known."""
        many = np.array([len(self.groups[number].tables) for number, _ in self.options], dtype=np.float64)
        parts, unplaced = [_Part(0.0, limit_s, np.zeros(len(many)), many)], 0
        known: set[bytes] = set()
        master = _Master(self, limit_s)
        while parts:
            # depth first: ``_halves`` puts the more promising part last
            part = parts.pop()
            if self.left() <= 0:
                return "open"
            try:
                shares = self._shares(master, part)
            except _GaveUp:
                return "open"
            if shares is None:
                continue
            whole = np.round(shares)
            near = self._everywhere_s(whole) - _SLACK * limit_s
            if np.abs(shares - whole).max() >= _WHOLE:
                parts += self._halves(limit_s, part, shares)
            elif near > part.first:  # the room of patterns is that of a smaller U: look at this one
                parts += [replace(part, last=near), replace(part, first=near)]
            else:
                if whole.tobytes() not in known:
                    known.add(whole.tobytes())
                    answer, seconds = self.place(self._by_group(whole), limit_s)
                    self.best_s = min(self.best_s, seconds)
                    if answer == "placed":
                        return answer
                    unplaced += answer == "open"
                    if unplaced >= _MOST_UNPLACED or len(known) >= _MOST_TRIED:
                        return "open"
                parts += self._others(part, whole)
        return "open" if unplaced else "refuted"

    def _everywhere_s(self, shares: Floats) -> float:
        """U in seconds for given tables per option."""
        return float(self.seconds[len(self.items) :] @ shares[len(self.items) :])

    def _halves(self, limit_s: float, part: _Part, shares: Floats) -> list[_Part]:
        """The part in two, the more promising one last: split by U, else by the fractional option of most work."""
        if part.last - part.first > _THINNEST * limit_s:
            middle = (part.first + part.last) / 2
            lower, upper = replace(part, last=middle), replace(part, first=middle)
            return [upper, lower] if self._everywhere_s(shares) < middle else [lower, upper]
        broken = np.abs(shares - np.round(shares))
        return self._split(part, int((np.where(broken < _WHOLE, 0.0, broken) * self.work).argmax()), shares)

    def _others(self, part: _Part, whole: Floats) -> list[_Part]:
        """The part in two by the option of most work that is not fixed; none where all are fixed."""
        free = np.where(part.fewest < whole, self.work, 0.0)
        return self._split(part, int(free.argmax()), whole) if free.any() else []

    @staticmethod
    def _split(part: _Part, option: int, shares: Floats) -> list[_Part]:
        """The part with fewer tables of an option than ``shares`` rounded up, and the part with at least as many."""
        fewest, most = part.fewest.copy(), part.most.copy()
        fewest[option] = np.ceil(shares[option] - _WHOLE)
        most[option] = fewest[option] - 1
        return [replace(part, most=most), replace(part, fewest=fewest)]

    def _by_group(self, shares: Floats) -> list[list[int]]:
        """Tables per option of every group, in the order of its options."""
        place = {(number, id(option)): at for at, (number, option) in enumerate(self.options)}
        return [
            [round(float(shares[place[number, id(option)]])) for _, option in group.options]
            for number, group in enumerate(self.groups)
        ]

    def _shares(self, master: _Master, part: _Part) -> Floats | None:
        """Tables per option that need no more than all ranks; None where the part has no plan within T."""
        count = len(self.items)
        # options already fixed on all ranks use at least so much of U
        first = max(part.first, float(self.seconds[count:] @ part.fewest[count:]))
        room = master.limit_s - first
        fits = self.seconds <= np.where(np.arange(len(self.seconds)) < count, room, part.last)
        most = np.where(fits, part.most, 0.0)
        if first > part.last or (part.fewest > most).any():
            return None
        master.open(room, (first, part.last), (part.fewest, most))
        # rounded down, so that no pattern that fits is lost
        sizes = np.floor(self.seconds[:count] / max(room, 1e-30) * _GRID).astype(np.int64)
        for _ in range(_MOST_ROUNDS):
            solved = master.solve()
            if solved is None:
                return None
            needed, worth = solved
            if needed <= self.ranks or self.left() <= 0:
                break
            value, pattern = self._best(np.where(most[:count] > 0, worth, 0.0), sizes)
            # Farley's bound: even the best pattern cannot lower the need below this
            if needed / max(1.0, value) > self.ranks * (1 + 1e-6):
                return None
            if value <= 1 + 1e-7:
                break
            self.pool.add(pattern)
            master.add(pattern)
        return master.shares()

    def _best(self, worth: Floats, sizes: Ints) -> tuple[float, Pattern]:
        """The pattern of most worth, and its worth: at most one option of every table."""
        best, taken = np.zeros(_GRID + 1), []
        for number, group in enumerate(self.groups):
            own = [item for item, (of, _) in enumerate(self.items) if of == number and worth[item] > 1e-12]
            for _ in group.tables if own else ():
                best, choice = self._with_table(best, own, worth, sizes)
                taken.append(choice)
        at, found = _GRID, dict[int, int]()
        for choice in reversed(taken):
            # one integer stores item and copies, of which there are fewer than 64
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
    """Most shards of one table that one rank may hold."""
    return option.num_shards if option.spread == "one" else 1


class _GaveUp(Exception):  # noqa: N818 (not an error: the step time stays open)
    """The simplex method found no answer."""


class _Master:
    """The least number of patterns that cover the shards of fractions of tables.

    One program serves one step time; every part sets its bounds.
    """

    def __init__(self, search: PatternSearch, limit_s: float) -> None:
        fleet, self.limit_s, self.item_s = search.fleet, limit_s, search.seconds
        self.solver = solver = pywraplp.Solver.CreateSolver("GLOP")
        whole = [solver.Constraint(len(group.tables), len(group.tables)) for group in search.groups]
        self.links = [solver.Constraint(0, solver.infinity()) for _ in search.items]
        load = solver.Constraint(-solver.infinity(), search.ranks)
        self.everywhere = solver.Constraint(0, 1)
        capacity = fleet.capacity.sum(axis=0)
        stored = [solver.Constraint(-solver.infinity(), 1.0 if room else 0.0) for room in capacity]
        self.counts = [solver.NumVar(0, 0, "") for _ in search.options]
        for item, ((number, option), share) in enumerate(zip(search.options, self.counts, strict=True)):
            count, seconds = holders(option, fleet), float(option.seconds[0]) / limit_s
            whole[number].SetCoefficient(share, 1)
            load.SetCoefficient(share, count * seconds)
            for tier, row in enumerate(stored):
                row.SetCoefficient(share, count * float(option.memory[tier]) / (capacity[tier] or 1.0))
            if option.spread == "all":
                self.everywhere.SetCoefficient(share, seconds)
            else:
                self.links[item].SetCoefficient(share, -count)
        self.used: dict[Pattern, tuple[pywraplp.Variable, float]] = {}
        for pattern in search.pool:
            self.add(pattern)
        solver.Objective().SetMinimization()

    def open(self, room_s: float, everywhere_s: tuple[float, float], counts: tuple[Floats, Floats]) -> None:
        """Set the limits of a part: pattern length ``room_s``, seconds of options on all ranks, tables per option."""
        self.everywhere.SetBounds(everywhere_s[0] / self.limit_s, everywhere_s[1] / self.limit_s)
        for share, low, high in zip(self.counts, *(own.tolist() for own in counts), strict=True):
            share.SetBounds(low, high)
        for used, seconds in self.used.values():
            used.SetUb(self.solver.infinity() if seconds <= room_s else 0.0)

    def add(self, pattern: Pattern) -> None:
        """Add a pattern, or reopen one that was excluded as longer than the room before rounding down."""
        if pattern in self.used:
            self.used[pattern][0].SetUb(self.solver.infinity())
            return
        used = self.solver.NumVar(0, self.solver.infinity(), "")
        self.used[pattern] = used, sum(float(self.item_s[item]) * copies for item, copies in pattern)
        self.solver.Objective().SetCoefficient(used, 1)
        for item, copies in pattern:
            self.links[item].SetCoefficient(used, copies)

    def solve(self) -> tuple[float, Floats] | None:
        """Number of patterns needed, and the worth (dual value) of a shard of each item; None if infeasible.

        Raises:
            _GaveUp: the solver found neither.
        """
        status = self.solver.Solve()
        if status == pywraplp.Solver.INFEASIBLE:
            return None
        if status != pywraplp.Solver.OPTIMAL:
            raise _GaveUp
        return self.solver.Objective().Value(), np.array([max(0.0, row.dual_value()) for row in self.links])

    def shares(self) -> Floats:
        """Tables per option in the last solution."""
        return np.array([count.solution_value() for count in self.counts])
