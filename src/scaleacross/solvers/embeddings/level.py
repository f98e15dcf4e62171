"""Plans in which every rank holds the same: how many tables get which option.

Tables take ranks in turn. Of an option with m tables of s shards each, no rank then holds more than ⌈m·s/ranks⌉ shards
(of a host: ⌈m/hosts⌉, of all ranks: m). The program minimises the seconds of a rank that holds so many of every option
within its memory. Its size does not depend on the ranks. It suits many tables of few kinds that nearly use up the
memories, and also chooses the share of every cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from ortools.linear_solver import pywraplp

from scaleacross.cost_models.candidates import Ints
from scaleacross.cost_models.embedding.options import Assignment, Option, ShardingProblem
from scaleacross.solvers.embeddings.choices import Alike

MOST_KINDS: Final = 40
"""Groups of equal tables beyond which the program is skipped: a choice."""
_MOST_NODES: Final = 1_000
"""Most nodes of the integer program: a choice."""
_GAP: Final = 1e-3
"""Relative gap at which the program stops: a choice."""


def level_plan(problem: ShardingProblem, groups: Sequence[Alike]) -> Assignment | None:
    """The fastest plan of this kind that the program finds; None where there is none, or where most tables differ."""
    if len(groups) > MOST_KINDS or 2 * len(groups) > len(problem.tables):
        return None
    fleet, solver = problem.fleet, pywraplp.Solver.CreateSolver("SCIP")
    room = fleet.capacity.min(axis=0)
    scale_s = max(min(float(o.seconds.max()) for _, o in group.options) for group in groups) or 1.0
    top, many_of = solver.NumVar(0, solver.infinity(), "T"), dict[tuple[int, int], pywraplp.Variable]()
    load = solver.Constraint(-solver.infinity(), 0)
    load.SetCoefficient(top, -1)
    stored = [solver.Constraint(-solver.infinity(), 1.0 if size else 0.0) for size in room]
    for number, group in enumerate(groups):
        whole = solver.Constraint(len(group.tables), len(group.tables))
        for index, option in group.options:
            many = many_of[number, index] = solver.IntVar(0, len(group.tables), "")
            whole.SetCoefficient(many, 1)
            held = solver.IntVar(0, solver.infinity(), "")
            places, shards = _turns(option, problem)
            enough = solver.Constraint(0, solver.infinity())
            # held·places ≥ many·shards: the ceiling of the module docstring, as an integer variable
            enough.SetCoefficient(held, places)
            enough.SetCoefficient(many, -shards)
            load.SetCoefficient(held, float(option.seconds.max()) / scale_s)
            for row, size, own in zip(stored, room, option.memory, strict=True):
                row.SetCoefficient(held, float(own) / (float(size) or 1.0))
    solver.Minimize(top)
    solver.SetSolverSpecificParametersAsString(f"limits/nodes = {_MOST_NODES}\nlimits/gap = {_GAP}\n")
    if solver.Solve() not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        return None
    return _in_turn(problem, groups, {key: round(many.solution_value()) for key, many in many_of.items()})


def _turns(option: Option, problem: ShardingProblem) -> tuple[int, int]:
    """Places that tables of an option take in turn, and how many of them each table takes."""
    fleet = problem.fleet
    return {"one": (fleet.num_ranks, option.num_shards), "unit": (len(fleet.units), 1), "all": (1, 1)}[option.spread]


def _in_turn(problem: ShardingProblem, groups: Sequence[Alike], many_of: dict[tuple[int, int], int]) -> Assignment:
    chosen, ranks = [0] * len(problem.tables), [np.zeros(0, dtype=np.int64)] * len(problem.tables)
    for number, group in enumerate(groups):
        waiting = list(group.tables)
        for index, option in group.options:
            own, waiting = waiting[: many_of[number, index]], waiting[many_of[number, index] :]
            for turn, table in enumerate(own):
                chosen[table], ranks[table] = index, _at(option, problem, turn)
    return Assignment(tuple(chosen), tuple(ranks))


def _at(option: Option, problem: ShardingProblem, turn: int) -> Ints:
    fleet = problem.fleet
    if option.spread == "all":
        return np.arange(fleet.num_ranks)
    if option.spread == "unit":
        return fleet.units[turn % len(fleet.units)]
    return np.sort((turn * option.num_shards + np.arange(option.num_shards)) % fleet.num_ranks)
