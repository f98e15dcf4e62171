"""Plan and evaluate recommendation models.

`plan_recommendation` searches every allowed number of replica groups and verifies the best plan.
`evaluate_recommendation` computes the step time of a stated decision without a search.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from scaleacross.api.arguments import search_arguments
from scaleacross.api.exchange_compression import ChosenCodecs, codecs_for, compression_of, in_use, notes_on
from scaleacross.api.library_pools import library_pools
from scaleacross.catalogue.recommendation import load_recommendation_job
from scaleacross.cost_models.embedding.decisions import assignment_of, decision_of, priced
from scaleacross.cost_models.embedding.early_rows import early_rows
from scaleacross.cost_models.embedding.exchange import Replicas
from scaleacross.cost_models.embedding.options import Assignment, ShardingProblem, busiest
from scaleacross.cost_models.embedding.problem import EmbeddingProblem, allocation_of, embedding_problem, group_ranks
from scaleacross.cost_models.levels import collective_libraries
from scaleacross.errors import InputError, TimeLimitError
from scaleacross.solvers.embeddings.baselines import torchrec_planner
from scaleacross.solvers.embeddings.infeasible import no_plan, require_options
from scaleacross.solvers.embeddings.search import Found, shard_embeddings
from scaleacross.solvers.place_parallelism import never
from scaleacross.solvers.until import Until
from scaleacross.spec.network_choice import Driver
from scaleacross.spec.placement import BuildingShare
from scaleacross.spec.progress import STOPPED_BY_HAND, Progress
from scaleacross.spec.recommendation import (
    FAILURES_NOT_COUNTED,
    RecommendationDecision,
    RecommendationJob,
    RecommendationPlan,
    SearchReport,
)
from scaleacross.spec.topology import Topology, with_buildings
from scaleacross.units import human_seconds
from scaleacross.verification.embeddings import verify_recommendation
from scaleacross.workloads.recommendation import Dlrm

OPTIMAL_GAP = 1e-4
"""Relative gap up to which a plan counts as optimal. The constraint program rounds costs to whole units of 1/200,000 of
the incumbent, so smaller gaps have no meaning.
"""


def plan_recommendation(
    job: RecommendationJob | str | Path,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    gap_tolerance: float = 0.0,
    overrides: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    incumbents: Sequence[Assignment] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    stopped: Callable[[], bool] = never,
    work_limit: int | None = None,
) -> RecommendationPlan:
    """Return the fastest plan found for a recommendation job, verified, with its lower bound.

    Args:
        job: a RecommendationJob or the path of one.
        time_limit_s: seconds of search over all numbers of replica groups together, measured by ``clock``.
        seed: seed of the search.
        gap_tolerance: relative gap at which the search stops.
        overrides: ``a.b=value`` on any field of the job.
        progress: called during the search.
        incumbents: plans of other rules for one group of all ranks; the returned plan is never slower than any of them.
            None: TorchRec's rule runs for a tenth of the time, and its plan starts the search.
        clock: clock that measures ``time_limit_s``.
        stopped: polled as often as the clock; once true, the search ends with the best plan so far and its gap.
        work_limit: work instead of seconds, so equal on every machine: rounds of the search, and hundredths of a second
            of the constraint programs by their own count of operations.

    Raises:
        InputError: the job is wrong.
        InfeasibleError: no plan fits; the message says what is short.
        TimeLimitError: the limit ended without a plan and without a proof that there is none.
        VerificationError: the plan does not recompute (a bug: please report it).
    """
    search_arguments(time_limit_s, gap_tolerance=gap_tolerance, seed=seed, work_limit=work_limit)
    own, model, topology = load_recommendation_job(job, overrides)
    until, tell = Until.within(time_limit_s, clock, stopped, work_limit), progress or (lambda _: None)
    limit_s, begin = until.left(), time.perf_counter() if work_limit else clock()
    pools = library_pools(own, topology, lambda job, part: _problems(job, model, part))
    each = [(library, *made) for library, several in pools.made.items() for made in several]
    jobs = [several[0][0].job for several in pools.made.values()]
    alone = [one for job in jobs for one in _fastest_alone(job, model, limit_s / 10 / len(jobs), until)]
    tried: list[tuple[EmbeddingProblem, Found]] = []
    least_s = dict.fromkeys(pools.made, math.inf)
    for number, (library, problem, _) in enumerate(each):
        # time that one number of groups leaves goes to the following ones
        left = max(0.0, until.left()) / (len(each) - number)
        found = shard_embeddings(
            problem.sharding,
            time_limit_s=left,
            seed=seed,
            gap_tolerance=max(gap_tolerance, OPTIMAL_GAP),
            incumbents=_starts(problem, model, incumbents, left / 10, until),
            report=_whole_steps(tell, problem),
            **until.limits,
        )
        tried.append((problem, found))
        least_s[library] = min(least_s[library], problem.step_s(found.objective_s))
    seconds = (time.perf_counter() if work_limit else clock()) - begin
    plan = _assembled(tried, [one for _, _, one in each], gap_tolerance, seconds, seed)
    (used,) = collective_libraries(Topology.model_validate(plan.job.topology).buildings)
    plan = _ended(plan, pools.notes(used, least_s), work_limit, stopped())
    fastest = min(alone, key=lambda one: one[0], default=None)
    if fastest is not None and fastest[0] < plan.cost.step_s:
        report = plan.report.model_copy(update={"fewer_buildings": _fewer(*fastest, plan.cost.step_s)})
        plan = plan.model_copy(update={"report": report})
    verify_recommendation(plan)
    return plan


def evaluate_recommendation(
    job: RecommendationJob | str | Path, decision: RecommendationDecision, *, overrides: Sequence[str] = ()
) -> RecommendationPlan:
    """Return the verified plan of a stated decision, with its estimated step time.

    Nothing is searched, so the bound is 0.

    Args:
        job: a RecommendationJob or the path of one.
        decision: placement of every table, replica groups, codecs and driver.
        overrides: ``a.b=value`` on any field of the job.

    Raises:
        InputError: the job is wrong, or the decision is not among what it allows.
        VerificationError: a memory overflows.
    """
    own, model, topology = load_recommendation_job(job, overrides)
    way = (decision.num_groups, decision.replicas, decision.codecs, decision.driver)
    problem = embedding_problem(own, model, topology, *way)
    assignment = assignment_of(problem, decision)
    cost, ranks = priced(problem, assignment)
    report = SearchReport(
        status="evaluated",
        objective_s=cost.busiest_rank_s,
        bound_s=0.0,
        gap=1.0,
        seconds=0.0,
        seed=0,
        notes=_notes(own, topology, problem),
    )
    whole = decision_of(problem, assignment, decision.codecs).model_copy(update={"driver": decision.driver})
    plan = RecommendationPlan(
        job=own,
        decision=whole,
        cost=cost,
        ranks=ranks,
        samples=problem.samples,
        early_rows=early_rows(problem, model, ranks, decision.driver),
        report=report,
    )
    verify_recommendation(plan)
    return plan


def _problems(job: RecommendationJob, model: Dlrm, topology: Topology) -> list[tuple[EmbeddingProblem, ChosenCodecs]]:
    """Return the problem of every allowed number of replica groups, with its codecs.

    Raises:
        InputError: the job does not fit the topology.
        InfeasibleError: some table has no option.
    """
    for driver in job.drivers:
        group_ranks(job, topology, *_ways(job)[0], driver)
    coded = [(way, codecs_for(job, model, topology, *way)) for way in _ways(job)]
    out = [(embedding_problem(job, model, topology, *way, one.codecs), one) for way, one in coded]
    for problem, _ in out:
        require_options(job, problem.sharding)
    return out


def _ended(plan: RecommendationPlan, idle: Sequence[str], work_limit: int | None, stopped: bool) -> RecommendationPlan:
    """Return the plan with notes on idle buildings, and on what ended its search where that was not the clock."""
    notes = [*idle, *([STOPPED_BY_HAND] if stopped else [])]
    if plan.report.status == "time_limit" and work_limit is not None and not stopped:
        notes.append(f"the work limit of {work_limit:,} ended the search")
    report = plan.report.model_copy(update={"notes": (*plan.report.notes, *notes)})
    return plan.model_copy(update={"report": report})


def _whole_steps(tell: Callable[[Progress], None], problem: EmbeddingProblem) -> Callable[[Progress], None]:
    """Return ``tell`` for a search that reports seconds of the busiest rank: with step times in their place."""

    def told(progress: Progress) -> None:
        found, bound = (
            None if one is None else problem.step_s(one) for one in (progress.incumbent_s, progress.bound_s)
        )
        tell(replace(progress, incumbent_s=found, bound_s=bound))

    return told


def _starts(
    problem: EmbeddingProblem,
    model: Dlrm,
    incumbents: Sequence[Assignment] | None,
    limit_s: float,
    until: Until,
) -> Sequence[Assignment]:
    if problem.num_groups > 1:
        return ()
    if incumbents is not None:
        return incumbents
    view = torchrec_view(problem, model, Topology.model_validate(problem.job.topology))
    outcome = torchrec_planner(problem.sharding, view, limit_s, until)
    return (outcome.assignment,) if outcome.assignment else ()


def _fastest_alone(
    job: RecommendationJob, model: Dlrm, limit_s: float, until: Until
) -> list[tuple[float, BuildingShare]]:
    """Return TorchRec's step time in every one of several buildings, in seconds, with that building's share.

    Empty where the job uses one building only, or where no single building holds the tables.
    """
    topology, found = Topology.model_validate(job.topology), list[tuple[float, BuildingShare]]()
    shares = allocation_of(job, topology)
    for share in shares if len(shares) > 1 else ():
        size, there = share.num_accelerators, with_buildings(topology, (share.building,))
        if job.global_batch_samples % size:
            continue
        own = job.model_copy(update={"num_accelerators": size, "topology": there.model_dump(mode="json")})
        problem = embedding_problem(own, model, there)
        starts = _starts(problem, model, None, limit_s / len(shares), until)
        # the estimated step of the whole building, from the time of its busiest rank
        found += [(problem.step_s(busiest(problem.sharding, start)), share) for start in starts]
    return found


def _fewer(alone_s: float, share: BuildingShare, step_s: float) -> str:
    return (
        f"the {share.num_accelerators:,} accelerators of {share.building} alone take {human_seconds(alone_s)} a step or less, "
        f"all of the plan {human_seconds(step_s)}: leave the other buildings out of the topology, or try replica_groups with a "
        "longer sync_interval_steps"
    )


def torchrec_view(problem: EmbeddingProblem, model: Dlrm, topology: Topology) -> ShardingProblem | None:
    """Return the problem with TorchRec's own options and costs; None where ranks are heterogeneous."""
    job = problem.job
    if problem.sharding.fleet.num_classes > 1:
        return None
    if job.cost_model == "torchrec":
        return problem.sharding
    seen = job.model_copy(update={"cost_model": "torchrec", "replica_groups": (1,), "compression": None})
    return embedding_problem(seen, model, topology).sharding


