"""Why there is no plan, and what would help.

The error names what is short, the requirements that exclude each other (``conflict``), and ways out. Each way out was
planned and passed ``verification`` before it is named.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from scaleacross.cost_models.failures import replicas_lost
from scaleacross.errors import InfeasibleError
from scaleacross.solvers.conflict import CHOICES, conflict_of, possible
from scaleacross.solvers.joint import search
from scaleacross.solvers.mixed_pools import bounder_on
from scaleacross.solvers.open_policies import narrowed
from scaleacross.solvers.pools import pools, shares
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.search_state import Search, decision_of
from scaleacross.spec.job import DegreeRequest, Job
from scaleacross.spec.plan import Decision
from scaleacross.spec.topology import MAX_ACCELERATORS, Topology
from scaleacross.units import human_bytes
from scaleacross.verification import illegal, recompute
from scaleacross.workloads.problem import Problem, problem_of

FREED_LIMIT_S: Final = 5.0
FREED_GAP: Final = 0.03
"""Limits of the search without failure domains, which tells how many replicas its plan would lose."""
CONFLICT_LIMIT_S: Final = 10.0
WAYS_LIMIT_S: Final = 20.0
ANY_PLAN: Final = 0.99
"""A gap that the first plan closes."""


@dataclass(frozen=True)
class Closest:
    """The candidate that exceeds its accelerator's memory by least, in bytes, of ``num_candidates`` compared."""

    decision: Decision
    needed_bytes: float
    capacity_bytes: float
    num_candidates: int

    def __str__(self) -> str:
        return f"{human_bytes(self.needed_bytes)} of {human_bytes(self.capacity_bytes)} per accelerator"


def explain(state: Search) -> InfeasibleError:
    """Return the error for a finished search without a plan."""
    problem = state.problem
    if any(
        narrowed(SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)).policies_open
        for pool in pools(problem.topology)
    ):
        return InfeasibleError(
            f"No plan fits: {state.num_candidates:,} candidates, {state.num_too_large:,} of them too large. They are too "
            "many to say which requirements conflict: state fewer values of recompute, activation_offload or optimizer_offload"
        )
    conflict = conflict_of(problem, CONFLICT_LIMIT_S)
    out = (f" Conflict: {conflict}." if conflict else "") + _said(problem, state.seed)
    closest = closest_candidate(problem)
    if closest is None:
        rules = ", ".join(f"{rule} ({count})" for rule, count in sorted(state.refusals.counts.items()))
        why = "no combination of degrees is legal"
        return InfeasibleError(f"No plan exists for '{problem.job.name}': {why}. Refused: {rules}.{out}")
    if closest.needed_bytes > closest.capacity_bytes:
        which = f"{closest.decision.degrees}, recompute {closest.decision.recompute}"
        short = human_bytes(closest.needed_bytes - closest.capacity_bytes)
        return InfeasibleError(
            f"No plan fits: {closest.num_candidates:,} candidates, the closest ({which}) needs {closest}, "
            f"{short} too much.{out}"
        )
    wanted = problem.job.failure_domains
    if wanted is not None:
        return InfeasibleError(
            f"No placement keeps failure_domains: at most {wanted.max_replicas_lost} replicas may lose a stage with one "
            f"{wanted.level}.{out}"
        )
    return InfeasibleError(
        f"No placement holds any of the {closest.num_candidates:,} candidates in whole hosts and in memory.{out}"
    )


def _kept_apart_less(problem: Problem, seed: int) -> tuple[str, Job] | None:
    """Return a label and the job with its failure domains as loose as the fastest unrestricted plan needs them.

    None where there are no failure domains, or no such plan is found in time.
    """
    job, wanted = problem.job, problem.job.failure_domains
    if wanted is None:
        return None
    free = replace(problem, job=job.model_copy(update={"failure_domains": None}))
    found = search(free, time_limit_s=FREED_LIMIT_S, seed=seed, gap_tolerance=FREED_GAP)
    if found.best is None:
        return None
    placed, degrees = found.best.placement, found.best.candidates.decision(0).degrees
    lost = replicas_lost(free.topology, shares(placed.fill), degrees, placed.axis_order, wanted.level)
    looser = wanted.model_copy(update={"max_replicas_lost": lost})
    label = (
        f"max_replicas_lost: {lost}, with which {degrees} is a plan ({lost} of its {degrees.dp} replicas lose a stage)"
    )
    return label, job.model_copy(update={"failure_domains": looser})


def closest_candidate(problem: Problem) -> Closest | None:
    """Return the candidate that comes closest to fitting on any pool, None when no candidate is legal."""
    best: Closest | None = None
    count = 0
    for pool in pools(problem.topology):
        bounder = bounder_on(pool, problem.job, problem.profile)
        space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
        for rows in space.batches(Refusals()):
            if not len(rows):
                continue
            count += len(rows)
            needed = bounder.needed_bytes(rows)
            least, capacity = int(needed.argmin()), bounder.capacity_bytes
            if best is None or needed[least] - capacity < best.needed_bytes - best.capacity_bytes:
                best = Closest(rows.decision(least), float(needed[least]), capacity, 0)
    return replace(best, num_candidates=count) if best else None


