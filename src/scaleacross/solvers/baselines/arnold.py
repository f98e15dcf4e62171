"""Arnold (ByteDance, NeurIPS'25, arXiv 2509.15940): pipeline groups in as few minipods as the weights ask for.

A minipod is a zone here (the largest unit without oversubscription). The paper's integer program (``minipods``) gives
every pipeline group its minipods. Groups are then laid one after another. Weights by the paper: dense models α = 0, β =
1; mixture of experts α = 0.3, β = 0.7. Schedules and sharding are Megatron-LM's (1F1B, interleaved, ZeRO-1), which it
builds on.

A plan lists the first hosts of each building. So it keeps from the program's solution only how many hosts each building
gives. It cannot skip hosts that the solution leaves idle inside a zone.

The paper takes degrees as given. Here they are the fastest ones by the exact cost model among all that this rule places
(``family``). No fixed choice of degrees is faster.
"""

from __future__ import annotations

from typing import Final

from scaleacross.errors import InfeasibleError
from scaleacross.solvers.baselines.family import Family, tune
from scaleacross.solvers.baselines.minipods import HostMatrix, row_hosts
from scaleacross.solvers.baselines.outcome import Clock, Outcome
from scaleacross.solvers.baselines.rules import (
    as_megatron_runs_it,
    one_data_parallel_group,
)
from scaleacross.solvers.pools import AcceleratorPool, Allocation
from scaleacross.spec.parallelism import Degrees
from scaleacross.workloads.problem import Problem

DENSE_WEIGHTS: Final = (0.0, 1.0)
EXPERT_WEIGHTS: Final = (0.3, 0.7)


def decide(problem: Problem, clock: Clock) -> Outcome:
    """Return the fastest plan placed by the rule."""
    weights = EXPERT_WEIGHTS if problem.profile.num_experts else DENSE_WEIGHTS

    def allocations(pool: AcceleratorPool, degrees: Degrees) -> list[Allocation]:
        return minipod_allocation(pool, degrees, *weights)

    return tune(
        problem,
        Family(
            job=as_megatron_runs_it(problem.job),
            orders=(("tp", "cp", "pp", "dp_shard", "dp_replicate"),),
            allocations=allocations,
            allows_split=one_data_parallel_group,
            farthest={"tp": "scale_up"},
        ),
        clock,
    )


def minipod_allocation(pool: AcceleratorPool, degrees: Degrees, alpha: float, beta: float) -> list[Allocation]:
    """Return the hosts per building of the integer program as a single allocation.

    The list is empty when the job is no matrix of hosts, does not fit, or leaves an accelerator type unused.
    """
    host = pool.unit
    per_stage = degrees.world_size // degrees.pp
    if per_stage % host:
        if degrees.pp > 1:
            return []
        return pool.allocations(degrees.world_size, [degrees.world_size])
    zones = _zones(pool)
    try:
        taken = row_hosts(HostMatrix(per_stage // host, degrees.pp), [hosts for _, hosts in zones], alpha, beta)
    except InfeasibleError:
        return []
    shares = {building.name: 0 for building in pool.buildings}
    for (name, _), hosts in zip(zones, taken, strict=True):
        shares[name] += hosts * host
    allocation = tuple((name, share) for name, share in shares.items() if share)
    return [allocation] if pool.uses_all_types(allocation) else []


def _zones(pool: AcceleratorPool) -> list[tuple[str, int]]:
    """Return building and host units of every zone, building by building."""
    out = []
    for building in pool.buildings:
        left, zone = building.num_accelerators, building.accelerators_per("zone")
        while left > 0:
            out.append((building.name, min(left, zone) // pool.unit))
            left -= zone
    return out
