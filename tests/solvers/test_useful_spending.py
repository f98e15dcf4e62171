"""Useful tokens per megawatt and per currency unit.

The search equals brute force, and failures add to the spending.
"""

from __future__ import annotations

from typing import Any

import pytest

import scaleacross as sa
from instances import random_job
from oracles.exhaustive import exhaustive
from priced import priced, spent, two
from scaleacross.api.summarising import token_costs
from scaleacross.cost_models.goodput import useful_parts
from scaleacross.spec.job import Job, ObjectiveName
from scaleacross.workloads.problem import problem_of

PER_MEGAWATT, PER_CURRENCY = "useful_tokens_per_s_per_megawatt", "useful_tokens_per_s_per_currency_unit"
FAILURES = {"host_mtbf_hours": 0.3, "zone_mtbf_hours": 1}
RECOVERY = {"recover_s": 120, "stall_s": 20, "checkpoint_blocking_s": 5}


def failing(job: Job) -> Job:
    data: dict[str, Any] = job.model_dump(mode="json", exclude_none=True)
    topology = data["topology"] | {"reliability": FAILURES}
    return Job.model_validate(data | {"topology": topology, "reliability": RECOVERY})


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("seed", "name"),
    [
        (3, PER_MEGAWATT),
        (5, PER_CURRENCY),
        (10, PER_CURRENCY),
        pytest.param(4, PER_CURRENCY, marks=pytest.mark.slow),
    ],
)
def test_search_finds_the_best_of_brute_force(seed: int, name: ObjectiveName) -> None:
    problem = problem_of(failing(priced(random_job(seed).model_dump(mode="json", exclude_none=True), seed, name)))
    oracle = exhaustive(problem, lambda decision, cost: spent(problem, name, decision, cost))
    if oracle.decision is None:
        with pytest.raises(sa.InfeasibleError):
            sa.plan(problem.job, alternatives=False)
        return
    plan = sa.plan(problem.job, alternatives=False)  # verifies itself
    value = plan.report.objective
    assert value is not None
    assert plan.report.status == "optimal"
    assert value.spent_per_step == pytest.approx(oracle.step_s, rel=1e-9)
    assert value.spent_bound_per_step <= oracle.step_s * (1 + 1e-9)


@pytest.mark.heavy
@pytest.mark.parametrize("name", [PER_MEGAWATT, PER_CURRENCY])
def test_failures_spend_what_waiting_spends(name: ObjectiveName) -> None:
    plan = sa.plan(failing(two(name)), alternatives=False, simulated=False)  # the objective refers to the estimate
    value, problem = plan.report.objective, problem_of(plan.job)
    assert value is not None
    assert plan.goodput is not None
    more_s = useful_parts(problem, plan.decision, plan.estimated.step_s)["failures"]
    rate = sum(
        share.num_accelerators
        * {"b0": (1 / 3600, 250.0), "b1": (3 / 3600, 375.0)}[share.building][name == PER_MEGAWATT]
        for share in plan.placement.fill
    )
    assert value.parts["failures"] == pytest.approx(rate * more_s)
    assert value.value == pytest.approx(
        plan.job.tokens_per_step * (1e6 if name == PER_MEGAWATT else 1.0) / sum(value.parts.values())
    )
    money, energy = token_costs(plan)
    assert money is not None
    assert energy is not None
    said = energy.used * 3.6 if name == PER_MEGAWATT else money.used
    assert said == pytest.approx(
        1e6 / plan.job.tokens_per_step * value.spent_per_step / (1e6 if name == PER_MEGAWATT else 1)
    )


@pytest.mark.slow
def test_a_front_between_step_time_and_useful_tokens() -> None:
    front = sa.pareto(
        failing(two("step_time", degrees={"tp": 1, "cp": 1, "pp": 2})), ["step_time", PER_CURRENCY], points=2
    )
    assert front.points
    assert all(point.values[1] > 0 for point in front.points)
