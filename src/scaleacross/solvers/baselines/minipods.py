"""Arnold's assignment of hosts to minipods (arXiv 2509.15940): over how many minipods each group is spread.

The job is a matrix of hosts, rows × columns: a row is a pipeline group (one host per stage), a column a data-parallel
group. Minipod j has c_j free hosts. D(group) is the number of minipods over which a group is spread.

Sets        rows i, minipods j
Variables   n[i,j] ∈ {0…columns} hosts of row i in minipod j; s[i,j], y[j] ∈ {0,1}; T integer
Objective   min α · Σ_j y[j] + β · T
C1 whole    Σ_j n[i,j] = columns
C2 touched  n[i,j] ≤ columns · s[i,j]
C3 spread   Σ_j s[i,j] ≤ T
C4 room     Σ_i n[i,j] ≤ c_j · y[j]

This is the paper's solved form with hosts counted (its p[i,j] = n[i,j] / columns may be any fraction). α weighs the
data-parallel groups, β the pipeline groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaleacross.errors import InfeasibleError


@dataclass(frozen=True)
class HostMatrix:
    """A job's hosts: ``rows`` pipeline groups of ``columns`` stages."""

    rows: int
    columns: int

    @property
    def num_hosts(self) -> int:
        """Number of hosts in all."""
        return self.rows * self.columns


def row_hosts(matrix: HostMatrix, capacities: Sequence[int], alpha: float, beta: float) -> tuple[int, ...]:
    """Return hosts per minipod in an optimum of the model above, among minipods that hold a whole row each.

    No solver is needed. Rows are alike, so only two values of T matter. T = 1: minipod j takes ⌊c_j / columns⌋ rows,
    and the minipods with most free hosts are used. T = 2: these are filled one after another, and a row may straddle
    two neighbours. Minipods that hold no whole row are left alone.

    Raises:
        InfeasibleError: the minipods do not hold the job.
    """
    room = sorted(
        ((c, j) for j, c in enumerate(capacities) if c >= matrix.columns), key=lambda pair: (-pair[0], pair[1])
    )
    straddling = _allocation([(c, j) for c, j in room], matrix.num_hosts, len(capacities))
    whole = _allocation([(c // matrix.columns * matrix.columns, j) for c, j in room], matrix.num_hosts, len(capacities))
    if straddling is None:
        raise InfeasibleError(
            f"{matrix.num_hosts} hosts in rows of {matrix.columns} do not fit into minipods with {list(capacities)} free hosts"
        )
    if whole is None:
        return straddling
    cost_whole = alpha * np.count_nonzero(whole) + beta
    cost_straddling = alpha * np.count_nonzero(straddling) + 2 * beta
    return whole if cost_whole <= cost_straddling else straddling


def _allocation(room: Sequence[tuple[int, int]], num_hosts: int, num_minipods: int) -> tuple[int, ...] | None:
    out, left = [0] * num_minipods, num_hosts
    for hosts, minipod in room:
        out[minipod] = min(left, hosts)
        left -= out[minipod]
    return None if left else tuple(out)
