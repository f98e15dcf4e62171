"""Compare, explain and simulate plans of recommendation models."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scaleacross.api.arguments import search_arguments
from scaleacross.api.exchange_compression import codecs_for
from scaleacross.api.recommendation import plan_recommendation, torchrec_view
from scaleacross.api.table_buildings import building_values
from scaleacross.catalogue.recommendation import load_recommendation_job, load_recommendation_plan
from scaleacross.cost_models.embedding.decisions import assignment_of, priced
from scaleacross.cost_models.embedding.options import Assignment, ShardingProblem, busiest
from scaleacross.cost_models.embedding.problem import EmbeddingProblem, allocation_of, embedding_problem
from scaleacross.cost_models.levels import collective_libraries
from scaleacross.simulation.table_step import simulated_tables
from scaleacross.simulation.what_if import disturbance_of
from scaleacross.solvers.embeddings.baselines import RULES, Outcome, translated
from scaleacross.solvers.embeddings.infeasible import require_options
from scaleacross.solvers.embeddings.reasons import busy_tables, memory_values
from scaleacross.spec.progress import Progress, telling
from scaleacross.spec.recommendation import (
    OF_IDLE,
    EmbeddingBaselineResult,
    EmbeddingComparison,
    EmbeddingExplanation,
    RecommendationJob,
    RecommendationPlan,
)
from scaleacross.spec.simulation import SimulatedTables
from scaleacross.spec.topology import Topology
from scaleacross.verification.embeddings import verify_recommendation
from scaleacross.workloads.recommendation import Dlrm


def compare_recommendation(
    job: RecommendationJob | str | Path,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    gap_tolerance: float = 0.0,
    overrides: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
) -> EmbeddingComparison:
    """Return our plan and seven baselines under the job's cost model, and the score of each by TorchRec's estimator.

    Args:
        job: a RecommendationJob or the path of one.
        time_limit_s: seconds for our search, and for each baseline. Our search starts from their plans, so it is never
            slower than any of them.
        seed: seed of the search.
        gap_tolerance: relative gap at which our search stops.
        overrides: ``a.b=value`` on any field of the job.
        progress: called during the search.

    Returns:
        An EmbeddingComparison: step times in seconds, TorchRec's scores in ms, baselines sorted by step time.

    Raises:
        InputError, InfeasibleError, TimeLimitError, VerificationError: as ``plan_recommendation``.
    """
    search_arguments(time_limit_s, gap_tolerance=gap_tolerance, seed=seed)
    own, model, topology = load_recommendation_job(job, overrides)
    idle: tuple[str, ...] = ()
    if len(collective_libraries(topology.buildings)) > 1:
        # rules and search are compared on the buildings of one library, which a search of its own chooses
        chosen = plan_recommendation(own, time_limit_s=time_limit_s, seed=seed, gap_tolerance=gap_tolerance)
        own, topology = chosen.job, Topology.model_validate(chosen.job.topology)
        idle = tuple(note for note in chosen.report.notes if note.startswith(OF_IDLE))
    problem = embedding_problem(own, model, topology, codecs=codecs_for(own, model, topology, 1, "outer").codecs)
    require_options(own, problem.sharding)
    view = torchrec_view(problem, model, topology)
    outcomes: dict[str, tuple[Outcome, float]] = {}
    tell = telling(progress)
    for number, (name, rule) in enumerate(RULES.items()):
        tell("baselines", number, len(RULES))
        start = time.perf_counter()
        outcomes[name] = rule.decide(problem.sharding, view, time_limit_s), time.perf_counter() - start
    starts = [outcome.assignment for outcome, _ in outcomes.values() if outcome.assignment is not None]
    plan = plan_recommendation(
        own,
        time_limit_s=time_limit_s,
        seed=seed,
        gap_tolerance=gap_tolerance,
        progress=progress,
        incumbents=starts,
    )
    report = plan.report.model_copy(update={"notes": (*plan.report.notes, *idle)})
    plan = plan.model_copy(update={"report": report})
    results = [_result(name, *outcomes[name], problem, view, plan) for name in RULES]
    results.sort(key=lambda result: (result.step_s is None, result.step_s or 0.0))
    ours = _by_torchrec(problem, view, _assignment(plan, model, topology)) if plan.decision.num_groups == 1 else None
    return EmbeddingComparison(plan=plan, torchrec_ms=ours, rivals=tuple(results))


def _assignment(plan: RecommendationPlan, model: Dlrm, topology: Topology) -> Assignment:
    problem = _problem_of(plan, model, topology)
    return assignment_of(problem, plan.decision)


def _problem_of(plan: RecommendationPlan, model: Dlrm, topology: Topology) -> EmbeddingProblem:
    own = plan.decision
    return embedding_problem(plan.job, model, topology, own.num_groups, own.replicas, own.codecs, own.driver)


def _by_torchrec(problem: EmbeddingProblem, view: ShardingProblem | None, plan: Assignment) -> float | None:
    """Return the plan's score in ms by TorchRec's estimator; None where it lacks an option or memory overflows."""
    mapped = translated(view, problem.sharding, plan) if view is not None else None
    return busiest(view, mapped) * 1e3 if view is not None and mapped is not None else None


def _result(
    name: str,
    outcome: Outcome,
    seconds: float,
    problem: EmbeddingProblem,
    view: ShardingProblem | None,
    plan: RecommendationPlan,
) -> EmbeddingBaselineResult:
    told = {"name": name, "rule": RULES[name].summary, "seconds": seconds, "complete": outcome.complete}
    if outcome.assignment is None:
        return EmbeddingBaselineResult(**told, reason=outcome.reason)
    cost, _ = priced(problem, outcome.assignment)
    return EmbeddingBaselineResult(
        **told,
        step_s=cost.step_s,
        busiest_rank_s=cost.busiest_rank_s,
        speed_up=cost.step_s / plan.cost.step_s,
        torchrec_ms=_by_torchrec(problem, view, outcome.assignment),
    )


def explain_recommendation(
    source: RecommendationPlan | RecommendationJob | str | Path, *, time_limit_s: float = 30.0
) -> EmbeddingExplanation:
    """Return the busiest rank's tables, the next-best option of each, and the effect of memories and buildings.

    Args:
        source: a plan, its plan.json, or a job (which is planned first).
        time_limit_s: seconds for all searches together.
    """
    search_arguments(time_limit_s)
    plan = _plan_of(source, time_limit_s / 2)
    model, topology = Dlrm.model_validate(plan.job.workload), Topology.model_validate(plan.job.topology)
    problem = _problem_of(plan, model, topology)
    assignment = assignment_of(problem, plan.decision)
    rank, tables = busy_tables(problem.sharding, assignment)
    used = tuple(share.building for share in allocation_of(plan.job, topology))
    share_s = time_limit_s / 2 / (2 if len(used) > 1 else 1)
    tiers, now_s = memory_values(problem.sharding, assignment, share_s)
    buildings = building_values(plan, topology, used, share_s) if len(used) > 1 else ()
    return EmbeddingExplanation(
        plan=plan, busiest_rank=rank, binding=tables, tiers=tiers, as_it_is_s=now_s, buildings=buildings
    )


def simulate_recommendation(plan: RecommendationPlan | str | Path, *, what_if: Sequence[str] = ()) -> SimulatedTables:
    """Simulate one step of a plan event by event on its topology, with code that does not use the cost model.

    Args:
        plan: a RecommendationPlan or the path of one.
        what_if: ``straggler=RANK:1.3``, ``slow=LEVEL:0.5``, ``slow=A/B:0.5`` (an inter-building link),
            ``lost-plane=LEVEL``.

    Raises:
        InputError: not a plan, one that does not state its dense computation, too many accelerators, or an invalid
            what-if.
        VerificationError: the plan does not recompute.
    """
    found = plan if isinstance(plan, RecommendationPlan) else load_recommendation_plan(plan)
    verify_recommendation(found)
    model, topology = Dlrm.model_validate(found.job.workload), Topology.model_validate(found.job.topology)
    disturbed = disturbance_of(what_if, None, topology)
    allocation = allocation_of(found.job, topology)
    return simulated_tables(found, model, topology, allocation, disturbed.slowdown, disturbed.stragglers, what_if)


def _plan_of(source: RecommendationPlan | RecommendationJob | str | Path, limit_s: float) -> RecommendationPlan:
    if isinstance(source, RecommendationPlan):
        return source
    if not isinstance(source, RecommendationJob) and str(source).endswith(".json"):
        return load_recommendation_plan(source)
    return plan_recommendation(source, time_limit_s=limit_s)
