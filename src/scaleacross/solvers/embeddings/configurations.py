"""Plans of many tables of few kinds on equal ranks, where memory is scarce: what one rank may hold, and how often.

A *configuration* is a set of shards that one rank may hold: seconds below T, bytes within each memory. A linear program
covers the shards of fractions of tables by the fewest configurations (Gilmore and Gomory, 1961). New ones are knapsacks
over seconds and memories, by the worth of a shard. Where fractions of them need no more than all ranks, an integer
program chooses whole ones among those found. The tables on all ranks are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from ortools.linear_solver import pywraplp

from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.embedding.options import Assignment, ShardingProblem
from scaleacross.solvers.embeddings.choices import Alike
from scaleacross.solvers.embeddings.knapsacks import GRID, Counts, Knapsacks

MOST_KINDS: Final = 40
"""Most groups of equal tables: with more, knapsacks take too long."""
_MOST_ROUNDS: Final = 400
_PASSES, _MANY_PASSES = 5, 40
"""Passes over good knapsacks: first few, then many, before a constraint program looks for a better one."""
_MOST_EXACT: Final = 6
"""Knapsacks solved by the constraint program, before a limit in seconds counts as out of reach."""
_SPARE: Final = 0.01
"""Share of all ranks by which whole configurations may need more than fractions of them."""
_MOST_NODES: Final = 1_000
"""Most nodes of the integer program: one to five seconds of CPU for 128 ranks and 1,000 configurations."""


class Configurations:
    """The program for one problem; configurations found once are kept for a longer T."""

    def __init__(self, problem: ShardingProblem, groups: Sequence[Alike], left: Callable[[], float]) -> None:
        self.problem, self.groups, self.left = problem, groups, left
        self.items = [(g, at, o) for g, group in enumerate(groups) for at, o in group.options if o.spread == "one"]
        self.shards: Ints = np.array([option.num_shards for _, _, option in self.items], dtype=np.int64)
        self.group_of: Ints = np.array([group for group, _, _ in self.items], dtype=np.int64)
        self.pool: set[Counts] = set()
        self.dice = np.random.default_rng(0)

    def plan(self, limit_s: float, everywhere: Mapping[tuple[int, int], int]) -> Assignment | None:
        """A plan within ``limit_s`` seconds; None where none was found.

        Args:
            everywhere: (group, option) -> number of tables on all ranks.
        """
        room_s, room = limit_s, self.problem.fleet.capacity[0].copy()
        tables: Ints = np.array([len(group.tables) for group in self.groups], dtype=np.int64)
        for (group, at), many in everywhere.items():
            option = dict(self.groups[group].options)[at]
            room_s, room = room_s - float(option.seconds[0]) * many, room - option.memory * many
            tables[group] -= many
        if room_s <= 0 or (room < 0).any():
            return None
        shares = [[float(o.seconds[0]) / room_s, *(o.memory / np.maximum(room, 1.0))] for _, _, o in self.items]
        # sizes are rounded up, so a configuration on the grid always fits; above 1 nothing does, whatever the cap
        sizes: Ints = np.ceil(np.minimum(shares, 2.0) * GRID).astype(np.int64)
        return self._placed(sizes, tables, everywhere) if self._covered(sizes, tables) else None

    def _covered(self, sizes: Ints, tables: Ints) -> bool:
        """Whether fractions of configurations cover all tables on at most all ranks; adds to the pool until they do."""
        ranks = self.problem.fleet.num_ranks
        # no more shards than fit a rank by themselves, or than there are
        most = np.minimum(GRID // np.maximum(1, sizes.max(axis=1)), tables[self.group_of] * self.shards)
        self.pool |= {tuple(row) for row in np.diag(most).tolist()}
        program, knapsacks = _Program(self, sizes, tables, "GLOP"), Knapsacks(sizes, most, self.dice)
        needed, exact = float("inf"), 0
        for _ in range(_MOST_ROUNDS):
            if not program.solve():
                return False
            needed = program.needed
            if needed <= ranks * (1 - _SPARE) or self.left() <= 0:
                break
            worth = program.worth()
            new, most_worth = knapsacks.worth_more(worth, _PASSES)
            if not new and needed <= ranks * most_worth:
                new, _ = knapsacks.worth_more(worth, _MANY_PASSES)
            if not new and needed <= ranks * most_worth and exact < _MOST_EXACT:
                (new, most_worth), exact = knapsacks.best(worth), exact + 1
            new -= program.columns.keys()
            # no configuration is worth more, so the need divided by it is a lower bound on the ranks
            if needed > ranks * most_worth or not new:
                break
            self.pool |= new
            for counts in sorted(new):
                program.add(counts)
        if needed <= ranks:
            self.pool |= knapsacks.near(program.worth())
        return needed <= ranks

    def _placed(self, sizes: Ints, tables: Ints, everywhere: Mapping[tuple[int, int], int]) -> Assignment | None:
        """Tables on whole configurations, one per rank; None where none so few was found."""
        ranks = self.problem.fleet.num_ranks
        program = _Program(self, sizes, tables, "SCIP")
        if not program.solve() or program.needed > ranks + 0.5:
            return None
        rows = [counts for counts, many in program.columns.items() for _ in range(round(many.solution_value()))]
        held: list[list[int]] = [[] for _ in self.items]
        for rank, counts in enumerate(rows):
            for item in np.flatnonzero(counts).tolist():
                held[item] += [rank] * counts[item]
        waiting, places = [list(group.tables) for group in self.groups], dict[int, tuple[int, Ints]]()
        for (group, at), many in everywhere.items():
            places |= {waiting[group].pop(): (at, np.arange(ranks)) for _ in range(many)}
        for (group, at, option), own, share in zip(self.items, held, program.shares, strict=True):
            many = round(share.solution_value())
            for number in range(many):
                shards = own[number : many * option.num_shards : many]
                places[waiting[group].pop()] = at, np.array(sorted(shards))
        whole = [places[table] for table in range(len(self.problem.tables))]
        return Assignment(tuple(at for at, _ in whole), tuple(own for _, own in whole))


class _Program:
    """The fewest configurations of the pool that hold all shards, in fractions ("GLOP") or whole ("SCIP")."""

    def __init__(self, owner: Configurations, sizes: Ints, tables: Ints, solver: str) -> None:
        self.whole = solver == "SCIP"
        self.fits: Bools = np.asarray((sizes <= GRID).all(axis=1))
        self.solver = pywraplp.Solver.CreateSolver(solver)
        groups = [self.solver.Constraint(float(many), float(many)) for many in tables]
        self.links = [self.solver.Constraint(0.0, self.solver.infinity()) for _ in owner.items]
        self.shares: list[pywraplp.Variable] = []
        for link, fits, (group, _, option) in zip(self.links, self.fits.tolist(), owner.items, strict=True):
            share = self.solver.Var(0, float(tables[group]) if fits else 0.0, self.whole, "")
            groups[group].SetCoefficient(share, 1)
            link.SetCoefficient(share, -option.num_shards)
            self.shares.append(share)
        self.columns: dict[Counts, pywraplp.Variable] = {}
        for counts in sorted(owner.pool):
            if (np.array(counts) @ sizes <= GRID).all():
                self.add(counts)

    def add(self, counts: Counts) -> None:
        """Add a configuration."""
        column = self.columns[counts] = self.solver.Var(0, self.solver.infinity(), self.whole, "")
        self.solver.Objective().SetCoefficient(column, 1)
        for item in np.flatnonzero(counts).tolist():
            self.links[item].SetCoefficient(column, counts[item])

    def solve(self) -> bool:
        """Whether there is a solution: the best one, or the one found within the node limit."""
        if self.whole:
            self.solver.SetSolverSpecificParametersAsString(f"limits/nodes = {_MOST_NODES}\n")
        return self.solver.Solve() in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE)

    @property
    def needed(self) -> float:
        """Number of configurations in the solution."""
        return float(self.solver.Objective().Value())

    def worth(self) -> Floats:
        """Worth of a shard of every item in configurations (dual value), (items,); 0 where it fits no rank."""
        duals = np.array([max(0.0, row.dual_value()) for row in self.links])
        return np.where(self.fits, duals, 0.0)
