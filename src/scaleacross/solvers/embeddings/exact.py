"""The assignment as a constraint program: of all tables with a proof, or of a part while the rest stays fixed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from ortools.sat.python import cp_model

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.embedding.options import Assignment, Option, ShardingProblem
from scaleacross.solvers.backends.cpsat import Solver
from scaleacross.solvers.embeddings.choices import Alike, alike_tables
from scaleacross.solvers.embeddings.construct import interchangeable

_STEPS = 200_000
"""Integer steps per incumbent. Costs are rounded down to them, so that the bound of the model stays a bound."""


@dataclass(frozen=True)
class Part:
    """The tables and ranks that may change, and the load of all other tables there, (ranks,) and (ranks, tiers)."""

    tables: tuple[int, ...]
    ranks: Ints
    load: Floats
    memory: Floats


@dataclass(frozen=True)
class Solved:
    """Options and ranks of the part's tables (None: nothing better), a bound in seconds, and whether it is proved."""

    found: dict[int, tuple[int, Ints]] | None
    bound_s: float
    proved: bool


def whole_part(problem: ShardingProblem) -> Part:
    """All tables over all ranks."""
    fleet = problem.fleet
    none = np.zeros(fleet.num_ranks), np.zeros_like(fleet.capacity)
    return Part(tuple(range(len(problem.tables))), np.arange(fleet.num_ranks), *none)


def size_of(groups: Sequence[Alike], problem: ShardingProblem) -> int:
    """Number of integer variables that the program of all tables would have."""
    fleet = problem.fleet
    per = {"one": fleet.num_ranks, "unit": len(fleet.units), "all": 1}
    return sum(per[option.spread] for group in groups for _, option in group.options)