def _ways(job: RecommendationJob) -> list[tuple[int, Replicas]]:
    """Return every allowed number of replica groups, with each layout of the replicas where there are several groups."""
    lie: dict[int, tuple[Replicas, ...]] = {1: ("outer",)}
    return [(number, way) for number in sorted(set(job.replica_groups)) for way in lie.get(number, ("outer", "inner"))]


def _assembled(
    tried: Sequence[tuple[EmbeddingProblem, Found]],
    coded: Sequence[ChosenCodecs],
    tolerance: float,
    seconds: float,
    seed: int,
) -> RecommendationPlan:
    job = tried[0][0].job
    model = Dlrm.model_validate(job.workload)
    feasible = [(*pair, one) for pair, one in zip(tried, coded, strict=True) if pair[1].assignment is not None]
    if not feasible:
        if any(found.relaxation_fits for _, found in tried):
            raise TimeLimitError(
                f"No plan of '{job.name}' was found, nor a proof that there is none: memories are nearly full. Give more time, "
                "memory or accelerators, or allow more kernels."
            )
        # the same job with one sample per rank shows whether tables or activations are what does not fit
        first = tried[0][0]
        fewest = first.sharding.fleet.num_ranks * first.num_groups
        small = job.model_copy(update={"global_batch_samples": fewest})
        there = Topology.model_validate(job.topology)
        smallest = embedding_problem(small, model, there, first.num_groups, first.replicas)
        raise no_plan(job, first.sharding, smallest.sharding)
    problem, found, chosen = min(feasible, key=lambda way: way[0].step_s(way[1].objective_s))
    job, topology = problem.job, Topology.model_validate(problem.job.topology)
    decision = decision_of(problem, _required(found), chosen.codecs)
    decision = decision.model_copy(update={"codecs": in_use(decision, model)})
    way = job, model, topology, problem.num_groups, problem.replicas
    by_driver = {
        driver: problem
        if driver == "multiprocessors" and decision.codecs == chosen.codecs
        else embedding_problem(*way, decision.codecs, driver)
        for driver in _in_order(job.drivers)
    }
    costs = {driver: priced(one, _required(found)) for driver, one in by_driver.items()}
    driver = min(costs, key=lambda one: costs[one][0].step_s)
    decision, problem = decision.model_copy(update={"driver": driver}), by_driver[driver]
    cost, ranks = costs[driver]
    early = [early_rows(one, model, costs[name][1], name) for name, one in by_driver.items()]
    plain = embedding_problem(*way, (), driver) if decision.codecs else problem
    plain_s = priced(plain, _required(found))[0].step_s
    open_bounds = [p.step_s(f.bound_s) for p, f in tried if f.relaxation_fits]
    # in seconds of this plan's busiest rank, so that it is comparable with the objective
    slack = cost.step_s - min(cost.step_s, *open_bounds)
    bound_s = max(0.0, min(found.objective_s, found.objective_s - slack))
    if slack <= cost.step_s * 1e-12:
        bound_s = found.objective_s
    gap = (found.objective_s - bound_s) / found.objective_s if found.objective_s else 0.0
    status = "optimal" if gap <= OPTIMAL_GAP else "gap_tolerance" if gap <= tolerance else "time_limit"
    return RecommendationPlan(
        job=job,
        decision=decision,
        cost=cost,
        ranks=ranks,
        samples=problem.samples,
        early_rows=min((one for one in early if one), key=lambda one: one.exposed_s, default=None),
        compression=compression_of(problem, model, topology, decision, chosen.proved, plain_s),
        report=SearchReport(
            status=status,
            objective_s=found.objective_s,
            bound_s=bound_s,
            gap=gap,
            seconds=seconds,
            seed=seed,
            methods=tuple(dict.fromkeys(found.methods)),
            notes=(*_notes(job, topology, problem), *notes_on(job.compression, chosen)),
        ),
    )


def _in_order(drivers: Sequence[Driver]) -> list[Driver]:
    """Sort drivers with "multiprocessors" (kernels move the bytes) first; ``min`` then prefers it among equals."""
    return sorted(set(drivers), key=lambda one: (one != "multiprocessors", one))


def _required(found: Found) -> Assignment:
    if found.assignment is None:
        raise InputError("no assignment was found")
    return found.assignment


def _notes(job: RecommendationJob, topology: Topology, problem: EmbeddingProblem) -> tuple[str, ...]:
    notes, used = [], {k for options in problem.sharding.options for o in options for k in (o.kernel, o.sharding)}
    gone = [kernel for kernel in job.kernels if kernel not in used and kernel != "dense"]
    if gone:
        notes.append(f"not considered: {', '.join(gone)}; the topology states no such memory (buildings: host)")
    if "table_row_wise" in job.shardings and "table_row_wise" not in used:
        notes.append(
            "not considered: table_row_wise; hosts hold different numbers of ranks, or one each, or no table is pooled"
        )
    if topology.reliability is not None:
        notes.append(FAILURES_NOT_COUNTED)
    return tuple(notes)
