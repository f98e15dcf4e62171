"""The step time that a plan states: an estimate that its simulation confirms, or the simulation's where it does not."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
from agreement import decisions

import scaleacross as sa
from instances import plain_job
from scaleacross.api import stated as module
from scaleacross.api.problems import problem_of
from scaleacross.spec.plan import COMPONENTS, Decision, Plan

OFF = 88
"""A row of the benchmark's table: tensor parallelism and sharded parameters over six buildings, estimated a third too slow."""


@pytest.fixture(scope="module")
def overruled() -> Plan:
    row, job = next((row, job) for number, row, job in decisions("shuffled") if number == OFF)
    return sa.evaluate((job, Decision(**row["decision"])))


@pytest.fixture(scope="module")
def confirmed() -> Plan:
    return sa.plan(plain_job(2, 2, degrees={"pp": 2}, recompute="none"), simulated=True)


def test_an_estimate_near_its_simulation_stands(confirmed: Plan) -> None:
    simulated_s = sa.simulate(confirmed).step_s
    assert confirmed.simulated_s == pytest.approx(simulated_s)
    assert confirmed.estimate is None and confirmed.estimated is confirmed.cost
    assert abs(confirmed.cost.step_s / simulated_s - 1) <= module.AGREEMENT
    assert confirmed.cost.step_s == confirmed.report.objective_s


def test_any_other_is_overruled(overruled: Plan) -> None:
    simulated = sa.simulate(overruled)
    assert overruled.cost.step_s == overruled.simulated_s == pytest.approx(simulated.step_s)
    assert overruled.estimated.step_s == simulated.predicted_step_s > 1.3 * overruled.cost.step_s
    parts = {name: overruled.cost.component(name) for name in COMPONENTS}
    assert sum(parts.values()) == pytest.approx(overruled.cost.step_s)
    assert parts == pytest.approx(simulated.components_s)
    tokens = overruled.job.tokens_per_step
    assert overruled.cost.tokens_per_s == pytest.approx(tokens / overruled.cost.step_s)
    assert overruled.interval is not None
    assert overruled.interval.p10_s < overruled.cost.step_s < overruled.interval.p90_s
    report = overruled.report
    assert report.gap == pytest.approx(1 - report.bound_s / overruled.cost.step_s)
    assert "the estimate of" in report.notes[-1]


def test_both_verify_and_are_read_back(overruled: Plan) -> None:
    assert Plan.model_validate_json(overruled.model_dump_json()) == overruled
    verified = sa.verify(overruled, deep=True, max_difference=1e-9)
    assert verified.step_s == overruled.cost.step_s


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
    overruled: Plan, changed: Callable[[Plan], dict[str, object]], says: str
) -> None:
    with pytest.raises(sa.VerificationError, match=says):
        sa.verify(overruled.model_copy(update=changed(overruled)))


def test_what_the_simulation_refuses_keeps_its_estimate_and_says_so() -> None:
    refused = mock.patch.object(module, "replayed_step_s", side_effect=sa.InputError("no link"))
    with refused:
        plan = sa.plan(plain_job(2, 2, degrees={"pp": 2}, recompute="none"), alternatives=False, simulated=True)
    assert plan.simulated_s is None and plan.estimate is None
    assert plan.report.notes[-1].endswith("no simulation confirms: no link")


def test_searches_leave_the_simulation_out_unless_asked() -> None:
    with mock.patch.object(module, "replayed_step_s", side_effect=AssertionError):
        assert sa.plan(plain_job(2, 2, degrees={"pp": 2}), alternatives=False).simulated_s is None


def test_the_bound_of_a_search_refers_to_the_estimate(confirmed: Plan) -> None:
    problem = problem_of(confirmed.job, ())
    unconfirmed = confirmed.model_copy(update={"simulated_s": None})
    with mock.patch.object(module, "AGREEMENT", 0.0):
        plan = module.stated(unconfirmed, problem)
    assert plan.estimate == confirmed.cost
    assert plan.report.objective_s == confirmed.cost.step_s != plan.cost.step_s
    assert plan.report.bound_s <= plan.report.objective_s
    assert "bounds, gap and alternatives refer to the estimate" in plan.report.notes[-1]
    sa.verify(plan)
