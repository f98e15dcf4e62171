"""Megatron-LM as it starts by default: rank order tp-cp-ep-dp-pp over the hosts in the order of their names.

The order is the default of ``--order`` in Megatron-LM (``parallel_state.initialize_model_parallel``). Data parallelism
is one group (the distributed optimizer over all of it, or no sharding). Schedules are 1F1B and interleaved 1F1B.
Nothing knows about buildings: the host list is sorted by name and used from the front, and any group on a border
crosses it.

Degrees, micro-batch, chunks and recompute are the fastest of the family by the exact cost model (``family``). A team
tunes them by trial in that order.
"""

from __future__ import annotations

from scaleacross.solvers.baselines.family import Family, tune
from scaleacross.solvers.baselines.outcome import Clock, Outcome
from scaleacross.solvers.baselines.rules import (
    MEGATRON_ORDER,
    as_megatron_runs_it,
    one_data_parallel_group,
)
from scaleacross.solvers.pools import AcceleratorPool, Allocation, allocation_of
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.placement import first_accelerators
from scaleacross.workloads.problem import Problem


def decide(problem: Problem, clock: Clock) -> Outcome:
    """Return the fastest plan of this kind."""
    return tune(
        problem,
        Family(
            job=as_megatron_runs_it(problem.job),
            orders=(MEGATRON_ORDER,),
            allocations=by_name,
            allows_split=one_data_parallel_group,
            farthest={"tp": "scale_up"},
        ),
        clock,
    )


def by_name(pool: AcceleratorPool, degrees: Degrees) -> list[Allocation]:
    """Return the allocation of the first hosts by name; none where it leaves an accelerator type unused."""
    hosts = sorted(pool.buildings, key=lambda building: building.name)
    allocation = allocation_of(first_accelerators(hosts, degrees.world_size))
    return [allocation] if pool.uses_all_types(allocation) else []
