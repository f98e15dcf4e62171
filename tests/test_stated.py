"""The step time of a plan is that of its simulation, and the plan states the estimate too."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from unittest import mock

import pytest

import scaleacross as sa
from instances import plain_job
from priced import MONEY, POWER, two
from scaleacross.api import refereeing
from scaleacross.api import stated as module
from scaleacross.api.simulating import stepped
from scaleacross.api.summarising import JOULES_PER_KWH, MILLION
from scaleacross.spec.job import ObjectiveName
from scaleacross.spec.plan import COMPONENTS, Plan
from scaleacross.workloads.problem import Problem

JOB = plain_job(
    2, 2, degrees={"tp": 1, "cp": 1, "pp": 2}, recompute="none", schedules="1F1B", micro_batch_sequences=1, shard="none"
)


@pytest.fixture(scope="module")
def confirmed() -> Plan:
    return sa.plan(JOB, alternatives=False)


@pytest.fixture(scope="module")
def far_off(confirmed: Plan) -> Plan:
    """The plan unsearched, where any difference between estimate and simulation counts as far off."""
    with mock.patch.object(module, "AGREEMENT", 0.0):
        return sa.evaluate((JOB, confirmed.decision))


def test_a_plan_states_its_simulation_and_proves_its_estimate(confirmed: Plan) -> None:
    assert confirmed.cost.step_s == confirmed.simulated_s == pytest.approx(sa.simulate(confirmed).step_s)
    assert confirmed.estimate is not None and confirmed.estimated is confirmed.estimate
    assert 0 < abs(confirmed.estimate.step_s / confirmed.cost.step_s - 1) <= module.AGREEMENT
    assert confirmed.estimate.step_s == confirmed.report.objective_s
    assert not any("the estimate of" in note for note in confirmed.report.notes)


def test_an_estimate_that_is_far_off_is_noted(far_off: Plan) -> None:
    simulated = sa.simulate(far_off)
    assert far_off.cost.step_s == far_off.simulated_s == pytest.approx(simulated.step_s)
    assert far_off.estimated.step_s == simulated.predicted_step_s != far_off.cost.step_s
    parts = {name: far_off.cost.component(name) for name in COMPONENTS}
    assert sum(parts.values()) == pytest.approx(far_off.cost.step_s)
    assert parts == pytest.approx(simulated.components_s)
    tokens = far_off.job.tokens_per_step
    assert far_off.cost.tokens_per_s == pytest.approx(tokens / far_off.cost.step_s)
    assert far_off.interval is not None
    assert far_off.interval.p10_s < far_off.cost.step_s < far_off.interval.p90_s
    report = far_off.report
    assert report.gap == pytest.approx(1 - report.bound_s / far_off.cost.step_s)
    assert "the estimate of" in report.notes[-1]


def test_both_verify_and_are_read_back(far_off: Plan) -> None:
    assert Plan.model_validate_json(far_off.model_dump_json()) == far_off
    verified = sa.verify(far_off, deep=True, max_difference=1e-9)
    assert verified.step_s == far_off.cost.step_s


@pytest.mark.parametrize("objective", [MONEY, POWER])
def test_what_an_unsearched_step_spends_is_of_the_simulation(confirmed: Plan, objective: ObjectiveName) -> None:
    found = sa.evaluate((two(objective), confirmed.decision))
    cost, value = sa.summarise(found), found.report.objective
    assert found.cost.step_s != found.estimated.step_s and value is not None
    used = cost.money if objective == MONEY else cost.energy
    unit = 1.0 if objective == MONEY else JOULES_PER_KWH
    assert used is not None
    assert value.spent_per_step == pytest.approx(used.used * unit * found.job.tokens_per_step / MILLION)
    assert found.report.gap == pytest.approx(1 - value.spent_bound_per_step / value.spent_per_step)
    sa.verify(found)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (lambda plan: {"simulated_s": plan.simulated_s * 2}, "its simulation as"),
        (lambda plan: {"cost": plan.cost.model_copy(update={"mfu": 0.5})}, "mfu is stated as 0.5"),
        (lambda plan: {"estimate": plan.estimate.model_copy(update={"compute_s": 9.0})}, "step.compute_s"),
        (lambda _: {"estimate": None}, "step.step_s"),
    ],
)
def test_a_changed_figure_does_not_verify(
    confirmed: Plan, changed: Callable[[Plan], dict[str, object]], says: str
) -> None:
    with pytest.raises(sa.VerificationError, match=says):
        sa.verify(confirmed.model_copy(update=changed(confirmed)))


@pytest.mark.heavy
def test_what_the_simulation_refuses_keeps_its_estimate_and_says_so() -> None:
    refused = mock.Mock(side_effect=sa.InputError("no link"))
    with mock.patch.object(module, "stepped", refused), mock.patch.object(refereeing, "stepped", refused):
        plan = sa.plan(JOB, alternatives=False)
    assert plan.simulated_s is None and plan.estimate is None
    assert plan.report.notes[-1].endswith("no simulation confirms: no link")


@pytest.mark.slow
def test_searches_leave_the_simulation_out_where_asked() -> None:
    with mock.patch.object(module, "stepped", None), mock.patch.object(refereeing, "stepped", None):
        plan = sa.plan(plain_job(2, 2, degrees={"pp": 2}), alternatives=False, simulated=False)
    assert plan.simulated_s is None and plan.estimated is plan.cost


@pytest.mark.parametrize("slower", [1.2, pytest.param(0.8, marks=pytest.mark.slow)])
def test_a_plan_says_what_its_estimate_is_off(slower: float) -> None:
    def simulated(plan: Plan, problem: Problem) -> SimpleNamespace:
        found = stepped(plan, problem)
        parts = {name: slower * seconds for name, seconds in found.components_s.items()}
        return SimpleNamespace(step_s=slower * found.step_s, components_s=parts)

    with mock.patch.object(refereeing, "stepped", side_effect=simulated):
        plan = sa.plan(JOB, alternatives=False)
    assert "the estimate of" in plan.report.notes[-1] and "refer to the estimate" in plan.report.notes[-1]
