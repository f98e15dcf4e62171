"""Arnold's assignment of hosts to minipods (arXiv 2509.15940) as its integer program, and weighted spread, its objective.

The model is stated in ``scaleacross.solvers.baselines.minipods``, which solves it in closed form. What it stands for is
*weighted spread* α · max D(column) + β · max D(row), D(group) being the number of minipods over which a group is spread.
``least_spread`` also tries what the model cannot say: bands of columns, each band on minipods of its own, so that a row is
spread over as many minipods as there are bands and a column over few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from ortools.sat.python import cp_model

from scaleacross.cost_models.candidates import Ints
from scaleacross.errors import InfeasibleError
from scaleacross.solvers.baselines.minipods import HostMatrix, row_hosts

WEIGHT_SCALE: Final = 1000
"""Weights are rounded to a thousandth for the integer solver."""


def weighted_spread(assignment: Ints, alpha: float, beta: float) -> float:
    """α · max D(column) + β · max D(row) of a (rows, columns) array of minipods."""
    rows = max(len(np.unique(row)) for row in assignment)
    columns = max(len(np.unique(column)) for column in assignment.T)
    return alpha * columns + beta * rows


def solve_milp(
    matrix: HostMatrix, capacities: Sequence[int], alpha: float, beta: float, time_limit_s: float = 10.0
) -> Ints:
    """The model by CP-SAT: a (rows, columns) array of minipods.

    Raises:
        InfeasibleError: the minipods do not hold the job, or the time limit ended without a solution.
    """
    model = cp_model.CpModel()
    rows, minipods = range(matrix.rows), range(len(capacities))
    n = {(i, j): model.new_int_var(0, matrix.columns, f"n[{i},{j}]") for i in rows for j in minipods}
    s = {(i, j): model.new_bool_var(f"s[{i},{j}]") for i in rows for j in minipods}
    y = [model.new_bool_var(f"y[{j}]") for j in minipods]
    spread = model.new_int_var(1, len(capacities), "T")
    for i in rows:
        model.add(sum(n[i, j] for j in minipods) == matrix.columns)  # C1
        model.add(sum(s[i, j] for j in minipods) <= spread)  # C3
        for j in minipods:
            model.add(n[i, j] <= matrix.columns * s[i, j])  # C2
    for j, capacity in enumerate(capacities):
        model.add(sum(n[i, j] for i in rows) <= capacity * y[j])  # C4
    a, b = round(alpha * WEIGHT_SCALE), round(beta * WEIGHT_SCALE)
    model.minimize(a * sum(y) + b * spread)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time, solver.parameters.num_workers = time_limit_s, 1
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise InfeasibleError(
            f"{matrix.num_hosts} hosts do not fit into minipods with {list(capacities)} free hosts ({solver.status_name()})"
        )
    return np.array([np.repeat(list(minipods), [solver.value(n[i, j]) for j in minipods]) for i in rows])


def least_spread(matrix: HostMatrix, capacities: Sequence[int], alpha: float, beta: float) -> Ints:
    """A (rows, columns) array of minipods with small weighted spread: the solved form's optimum, or bands if they do better.

    Raises:
        InfeasibleError: the minipods do not hold the job in whole rows (at most one straddling two minipods at a time).
    """
    best = laid_out(matrix, row_hosts(matrix, capacities, alpha, beta))
    best_spread = weighted_spread(best, alpha, beta)
    for widths in _partitions(matrix.columns, len(capacities)):
        if beta * len(widths) + alpha < best_spread:
            found = _bands(matrix, widths, capacities)
            if found is not None and weighted_spread(found, alpha, beta) < best_spread:
                best, best_spread = found, weighted_spread(found, alpha, beta)
    return best


def laid_out(matrix: HostMatrix, hosts: Sequence[int]) -> Ints:
    """Rows one after another over ``hosts`` per minipod."""
    return np.repeat(np.arange(len(hosts)), hosts).reshape(matrix.rows, matrix.columns)


def _partitions(total: int, most: int, largest: int | None = None) -> Iterator[tuple[int, ...]]:
    """Ways to write ``total`` as at most ``most`` parts, largest part first; the whole is left out."""
    limit = total - 1 if largest is None else min(total, largest)
    for part in range(limit, 0, -1):
        if part == total:
            yield (part,)
        elif most > 1:
            yield from ((part, *rest) for rest in _partitions(total - part, most - 1, part))


def _bands(matrix: HostMatrix, widths: Sequence[int], capacities: Sequence[int]) -> Ints | None:
    """Minipods for bands of columns, so that the most minipods of any band are few; None when they do not hold them.

    Each minipod serves one band b and holds ⌊c_j / width_b⌋ of its rows.
    """
    model = cp_model.CpModel()
    bands, minipods = range(len(widths)), range(len(capacities))
    z = {(j, b): model.new_bool_var(f"z[{j},{b}]") for j in minipods for b in bands}
    most = model.new_int_var(1, len(capacities), "K")
    for j in minipods:
        model.add(sum(z[j, b] for b in bands) <= 1)
    for b, width in enumerate(widths):
        model.add(sum(capacity // width * z[j, b] for j, capacity in enumerate(capacities)) >= matrix.rows)
        model.add(sum(z[j, b] for j in minipods) <= most)
    model.minimize(most)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = 1.0
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    columns = []
    for b, width in enumerate(widths):
        held = [capacities[j] // width if solver.value(z[j, b]) else 0 for j in minipods]
        rows = np.repeat(np.arange(len(capacities)), held)[: matrix.rows]
        columns += [rows] * width
    return np.stack(columns, axis=1)
