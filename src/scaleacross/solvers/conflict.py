"""Find which requirements of a job cannot hold together: an irreducible set, by a deletion filter.

A requirement is something that the user or the machine asks for: memory, the accelerators there are, whole hosts, the
batch, a pinned degree, a restricted choice, replicas kept apart (``failure_domains``). The filter starts from all of
them and drops one after another for good if the rest is still impossible (Chinneck and Dravnieks 1991, doi
10.1287/ijoc.3.2.157). What stays is impossible together, and possible as soon as any one of it is given up (while
everything outside of the set is given up).

"Impossible" means here: no candidate of ``search_space`` satisfies the rules, fits in memory and has a placement that
keeps its replicas apart. Relaxed, memory is unlimited, accelerators are MANY, in as many buildings as there are
replicas, hosts are single accelerators, and the batch is BATCH_FACTOR times as long (so every divisor stays one).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleacross.cost_models.levels import collective_libraries
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.failure_domains import any_keeps_apart, lost_at_least
from scaleacross.solvers.mixed_pools import bounder_on
from scaleacross.solvers.pools import most_accelerators, pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.job import DegreeRequest, FailureDomains, Job
from scaleacross.units import human_bytes
from scaleacross.workloads.problem import Problem

MANY: Final = 1 << 20
BATCH_FACTOR: Final = 12
EXPANDED: Final = 4096
"""Partial candidates that are expanded at once to find one candidate that fits."""
CHOICES: Final = (
    "recompute",
    "micro_batch_sequences",
    "shard",
    "schedules",
    "num_chunks",
    "context_exchange",
    "expert_folding",
)


@dataclass(frozen=True)
class Conflict:
    """Requirements that exclude each other, in words; ``irreducible`` is False when the time limit ended the filter."""

    requirements: tuple[str, ...]
    irreducible: bool

    def __str__(self) -> str:
        together = " and ".join(self.requirements)
        if len(self.requirements) == 1:
            return f"{together} is impossible by itself"
        without = "" if self.irreducible else " (not reduced to the end: time limit)"
        return f"{together} exclude each other{without}"


def conflict_of(problem: Problem, time_limit_s: float) -> Conflict | None:
    """Return the conflict of a job without any candidate that fits; None when there is one."""
    deadline = time.perf_counter() + time_limit_s
    named = _requirements(problem)
    kept = list(named)
    if possible(problem, frozenset()):
        return None
    for name in named:
        if time.perf_counter() > deadline:
            return Conflict(tuple(named[each] for each in kept), irreducible=False)
        dropped = frozenset(named) - frozenset(kept) | {name}
        if not possible(problem, dropped):
            kept.remove(name)
    return Conflict(tuple(named[each] for each in kept), irreducible=True)


def possible(problem: Problem, dropped: frozenset[str]) -> bool:
    """Return whether some candidate on any pool satisfies the requirements that are not dropped."""
    job = _relaxed(problem.job, dropped)
    wanted = None if "failure_domains" in dropped else job.failure_domains
    if wanted is not None and wanted.max_replicas_lost == 0:
        return False  # every unit in use holds a part of some replica
    for pool in pools(problem.topology):
        many = "accelerators" in dropped
        space = SearchSpace(
            job,
            problem.profile,
            MANY if many else pool.num_accelerators,
            1 if "hosts" in dropped else pool.unit,
        )
        bounder = bounder_on(pool, job, problem.profile)
        apart = None if many else wanted
        if _any_fits(space, bounder, np.inf if "memory" in dropped else bounder.capacity_bytes, apart):
            return True
    return False


def _any_fits(space: SearchSpace, bounder: Bounder, capacity_bytes: float, apart: FailureDomains | None) -> bool:
    """Return whether a candidate needs at most the capacity and can keep its replicas apart.

    Partial candidates are expanded in ascending order of their memory, only until one is found.
    """
    for partials in space.partials(Refusals()):
        fitting = partials
        if apart is not None:
            fitting = partials.take(lost_at_least(bounder.pool, partials, apart) <= apart.max_replicas_lost)
        if np.isfinite(capacity_bytes):
            needed = bounder.partial_needed_bytes(fitting)
            fitting = fitting.take(np.argsort(needed, kind="stable")[: int((needed <= capacity_bytes).sum())])
        for start in range(0, len(fitting), EXPANDED):
            block = fitting.take(np.arange(start, min(start + EXPANDED, len(fitting))))
            rows = space.expand(block, Refusals())
            rows = rows.take(bounder.needed_bytes(rows) <= capacity_bytes) if len(rows) else rows
            if len(rows) and (apart is None or any_keeps_apart(bounder.pool, rows, apart)):
                return True
    return False


def _requirements(problem: Problem) -> dict[str, str]:
    """Return the requirements in the order in which the filter drops them: what nobody can change comes last."""
    job, defaults = problem.job, Job.model_fields
    out = {}
    for name in CHOICES:
        chosen = getattr(job, name)
        if set(chosen) != set(defaults[name].default):
            out[name] = f"{name} {', '.join(map(str, chosen))}"
    if job.target not in ("any", "scaleacross"):
        out["target"] = f"target {job.target}"
    for axis in DegreeRequest.model_fields:
        wanted = getattr(job.degrees, axis)
        if wanted is not None:
            out[f"degrees.{axis}"] = f"degrees.{axis} {wanted}"
    asked = job.num_accelerators
    if asked is not None:
        owned = most_accelerators(problem.topology)
        beyond = f" (there are {owned:,})" if job.least_accelerators > owned else ""
        out["num_accelerators"] = f"num_accelerators {f'{asked:,}' if isinstance(asked, int) else asked}{beyond}"
    if job.failure_domains is not None:
        wanted = job.failure_domains
        out["failure_domains"] = (
            f"failure_domains (at most {wanted.max_replicas_lost} replicas lost with one {wanted.level})"
        )
    hosts = sorted({building.accelerators_per_host for building in problem.topology.buildings})
    memory = max(b.accelerator.room_bytes(job.memory_headroom_fraction) for b in problem.topology.buildings)
    out["hosts"] = f"whole hosts of {', '.join(map(str, hosts))} accelerators"
    out["batch"] = f"a batch of {job.global_batch_sequences} sequences"
    one_of = " with one collective library" if len(collective_libraries(problem.topology.buildings)) > 1 else ""
    out["accelerators"] = f"{most_accelerators(problem.topology):,} accelerators{one_of}"
    free = f", {job.memory_headroom_fraction:.0%} kept free" if job.memory_headroom_fraction else ""
    out["memory"] = f"{human_bytes(memory)} of memory per accelerator{free}"
    return out


def _relaxed(job: Job, dropped: frozenset[str]) -> Job:
    """Return the job without the dropped requirements of the user."""
    changes: dict[str, object] = {name: Job.model_fields[name].default for name in CHOICES if name in dropped}
    free = {axis: None for axis in DegreeRequest.model_fields if f"degrees.{axis}" in dropped}
    changes["degrees"] = job.degrees.model_copy(update=free)
    if "num_accelerators" in dropped:
        changes["num_accelerators"] = None
    if "failure_domains" in dropped:
        changes["failure_domains"] = None
    if "target" in dropped:
        changes["target"] = "any"
    if "batch" in dropped:
        changes["global_batch_sequences"] = job.global_batch_sequences * BATCH_FACTOR
    return job.model_copy(update=changes)
