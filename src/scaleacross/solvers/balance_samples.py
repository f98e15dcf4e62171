"""The best assignment of samples to ranks as a constraint program: what the quick rules of ``samples`` are held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from ortools.sat.python import cp_model

from scaleacross.errors import InputError
from scaleacross.samples.balance import Ints, balanced, busiest

_STEPS: Final = 1_000_000
"""Whole numbers per busiest rank of the quick rule: costs are rounded to them."""


@dataclass(frozen=True)
class ExactBalance:
    """Rank of every sample, cost of the busiest rank, a bound on it, and whether both are equal but for rounding."""

    rank: Ints
    busiest: float
    bound: float
    proved: bool


def exact_balance(
    costs: ArrayLike, num_ranks: int, *, fixed_counts: bool = True, deterministic_limit: float = 10.0
) -> ExactBalance:
    """The assignment with the least cost of the busiest rank; for tens of samples.

    Args:
        deterministic_limit: of the solver's own work, so that the answer is the same on every machine.

    Raises:
        InputError: as ``samples.balance.balanced``.
    """
    own = np.asarray(costs, dtype=np.float64)
    start = balanced(own, num_ranks, fixed_counts=fixed_counts)
    upper = busiest(own, start, num_ranks)
    if not upper:
        return ExactBalance(start, 0.0, 0.0, True)
    whole = np.rint(own / upper * _STEPS).astype(np.int64)
    model = cp_model.CpModel()
    # taken[i][r]: sample i on rank r
    taken = [[model.new_bool_var("") for _ in range(num_ranks)] for _ in own]
    most = model.new_int_var(int(-(-whole.sum() // num_ranks)), int(whole.sum()), "")
    for row, rank in zip(taken, start.tolist(), strict=True):
        model.add_exactly_one(row)
        for place, variable in enumerate(row):
            model.add_hint(variable, place == rank)
    for place in range(num_ranks):
        column = [row[place] for row in taken]
        model.add(sum(int(cost) * one for cost, one in zip(whole, column, strict=True)) <= most)
        if fixed_counts:
            model.add(sum(column) == len(own) // num_ranks)
    # ranks are alike: the dearest sample goes to the first, the next to one of the first two, …
    for number, sample in enumerate(np.argsort(-own)[: num_ranks - 1].tolist()):
        for place in range(number + 1, num_ranks):
            model.add(taken[sample][place] == 0)
    model.minimize(most)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = deterministic_limit
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise InputError("no assignment was found in the time given: give more, or fewer samples")
    rank = np.array([next(p for p, one in enumerate(row) if solver.boolean_value(one)) for row in taken], np.int64)
    scale = upper / _STEPS
    bound = max(0.0, (solver.best_objective_bound - len(own) / 2) * scale)
    return ExactBalance(rank, busiest(own, rank, num_ranks), bound, status == cp_model.OPTIMAL)
