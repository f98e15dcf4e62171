"""Why there is no plan, and what would help: every way out is tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator

from scaleacross.errors import InfeasibleError
from scaleacross.solvers.candidates import Pricing
from scaleacross.solvers.fleets import fleets
from scaleacross.solvers.joint import Search
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.job import DegreeRequest, Job
from scaleacross.units import human_bytes
from scaleacross.workloads.problem import Problem


def explain(state: Search) -> InfeasibleError:
    """The error for a finished search without a plan."""
    problem = state.problem
    ways = list(_ways_out(problem))
    out = (
        f" Ways out: {'; '.join(ways)}."
        if ways
        else " No single change of the job helps: use more accelerators or a smaller model."
    )
    if state.smallest_need is None:
        rules = ", ".join(f"{rule} ({count})" for rule, count in state.refusals.counts.most_common(4))
        return InfeasibleError(
            f"No plan exists for '{problem.job.name}': no combination of degrees is legal. Refused: {rules}.{out}"
        )
    need, capacity, settings = state.smallest_need
    if state.num_too_large == state.num_candidates:
        decision = settings.decision(0)
        return InfeasibleError(
            f"No plan fits: {state.num_candidates:,} candidates, the closest ({decision.degrees}, "
            f"recompute {decision.recompute}) needs {human_bytes(need)} of {human_bytes(capacity)} per accelerator, "
            f"{human_bytes(need - capacity)} too much.{out}"
        )
    return InfeasibleError(f"No placement holds any of the {state.num_candidates:,} candidates in whole hosts.{out}")


def _ways_out(problem: Problem) -> Iterator[str]:
    """Relaxed jobs that have a candidate which fits."""
    job = problem.job
    for label, relaxed in _relaxations(job):
        if _fits(Problem(relaxed, problem.workload, problem.topology, problem.profile)):
            yield label


def _relaxations(job: Job) -> Iterator[tuple[str, Job]]:
    fresh = Job.model_fields
    for name in ("recompute", "micro_batch_sequences", "shard", "schedules", "num_chunks"):
        default = fresh[name].default
        if set(getattr(job, name)) != set(default):
            yield f"allow every {name} ({', '.join(map(str, default))})", job.model_copy(update={name: default})
    for axis in DegreeRequest.model_fields:
        if getattr(job.degrees, axis) is not None:
            freed = job.degrees.model_copy(update={axis: None})
            yield f"leave degrees.{axis} free", job.model_copy(update={"degrees": freed})
    if job.degrees != DegreeRequest():
        yield "leave all degrees free", job.model_copy(update={"degrees": DegreeRequest()})
    if job.num_accelerators is not None:
        yield "leave num_accelerators free", job.model_copy(update={"num_accelerators": None})
    for factor in (2, 4, 8):
        if job.sequence_length % factor == 0:
            shorter = job.sequence_length // factor
            yield (
                f"sequence_length {job.sequence_length} → {shorter}",
                job.model_copy(update={"sequence_length": shorter}),
            )
            break


def _fits(problem: Problem) -> bool:
    for fleet in fleets(problem.topology):
        pricing = Pricing.on(fleet, problem.job, problem.profile)
        space = SearchSpace(problem.job, problem.profile, fleet.num_accelerators, fleet.unit)
        if any((pricing.needed_bytes(rows) <= pricing.capacity_bytes).any() for rows in space.batches(Refusals())):
            return True
    return False
