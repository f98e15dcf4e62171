"""The estimated cost of a decision, and the plan assembled from it; used by all verbs that evaluate decisions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from scaleacross import catalogue
from scaleacross.cost_models import step_interval
from scaleacross.cost_models.failures import degraded_states
from scaleacross.cost_models.goodput import goodput_of, is_asked
from scaleacross.cost_models.plan_cost import PlanCost, plan_cost, simulated_work
from scaleacross.spec.network_report import NetworkReport
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import Decision, Plan, SolveReport
from scaleacross.spec.step_errors import StepInterval
from scaleacross.verification import target_fits
from scaleacross.workloads.problem import Problem

REPORTED_VERSIONS = ("scaleacross", "ortools", "numpy", "pydantic")


def cost_of(problem: Problem, decision: Decision) -> PlanCost:
    """Return the exact estimate of a placed decision."""
    return plan_cost(problem.job, problem.profile, problem.topology, decision)


def assemble(
    problem: Problem,
    decision: Decision,
    cost: PlanCost,
    report: SolveReport,
    network: NetworkReport | None = None,
    degraded: bool = True,
) -> Plan:
    """Return the plan: the job, the decision, its estimate, and how it was found.

    Args:
        problem: the resolved job.
        decision: the decision; its placement is that of ``cost``.
        cost: estimate of the decision.
        report: how the decision was found.
        network: how its network was chosen.
        degraded: also compute the step after losses, which takes as long as the estimate itself; a simulation does not
            need it.
    """
    placed = decision.model_copy(update={"placement": cost.placement})
    return Plan(
        job=problem.job,
        decision=placed,
        layers_per_stage=cost.layers_per_stage,
        num_micro_batches=cost.num_micro_batches,
        cost=cost.cost,
        interval=interval_of(problem, cost.placement, cost.cost.step_s),
        memory=cost.memory,
        traffic=cost.traffic,
        collectives=cost.collectives,
        work=simulated_work(problem.job, problem.profile, problem.topology, decision),
        degraded=degraded_states(problem.job, problem.profile, problem.topology, decision) if degraded else (),
        network=network,
        targets=target_fits(problem, placed),
        report=report,
        goodput=goodput_of(problem, placed, cost.cost.step_s) if is_asked(problem) else None,
    )


def interval_of(problem: Problem, placement: Placement, step_s: float) -> StepInterval:
    """Return the interval in which the measured step time of a placed decision is expected."""
    return step_interval.interval_of(catalogue.step_errors(), problem, placement, step_s)


def probability_of_lead(problem: Problem, step_s: float, other_s: float) -> float:
    """Return the probability that the first of two step times (seconds) is the faster one when measured."""
    experts = problem.profile.num_experts > 0
    return step_interval.probability_faster(catalogue.step_errors(), step_s, other_s, experts=experts)


def versions() -> dict[str, str]:
    """Return versions of the packages that a plan depends on."""
    out = {}
    for package in REPORTED_VERSIONS:
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            out[package] = "not installed"
    return out
