"""Choose the codec of every table's vectors: least time within a mean error (a multiple-choice knapsack)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ortools.sat.python import cp_model

from scaleacross.solvers.backends.cpsat import Solver

_STEPS: Final = 1_000_000_000
"""Integer units of the whole time without codecs, and of a bound equal to the whole range."""
_DETERMINISTIC_LIMIT: Final = 4.0


@dataclass(frozen=True)
class Way:
    """Seconds of a codec, and its error bound over the range; 0 for vectors that are not encoded."""

    seconds: float
    bound_fraction: float


@dataclass(frozen=True)
class Chosen:
    """Index of the chosen way of every table, and whether no other choice is faster."""

    ways: tuple[int, ...]
    proved: bool


def choose_codecs(ways: Sequence[Sequence[Way]], weights: Sequence[float], max_mean_bound: float) -> Chosen:
    """Return the fastest ways whose weighted mean bound is at most ``max_mean_bound``.

    Args:
        ways: of every table; the first of each costs no accuracy.
        weights: elements that every table exchanges.

    Returns:
        The same for the same input: one worker, limited by deterministic work.
    """
    total_s, total = sum(own[0].seconds for own in ways), sum(weights)
    if not total_s or not total:
        return Chosen((0,) * len(ways), True)
    model = cp_model.CpModel()
    taken = [[model.new_bool_var("") for _ in own] for own in ways]
    cost, error = [], []
    for own, variables, weight in zip(ways, taken, weights, strict=True):
        model.add_exactly_one(variables)
        for way, variable in zip(own, variables, strict=True):
            cost.append(variable * round(way.seconds / total_s * _STEPS))
            # rounded up, so that the mean never exceeds the budget
            error.append(variable * math.ceil(way.bound_fraction * weight / total * _STEPS))
        model.add_hint(variables[0], True)
    model.add(sum(error) <= int(max_mean_bound * _STEPS))
    model.minimize(sum(cost))
    solver = Solver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = _DETERMINISTIC_LIMIT
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Chosen((0,) * len(ways), False)
    found = tuple(next(i for i, one in enumerate(own) if solver.boolean_value(one)) for own in taken)
    return Chosen(found, status == cp_model.OPTIMAL)
