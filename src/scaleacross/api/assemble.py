"""What verbs that price need: the cost of a decision, and the plan around it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from scaleacross.cost_models.failures import degraded_states
from scaleacross.cost_models.goodput import goodput_of, is_asked
from scaleacross.cost_models.plan_cost import PlanCost, plan_cost, replayed_work
from scaleacross.spec.plan import Decision, NetworkReport, Plan, SolveReport
from scaleacross.targets import fits
from scaleacross.workloads.problem import Problem

REPORTED_VERSIONS = ("scaleacross", "ortools", "numpy", "pydantic")


def cost_of(problem: Problem, decision: Decision) -> PlanCost:
    """The exact cost of a placed decision."""
    return plan_cost(problem.job, problem.profile, problem.topology, decision)


def assemble(
    problem: Problem,
    decision: Decision,
    cost: PlanCost,
    report: SolveReport,
    network: NetworkReport | None = None,
    degraded: bool = True,
) -> Plan:
    """The plan: what was asked, what was decided, what it costs, and how that was found.

    Args:
        degraded: what it costs with something lost too, as long to find as the cost itself; a replay does not ask for it.
    """
    placed = decision.model_copy(update={"placement": cost.placement})
    return Plan(
        job=problem.job,
        decision=placed,
        layers_per_stage=cost.layers_per_stage,
        num_micro_batches=cost.num_micro_batches,
        cost=cost.cost,
        memory=cost.memory,
        traffic=cost.traffic,
        collectives=cost.collectives,
        work=replayed_work(problem.job, problem.profile, problem.topology, decision),
        degraded=degraded_states(problem.job, problem.profile, problem.topology, decision) if degraded else (),
        network=network,
        targets=fits(problem.job, problem.profile, decision),
        report=report,
        goodput=goodput_of(problem, placed, cost.cost.step_s) if is_asked(problem) else None,
    )


def versions() -> dict[str, str]:
    """Versions of the packages that a plan depends on."""
    out = {}
    for package in REPORTED_VERSIONS:
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            out[package] = "not installed"
    return out