def _said(problem: Problem, seed: int) -> str:
    """Return the ways out as a sentence."""
    ways, untried = _ways_out(problem, seed)
    if ways:
        return f" Ways out: {'; '.join(ways)}."
    if untried:
        return f" Not tried for lack of time: {'; '.join(untried)}."
    return (
        " No single change of the job helps, nor do more hosts: use a smaller model or accelerators with more memory."
    )


def _ways_out(problem: Problem, seed: int) -> tuple[list[str], list[str]]:
    """Return the relaxations of the job that have a verified plan, and those that the time limit left untried."""
    began, ways, untried = time.perf_counter(), [], []
    for label, job in _relaxations(problem, seed):
        left_s = WAYS_LIMIT_S - (time.perf_counter() - began)
        if left_s <= 0:
            untried.append(label)
        elif _has_plan(problem_of(job), left_s):
            ways.append(label)
    return ways, untried


def _has_plan(problem: Problem, time_limit_s: float) -> bool:
    """Return whether the first plan that a search finds passes ``verification``."""
    found = search(problem, time_limit_s=time_limit_s, gap_tolerance=ANY_PLAN)
    if found.best is None:
        return False
    decision = decision_of(found.best)
    if any(illegal(problem, decision)):
        return False
    return all(stage.fits for stage in recompute(problem, decision).memory)


def _more_hosts(problem: Problem) -> Iterator[tuple[str, Job]]:
    """Yield the job on the least whole multiple of every building's hosts that equal stages fit on, if there is one."""
    if not possible(problem, frozenset({"accelerators"})):
        return
    topology = Topology.model_validate(problem.job.topology)

    def grown(factor: int) -> Job:
        regions = tuple(
            region.model_copy(
                update={
                    "buildings": tuple(
                        one.model_copy(update={"num_hosts": factor * one.hosts, "num_zones": None})
                        for one in region.buildings
                    )
                }
            )
            for region in topology.regions
        )
        return problem.job.model_copy(
            update={"topology": topology.model_copy(update={"regions": regions}).model_dump()}
        )

    def fits(factor: int) -> bool:
        return possible(problem_of(grown(factor)), frozenset())

    most = MAX_ACCELERATORS // topology.num_accelerators
    powers = (1 << power for power in range(1, most.bit_length()))
    enough = next((factor for factor in powers if fits(factor)), None)
    if enough is None:
        return
    # bisect: stages fit on ``enough`` times the hosts, not on ``too_few`` times
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        enough, too_few = (middle, too_few) if fits(middle) else (enough, middle)
    needed, short = (factor * topology.num_accelerators for factor in (enough, too_few))
    said = f"{needed:,} accelerators; equal stages do not fit on {short:,}"
    yield f"{enough} times the hosts in every building ({said})", grown(enough)


def _relaxations(problem: Problem, seed: int) -> Iterator[tuple[str, Job]]:
    """Yield label and job of every single change that may help."""
    job, fresh = problem.job, Job.model_fields
    if job.failure_domains is not None:
        looser = _kept_apart_less(problem, seed)
        yield from [looser] if looser else []
        yield "leave failure_domains out", job.model_copy(update={"failure_domains": None})
    if job.target not in ("any", "scaleacross"):
        yield "leave the target open (target: any)", job.model_copy(update={"target": "any"})
    for name in CHOICES:
        default = fresh[name].default
        if set(getattr(job, name)) != set(default):
            yield f"allow every {name} ({', '.join(map(str, default))})", job.model_copy(update={name: default})
    for axis in DegreeRequest.model_fields:
        if getattr(job.degrees, axis) is not None:
            freed = job.degrees.model_copy(update={axis: None})
            yield f"leave degrees.{axis} free", job.model_copy(update={"degrees": freed})
    if job.degrees != DegreeRequest():
        yield "leave all degrees free", job.model_copy(update={"degrees": DegreeRequest()})
    if any(job.spare_hosts.values()):
        yield "hold no spare hosts back", job.model_copy(update={"spare_hosts": {}})
    if job.num_accelerators is not None:
        yield "leave num_accelerators free", job.model_copy(update={"num_accelerators": None})
    yield from _more_hosts(problem)
    if job.space == "quick":
        yield "open the space (space: full)", job.model_copy(update={"space": "full"})
    if job.memory_headroom_fraction:
        yield "fill the memory (memory_headroom_fraction: 0)", job.model_copy(update={"memory_headroom_fraction": 0.0})
    for factor in (2, 4, 8):
        if job.global_batch_sequences % factor == 0:
            fewer = job.global_batch_sequences // factor
            changed = job.model_copy(update={"global_batch_sequences": fewer})
            yield f"global_batch_sequences {job.global_batch_sequences} → {fewer}", changed
    for factor in (2, 4, 8):
        if job.sequence_length % factor == 0:
            shorter = job.sequence_length // factor
            yield (
                f"sequence_length {job.sequence_length} → {shorter}",
                job.model_copy(update={"sequence_length": shorter}),
            )
            break
