"""Plans of many tables of few kinds on equal ranks, where memory is scarce: what one rank may hold, and how often.

A *configuration* is a set of shards that one rank may hold: seconds below T, bytes within each memory. A linear program covers
the shards of fractions of tables by the fewest configurations (Gilmore and Gomory, 1961); new ones are knapsacks over seconds and
memories by what a shard is worth. Whole configurations are taken, of none the one that is nearest to whole, and the program
covers what is left on the ranks that are left; a constraint program places the last tables. Which tables go on all ranks is
given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from scaleacross.cost_models.embedding.options import Assignment, ShardingProblem
from scaleacross.cost_models.settings import Bools, Floats, Ints
from scaleacross.solvers.embeddings.choices import Alike
from scaleacross.solvers.embeddings.exact import Part, solve_part

MOST_KINDS: Final = 40
"""Groups of alike tables beyond which knapsacks take too long."""
_GRID: Final = 100_000
"""Whole numbers per rank, of seconds and of each memory; shards are rounded up."""
_KNAPSACK_WORK: Final = 0.1
_TRIES: Final = 24
"""Of weights of seconds and memories by which a knapsack is filled greedily."""
_REST_WORK: Final = 5.0
_REST_SLACK: Final = 1.5
"""Of T: what the last ranks may take; the search improves them."""
_LAST_RANKS: Final = 6
"""Ranks whose tables the constraint program places, with those of configurations that hold a part of a table's shards."""
_MOST_ROUNDS: Final = 400
_TAKEN: Final = 0.5
"""Of the configurations of a solution, before the next one."""
_SPARE: Final = 2.0
"""Ranks that whole configurations may need more than fractions of them."""
Counts = tuple[int, ...]
"""Shards of every item."""


