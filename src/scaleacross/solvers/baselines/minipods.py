"""Arnold's assignment of hosts to minipods (arXiv 2509.15940): how far the groups of a job are spread.

The job is a matrix of hosts, rows × columns: a row is a pipeline group (one host per stage), a column a data-parallel group.
Minipod j has c_j free hosts; D(group) is the number of minipods over which a group is spread.

Sets        rows i, minipods j
Variables   n[i,j] ∈ {0…columns} hosts of row i in minipod j; s[i,j], y[j] ∈ {0,1}; T integer
Objective   min α · Σ_j y[j] + β · T
C1 whole    Σ_j n[i,j] = columns
C2 touched  n[i,j] ≤ columns · s[i,j]
C3 spread   Σ_j s[i,j] ≤ T
C4 room     Σ_i n[i,j] ≤ c_j · y[j]

This is the paper's solved form with hosts counted (its p[i,j] = n[i,j] / columns may be any fraction). α weighs the
data-parallel groups, β the pipeline groups. The objective that it stands for is *weighted spread*
α · max D(column) + β · max D(row), of which ``least_spread`` also tries what the solved form cannot say: bands of columns,
each band on minipods of its own, so that a row is spread over as many minipods as there are bands and a column over few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from ortools.sat.python import cp_model

from scaleacross.cost_models.candidates import Ints
from scaleacross.errors import InfeasibleError

WEIGHT_SCALE: Final = 1000
"""Weights are rounded to a thousandth for the integer solver."""


@dataclass(frozen=True)
class HostMatrix:
    """A job's hosts: ``rows`` pipeline groups of ``columns`` stages."""

    rows: int
    columns: int

    @property
    def num_hosts(self) -> int:
        """Hosts in all."""
        return self.rows * self.columns


def weighted_spread(assignment: Ints, alpha: float, beta: float) -> float:
    """α · max D(column) + β · max D(row) of a (rows, columns) array of minipods."""
    rows = max(len(np.unique(row)) for row in assignment)
    columns = max(len(np.unique(column)) for column in assignment.T)
    return alpha * columns + beta * rows


def row_hosts(matrix: HostMatrix, capacities: Sequence[int], alpha: float, beta: float) -> tuple[int, ...]:
    """Hosts per minipod in an optimum of the model above, without a solver; for minipods that hold a whole row each.

    Rows are alike, so only two values of T matter. T = 1: minipod j takes ⌊c_j / columns⌋ rows, and the roomiest minipods
    are used. T = 2: the roomiest minipods are filled one after another and a row may straddle two neighbours. Minipods that
    hold no whole row are left alone.

    Raises:
        InfeasibleError: the minipods do not hold the job.
    """
    room = sorted(
        ((c, j) for j, c in enumerate(capacities) if c >= matrix.columns), key=lambda pair: (-pair[0], pair[1])
    )
    straddling = _fill([(c, j) for c, j in room], matrix.num_hosts, len(capacities))
    whole = _fill([(c // matrix.columns * matrix.columns, j) for c, j in room], matrix.num_hosts, len(capacities))
    if straddling is None:
        raise InfeasibleError(
            f"{matrix.num_hosts} hosts in rows of {matrix.columns} do not fit into minipods with {list(capacities)} free hosts"
        )
    if whole is None:
        return straddling
    cost_whole = alpha * np.count_nonzero(whole) + beta
    cost_straddling = alpha * np.count_nonzero(straddling) + 2 * beta
    return whole if cost_whole <= cost_straddling else straddling


def _fill(room: Sequence[tuple[int, int]], num_hosts: int, num_minipods: int) -> tuple[int, ...] | None:
    out, left = [0] * num_minipods, num_hosts
    for hosts, minipod in room:
        out[minipod] = min(left, hosts)
        left -= out[minipod]
    return None if left else tuple(out)


def solve_milp(
    matrix: HostMatrix, capacities: Sequence[int], alpha: float, beta: float, time_limit_s: float = 10.0
) -> Ints:
    """The model above by CP-SAT: a (rows, columns) array of minipods.

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