class _Program:
    """Constraint program over counts of tables per option and of shards per rank."""

    def __init__(self, problem: ShardingProblem, part: Part, upper_s: float) -> None:
        self.problem, self.part, self.fleet = problem, part, problem.fleet
        self.model, self.step_s = cp_model.CpModel(), upper_s / _STEPS
        self.groups = alike_tables(problem, part.tables)
        inside = set(map(int, part.ranks))
        self.is_whole = len(inside) == self.fleet.num_ranks
        self.units = [number for number, unit in enumerate(self.fleet.units) if inside.issuperset(map(int, unit))]
        self.top = self.model.new_int_var(0, _STEPS, "T")
        self.picked: dict[tuple[int, int], cp_model.IntVar] = {}
        self.shards: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self.hosts: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self.terms: dict[int, list[tuple[cp_model.IntVar, Option]]] = {rank: [] for rank in inside}
        self.everywhere: list[tuple[cp_model.IntVar, Option]] = []
        for number, group in enumerate(self.groups):
            self._choices(number, group, upper_s)
        self.loads = {rank: self._load(rank) for rank in sorted(inside)}
        for rank, load in self.loads.items():
            self.model.add(load <= self.top)
            self._room(rank)

    def _choices(self, number: int, group: Alike, upper_s: float) -> None:
        model, many, picks = self.model, len(group.tables), []
        for index, option in group.options:
            # options on all ranks do not fit a part, and options longer than the incumbent cannot improve it
            if (option.spread == "all" and not self.is_whole) or option.seconds.min() > upper_s:
                continue
            picked = model.new_int_var(0, many, "")
            if option.spread == "one":
                most = many * option.num_shards
                allowed = [r for r in self.terms if option.seconds[self.fleet.rank_class[r]] <= upper_s]
                own = {rank: model.new_int_var(0, most, "") for rank in allowed}
                for rank, count in own.items():
                    self.shards[number, index, rank] = count
                    self.terms[rank].append((count, option))
                if option.in_one_host:
                    self._inside_hosts(number, index, option, own, many)
                model.add(sum(own.values()) == option.num_shards * picked)
            elif option.spread == "unit":
                on = {unit: model.new_int_var(0, many, "") for unit in self.units}
                for unit, count in on.items():
                    self.hosts[number, index, unit] = count
                    for rank in self.fleet.units[unit]:
                        self.terms[int(rank)].append((count, option))
                model.add(sum(on.values()) == picked)
            else:
                self.everywhere.append((picked, option))
            self.picked[number, index] = picked
            picks.append(picked)
        model.add(sum(picks) == many)

    def _inside_hosts(
        self, number: int, index: int, option: Option, own: dict[int, cp_model.IntVar], many: int
    ) -> None:
        """Require every host to hold all shards of whole tables."""
        for host in sorted({int(self.fleet.host_of[rank]) for rank in own}):
            count = self.hosts[number, index, host] = self.model.new_int_var(0, many, "")
            here = [shards for rank, shards in own.items() if self.fleet.host_of[rank] == host]
            self.model.add(sum(here) == option.num_shards * count)

    def _load(self, rank: int) -> cp_model.LinearExpr:
        kind = int(self.fleet.rank_class[rank])
        terms = [*self.terms[rank], *self.everywhere]
        rounded = [int(option.seconds[kind] / self.step_s) for _, option in terms]
        at = int(np.searchsorted(self.part.ranks, rank))
        base = int(self.part.load[at] / self.step_s)
        return cp_model.LinearExpr.weighted_sum([count for count, _ in terms], rounded) + base

    def _room(self, rank: int) -> None:
        terms, at = [*self.terms[rank], *self.everywhere], int(np.searchsorted(self.part.ranks, rank))
        for tier, capacity in enumerate(self.fleet.capacity[rank]):
            own = [(count, int(option.memory[tier])) for count, option in terms if option.memory[tier] > 0]
            if own:
                held = cp_model.LinearExpr.weighted_sum([count for count, _ in own], [size for _, size in own])
                self.model.add(held <= int(capacity) - int(self.part.memory[at, tier]))

    def break_symmetry(self) -> None:
        """Order equal ranks of a host by falling load, and equal hosts by the load of their first rank."""
        first: dict[tuple[object, ...], int] = {}
        for own in interchangeable(self.problem):
            for one, other in pairwise(own):
                self.model.add(self.loads[one] >= self.loads[other])
        for unit in self.fleet.units:
            kind = tuple((int(self.fleet.rank_class[r]), self.fleet.capacity[r].tobytes()) for r in unit)
            if kind in first:
                self.model.add(self.loads[first[kind]] >= self.loads[int(unit[0])])
            first[kind] = int(unit[0])

    def hint(self, assignment: Assignment) -> None:
        """Give a plan as the solver's hint."""
        at = {table: number for number, group in enumerate(self.groups) for table in group.tables}
        counts: dict[tuple[int, int], int] = {}
        own: dict[tuple[int, int, int], int] = {}
        for table in self.part.tables:
            index, ranks = assignment.option[table], assignment.ranks[table]
            counts[at[table], index] = counts.get((at[table], index), 0) + 1
            if self.problem.options[table][index].spread == "one":
                for rank in ranks:
                    own[at[table], index, int(rank)] = own.get((at[table], index, int(rank)), 0) + 1
        for pair, count in self.picked.items():
            self.model.add_hint(count, counts.get(pair, 0))
        for triple, count in self.shards.items():
            self.model.add_hint(count, own.get(triple, 0))

    def decode(self, solver: cp_model.CpSolver) -> dict[int, tuple[int, Ints]]:
        """Option and ranks of every table of the part."""
        out: dict[int, tuple[int, Ints]] = {}
        for number, group in enumerate(self.groups):
            left = list(group.tables)
            for index, option in group.options:
                if (number, index) not in self.picked:
                    continue
                many = int(solver.value(self.picked[number, index]))
                own, left = left[:many], left[many:]
                for table, ranks in zip(own, self._ranks(solver, number, index, option, many), strict=True):
                    out[table] = (index, ranks)
        return out

    def _ranks(self, solver: cp_model.CpSolver, number: int, index: int, option: Option, many: int) -> list[Ints]:
        if option.spread == "all":
            return [np.arange(self.fleet.num_ranks)] * many
        if option.spread == "unit":
            on = [u for u in self.units for _ in range(int(solver.value(self.hosts[number, index, u])))]
            return [self.fleet.units[unit] for unit in on]
        held = [
            rank
            for rank in self.terms
            if (number, index, rank) in self.shards
            for _ in range(int(solver.value(self.shards[number, index, rank])))
        ]
        if not option.in_one_host:
            return _dealt(held, many)
        hosts = [[rank for rank in held if self.fleet.host_of[rank] == host] for host in range(len(self.fleet.hosts))]
        return [ranks for here in hosts for ranks in _dealt(here, len(here) // option.num_shards)]


def _dealt(held: Sequence[int], many: int) -> list[Ints]:
    """Ranks of ``many`` tables, to which the shards in ``held`` are dealt in turn."""
    return [np.array(sorted(held[start::many])) for start in range(many)]


def solve_part(
    problem: ShardingProblem,
    part: Part,
    upper_s: float,
    limit_s: float,
    seed: int,
    start: Assignment | None = None,
    lower_s: float = 0.0,
    gap: float = 0.0,
    workers: int = 1,
    work: float = float("inf"),
    clock: Callable[[], float] = time.perf_counter,
    stopped: Callable[[], bool] = lambda: False,
) -> Solved:
    """Minimise the busiest of the part's ranks below ``upper_s`` seconds, within the limits.

    Args:
        limit_s: seconds by ``clock``.
        stopped: polled during the search, which ends once it is true.
        work: deterministic work of the solver, about seconds of an idle core, so that a busy machine finds the same.
    """
    program = _Program(problem, part, upper_s)
    if program.is_whole and len(part.tables) == len(problem.tables):
        program.break_symmetry()
    program.model.add(program.top >= int(lower_s / program.step_s))
    if start is not None:
        program.hint(start)
    program.model.minimize(program.top)
    solver = Solver()
    if np.isfinite(work):
        solver.parameters.max_deterministic_time = work
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    solver.parameters.relative_gap_limit = gap
    status = solver.solve_within(program.model, limit_s, clock, stopped)
    found = program.decode(solver) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    proved = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    reached_s = upper_s if status == cp_model.INFEASIBLE else solver.best_objective_bound * program.step_s
    return Solved(found, max(lower_s, reached_s), proved)
