"""How schedulers that know nothing of a job's groups hand out hosts: the rivals of Arnold's evaluation (arXiv 2509.15940).

Each gives hosts per minipod for a number of hosts; ranks are then laid over the host list in the framework's order
(``in_rank_order``). The paper names the four without stating them; these are the usual definitions:

* best_fit   the next host comes from the minipod with fewest free hosts, so small remainders are used up first
* random_fit from a random minipod with free hosts
* packing    from the minipod with most free hosts until it is full: as few minipods as possible
* topo_aware packing that breaks a data-parallel group (column) only when no minipod left holds a whole one
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Ints
from scaleacross.solvers.baselines.minipods import HostMatrix

HostList = list[int]
"""Minipod of every host, in the order in which ranks are laid over them."""


def best_fit(matrix: HostMatrix, capacities: Sequence[int], rng: random.Random) -> HostList:
    """Smallest minipods first."""
    order = sorted(range(len(capacities)), key=lambda j: capacities[j])
    return [j for j in order for _ in range(capacities[j])][: matrix.num_hosts]


def random_fit(matrix: HostMatrix, capacities: Sequence[int], rng: random.Random) -> HostList:
    """Hosts drawn one by one; a framework sees them sorted by minipod."""
    hosts = [j for j, capacity in enumerate(capacities) for _ in range(capacity)]
    return sorted(rng.sample(hosts, matrix.num_hosts))


def packing(matrix: HostMatrix, capacities: Sequence[int], rng: random.Random) -> HostList:
    """Largest minipods first."""
    order = sorted(range(len(capacities)), key=lambda j: -capacities[j])
    return [j for j in order for _ in range(capacities[j])][: matrix.num_hosts]


def topo_aware(matrix: HostMatrix, capacities: Sequence[int], rng: random.Random) -> HostList:
    """Whole columns while some minipod holds one, then what is left."""
    free, out = list(capacities), []
    for _ in range(matrix.columns):
        left = matrix.rows
        while left:
            holding = [j for j, hosts in enumerate(free) if hosts >= left]
            j = min(holding, key=lambda j: free[j]) if holding else max(range(len(free)), key=lambda j: free[j])
            taken = min(left, free[j])
            out += [j] * taken
            free[j] -= taken
            left -= taken
    return out


PACKERS: Final[Mapping[str, Callable[[HostMatrix, Sequence[int], random.Random], HostList]]] = {
    "best_fit": best_fit,
    "random_fit": random_fit,
    "packing": packing,
    "topo_aware": topo_aware,
}


def in_rank_order(matrix: HostMatrix, hosts: HostList) -> Ints:
    """(rows, columns) array of minipods under Megatron-LM's default order tp-dp-pp: data-parallel neighbours adjacent."""
    return np.array(hosts).reshape(matrix.columns, matrix.rows).T


def pipeline_first(matrix: HostMatrix, hosts: HostList) -> Ints:
    """The same hosts with pipeline neighbours adjacent."""
    return np.array(hosts).reshape(matrix.rows, matrix.columns)
