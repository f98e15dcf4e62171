"""Candidates that fit and their figures in seconds, for baselines that rank plans by a time model of their own.

Layer times, tensor-parallel collectives and message sizes come from our cost model (they would come from a profile).
Collectives run on the library's defaults, as for all baselines. How a step is put together is the baseline's own
formula, and so is the choice that follows. Only the fit in memory is ours, because our cost model could not time a
decision that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scaleacross.cost_models.axes import axis_terms
from scaleacross.cost_models.candidates import Bools, Candidates, Floats
from scaleacross.cost_models.groups import exact_shape, stacked_shapes
from scaleacross.cost_models.levels import build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.overlap import rounds
from scaleacross.solvers.baselines.family import partials_that_fit
from scaleacross.solvers.baselines.outcome import Clock, Outcome
from scaleacross.solvers.baselines.rules import allowed_schedules, one_data_parallel_group, whole_or_zero_1
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.pools import AcceleratorPool, pools, shares
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.job import DegreeRequest, Job
from scaleacross.spec.plan import Decision
from scaleacross.units import human_bytes
from scaleacross.workloads.problem import Problem


@dataclass(frozen=True)
class Rows:
    """Candidates that fit, each column (n,).

    Attributes:
        stage_s: forward and backward of one micro-batch on one stage, tensor-parallel collectives included.
        message_bytes: activations of one micro-batch between two stages, of one replica, all tp ranks together.
        gradient_bytes: gradients that one rank reduces over data parallel.
        update_s: the optimizer.
    """

    candidates: Candidates
    stage_s: Floats
    message_bytes: Floats
    gradient_bytes: Floats
    update_s: Floats


Found = tuple[tuple[float, ...], Decision]
"""Key and decision: seconds by a baseline's own model first, then what else ranks the decision."""


def least_on_any_pool(
    problem: Problem, clock: Clock, least: Callable[[AcceleratorPool, Rows, Clock], Found | None], otherwise: str
) -> Outcome:
    """Return the decision of a baseline: the least that ``least`` finds on any pool.

    ``otherwise`` is the reason where candidates fit but ``least`` finds none.
    """
    found, reason = [], ""
    for pool in pools(problem.topology):
        rows = fitting_rows(problem, pool)
        if isinstance(rows, str):
            reason = reason or rows
        elif (here := least(pool, rows, clock)) is not None:
            found.append(here)
    if not found:
        return Outcome(None, reason or otherwise, complete=not clock.over)
    return Outcome(min(found, key=lambda one: one[0])[1], complete=not clock.over)


def plain_job(job: Job) -> Job:
    """The job as planners without context and expert parallelism see it: 1F1B, data parallelism whole or ZeRO-1."""
    pinned = job.degrees.model_copy(update={"cp": 1, "ep": 1})
    return job.model_copy(
        update={
            "degrees": DegreeRequest.model_validate(pinned.model_dump()),
            "schedules": allowed_schedules(job, ("1F1B",)),
            "shard": whole_or_zero_1(job),
        }
    )


def fitting_rows(problem: Problem, pool: AcceleratorPool) -> Rows | str:
    """Return every candidate of ``plain_job`` that fits on a pool, or why there is none.

    tp lies inside a scale-up domain (H1 of Sailor), and dp is one group.
    """
    for axis in ("cp", "ep"):
        if not problem.job.degrees.allows(axis, 1):
            return f"the job asks for {axis} {getattr(problem.job.degrees, axis)}, which it does not know"
    bounder = Bounder.on(pool, plain_job(problem.job), problem.profile)
    candidates, least = _that_fit(bounder)
    if len(candidates):
        return _timed(bounder, candidates)
    short = (
        f"needs {human_bytes(least)} of {human_bytes(bounder.capacity_bytes)}" if np.isfinite(least) else "no degrees"
    )
    return f"does not fit in memory without context and expert parallelism: {short}"


def _that_fit(bounder: Bounder) -> tuple[Candidates, float]:
    """Return the candidates that fit, and the least bytes that any partial candidate needs."""
    pool, domain = bounder.pool, _domain(bounder.pool)

    def inside_a_domain(candidates: Candidates) -> Bools:
        return domain % candidates.tp == 0

    space = SearchSpace(bounder.job, bounder.profile, pool.num_accelerators, pool.unit)
    partials, least = partials_that_fit(space, bounder, inside_a_domain)
    candidates = space.expand(partials, Refusals())
    candidates = candidates.take(one_data_parallel_group(candidates))
    fits = bounder.needed_bytes(candidates) <= bounder.capacity_bytes if len(candidates) else np.zeros(0, dtype=bool)
    return candidates.take(fits), least


def _timed(bounder: Bounder, candidates: Candidates) -> Rows:
    """Return the figures of candidates; tp lies inside one scale-up domain."""
    pool = bounder.pool
    work = bounder.work(candidates)
    volumes = bounder.volumes(candidates, work)
    levels = build_levels(pool.topology, shares(((pool.buildings[0].name, _domain(pool)),)))
    shapes = {tp: exact_shape(tp, 1, levels) for tp in np.unique(candidates.tp).tolist()}
    shape = stacked_shapes([shapes[tp] for tp in candidates.tp.tolist()])
    tp_s = axis_terms("tp", volumes, shape, links_of(levels), network="library").serial_total_s
    return Rows(
        candidates,
        stage_s=work.forward_s + work.backward_s + tp_s / rounds(candidates, work),
        message_bytes=volumes.hidden_bytes,
        gradient_bytes=(work.dense_parameters + work.expert_parameters) * bounder.job.optimizer.reduce_bytes,
        update_s=work.optimizer_s,
    )


def _domain(pool: AcceleratorPool) -> int:
    return min(building.accelerators_per("scale_up") for building in pool.buildings)


@dataclass(frozen=True)
class Distance:
    """One-way latency (s) and capacity of all parallel links (bytes/s) between two sites."""

    latency_s: float
    bytes_per_s: float


def distance(pool: AcceleratorPool, here: str, there: str) -> Distance:
    """Return latency and capacity of the path between two buildings."""
    return Distance(pool.paths.latency_s(here, there), pool.paths.bytes_per_s(here, there))


def network_bytes_per_s(pool: AcceleratorPool) -> float:
    """Return the bytes/s that the network adapter of one accelerator sends, of the slowest building."""
    technologies = [building.links.building.technology for building in pool.buildings]
    return min(technology.bandwidth_bytes_per_s * technology.efficiency_fraction for technology in technologies)


def ring_sync_s(rows: Rows, latency_s: float, bytes_per_s: float) -> Floats:
    """Return the ring all-reduce of the gradients over data parallel, s, (n,): 2(D−1) steps of S/D bytes."""
    dp = rows.candidates.dp
    return 2 * (dp - 1) * (latency_s + rows.gradient_bytes / dp / bytes_per_s)


def without_hops_s(rows: Rows, latency_s: float, bytes_per_s: float) -> Floats:
    """Return T of 1F1B without the hops between stages, s, (n,): (S + M − 1) stages, update, ring all-reduce."""
    s = rows.candidates
    stages: Floats = (s.pp + s.num_micro_batches - 1) * rows.stage_s
    return stages + rows.update_s + ring_sync_s(rows, latency_s, bytes_per_s)