class Configurations:
    """The program for one problem; configurations that were found are kept for a longer T."""

    def __init__(self, problem: ShardingProblem, groups: Sequence[Alike], left: Callable[[], float]) -> None:
        self.problem, self.groups, self.left = problem, groups, left
        self.items = [(g, at, o) for g, group in enumerate(groups) for at, o in group.options if o.spread == "one"]
        self.shards: Ints = np.array([option.num_shards for _, _, option in self.items])
        self.pool: set[Counts] = set()
        self.dice = np.random.default_rng(0)

    def plan(self, limit_s: float, everywhere: Mapping[tuple[int, int], int]) -> Assignment | None:
        """A plan of ``limit_s`` seconds; None where none was found.

        Args:
            everywhere: (group, option) -> tables on all ranks.
        """
        fleet, room_s, room = self.problem.fleet, limit_s, self.problem.fleet.capacity[0].copy()
        tables = np.array([len(group.tables) for group in self.groups])
        for (group, at), many in everywhere.items():
            option = dict(self.groups[group].options)[at]
            room_s, room = room_s - float(option.seconds[0]) * many, room - option.memory * many
            tables[group] -= many
        if room_s <= 0 or (room < 0).any():
            return None
        shares = [[float(o.seconds[0]) / room_s, *(o.memory / np.maximum(room, 1.0))] for _, _, o in self.items]
        sizes: Ints = np.ceil(np.minimum(shares, 2.0) * _GRID).astype(np.int64)
        rows: list[Counts] = []
        placed: Ints = np.zeros(len(self.items), dtype=np.int64)
        while fleet.num_ranks - len(rows) > _LAST_RANKS:
            found = self._covered(sizes, tables, placed, fleet.num_ranks - len(rows))
            if found is None:
                return None
            if not found:
                break
            whole = [counts for counts, many in found.items() for _ in range(int(_TAKEN * many + 1e-6))]
            whole = whole or [max(found, key=lambda counts: (found[counts], counts))]
            whole = whole[: fleet.num_ranks - len(rows) - _LAST_RANKS]
            rows += whole
            placed = placed + np.sum(whole, axis=0)
        return self._placed(limit_s, rows, everywhere)

    def _covered(self, sizes: Ints, tables: Ints, placed: Ints, ranks: int) -> dict[Counts, float] | None:
        """How often each configuration is taken beside shards that are ``placed``; None where ``ranks`` are too few."""
        fits: Bools = np.asarray((sizes <= _GRID).all(axis=1))
        solver = pywraplp.Solver.CreateSolver("GLOP")
        whole = [solver.Constraint(float(many), float(many)) for many in tables]
        links = [solver.Constraint(-float(had), solver.infinity()) for had in placed]
        for item, (group, _, option) in enumerate(self.items):
            share = solver.NumVar(0, solver.infinity() if fits[item] else placed[item] / option.num_shards, "")
            whole[group].SetCoefficient(share, 1)
            links[item].SetCoefficient(share, -option.num_shards)
        columns: dict[Counts, pywraplp.Variable] = {}

        def add(counts: Counts) -> None:
            columns[counts] = solver.NumVar(0, solver.infinity(), "")
            solver.Objective().SetCoefficient(columns[counts], 1)
            for item in np.flatnonzero(counts).tolist():
                links[item].SetCoefficient(columns[counts], counts[item])

        wanted = np.maximum(0, tables[[group for group, _, _ in self.items]] * self.shards - placed)
        most = np.minimum(_GRID // np.maximum(1, sizes.max(axis=1)), wanted)
        self.pool |= {tuple(row) for row in np.diag(most).tolist()}
        for counts in sorted(self.pool):
            if (np.array(counts) @ sizes <= _GRID).all():
                add(counts)
        for _ in range(_MOST_ROUNDS):
            if solver.Solve() != pywraplp.Solver.OPTIMAL or self.left() <= 0:
                return None
            if solver.Objective().Value() <= ranks - _SPARE:
                break
            worth = np.where(fits, [max(0.0, row.dual_value()) for row in links], 0.0)
            new, value = self._knapsacks(worth, sizes, most)
            if solver.Objective().Value() / value > ranks or not new - columns.keys():
                break
            self.pool |= new
            for counts in sorted(new):
                add(counts)
        if solver.Objective().Value() > ranks:
            return None
        return {counts: column.solution_value() for counts, column in columns.items() if column.solution_value() > 1e-9}

    def _knapsacks(self, worth: Floats, sizes: Ints, most: Ints) -> tuple[set[Counts], float]:
        """Configurations worth more than a rank: greedy ones, or of none the best one; what none is worth more than."""
        own = np.flatnonzero((worth > 1e-9) & (most > 0))
        found = {}
        for weights in self.dice.dirichlet(np.full(sizes.shape[1], 0.5), _TRIES):
            room, counts = np.full(sizes.shape[1], _GRID), np.zeros(len(worth), dtype=np.int64)
            for item in own[np.argsort(-worth[own] / (sizes[own] @ weights + 1.0), kind="stable")]:
                counts[item] = min(int((room // np.maximum(sizes[item], 1)).min()), most[item])
                room = room - counts[item] * sizes[item]
            found[tuple(counts.tolist())] = float(counts @ worth)
        best = max(found.values())
        if best > 1.01:
            return {counts for counts, value in found.items() if value > 1 + 0.5 * (best - 1)}, float("inf")
        whole, most_worth = self._knapsack(worth, sizes, most, own.tolist())
        return ({whole} if float(np.dot(whole, worth)) > 1 + 1e-5 else set()), most_worth

    def _knapsack(self, worth: Floats, sizes: Ints, most: Ints, own: Sequence[int]) -> tuple[Counts, float]:
        """The configuration worth most, or one near it, and what none is worth more than."""
        model = cp_model.CpModel()
        taken = {item: model.new_int_var(0, int(most[item]), "") for item in own}
        for size in sizes[own].T.tolist():
            model.add(cp_model.LinearExpr.weighted_sum([*taken.values()], size) <= _GRID)
        scaled = np.ceil(worth[own] * 1e6).astype(np.int64).tolist()
        model.maximize(cp_model.LinearExpr.weighted_sum([*taken.values()], scaled))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = _KNAPSACK_WORK
        solver.solve(model)
        counts = tuple(int(solver.value(taken[item])) if item in taken else 0 for item in range(len(worth)))
        return counts, solver.best_objective_bound / 1e6

    def _placed(
        self, limit_s: float, rows: Sequence[Counts], everywhere: Mapping[tuple[int, int], int]
    ) -> Assignment | None:
        """Tables on the configurations of the first ranks, and the others on the last ones."""
        ranks = self.problem.fleet.num_ranks
        held: list[list[int]] = [[] for _ in self.items]
        for rank, counts in enumerate(rows):
            for item in np.flatnonzero(counts).tolist():
                held[item] += [rank] * counts[item]
        places: dict[int, tuple[int, Ints]] = {}
        waiting, free = [list(group.tables) for group in self.groups], set(range(len(rows), ranks))
        for (group, at), many in everywhere.items():
            places |= {waiting[group].pop(): (at, np.arange(ranks)) for _ in range(many)}
        for (group, at, option), own in zip(self.items, held, strict=True):
            many = min(len(waiting[group]), len(own) // option.num_shards)
            used = many * option.num_shards
            for number in range(many):
                places[waiting[group].pop()] = at, np.array(sorted(own[number:used:many]))
            free |= set(own[used:])
        rest = tuple(table for own in waiting for table in own)
        return self._with_rest(limit_s, places, rest, np.array(sorted(free)))

    def _with_rest(
        self, limit_s: float, places: dict[int, tuple[int, Ints]], rest: tuple[int, ...], free: Ints
    ) -> Assignment | None:
        """The other tables on the ranks that have room."""
        problem = self.problem
        load, memory = np.zeros(problem.fleet.num_ranks), np.zeros_like(problem.fleet.capacity)
        for table, (at, ranks) in places.items():
            option = problem.options[table][at]
            np.add.at(load, ranks, option.seconds[0])
            np.add.at(memory, ranks, option.memory)
        part = Part(rest, free, load[free], memory[free])
        solved = solve_part(problem, part, _REST_SLACK * limit_s, self.left(), 0, work=_REST_WORK)
        if solved.found is None:
            return None
        whole = [(places | solved.found)[table] for table in range(len(problem.tables))]
        return Assignment(tuple(at for at, _ in whole), tuple(ranks for _, ranks in whole))
