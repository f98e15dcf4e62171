"""The summary's figures beyond the plan agree with the objectives and the explanation."""

from __future__ import annotations

import pytest

import scaleacross as sa
from instances import plain_job
from planned import planned
from priced import MONEY, POWER, two
from scaleacross.api.summarising import token_costs
from scaleacross.report.summary import effect
from scaleacross.spec.topology import Topology

ONE_BUILDING = {"degrees": {"tp": 1, "cp": 1}, "num_accelerators": 8, "schedules": ["1F1B"], "recompute": ["none"]}


def test_tokens_cost_what_the_objective_says() -> None:
    """Costs per token follow from the objective.

    The objective uses the estimate, the cost uses the plan's step time. Their ratio is that of the two times.
    """
    money, power = (planned(two(name, **ONE_BUILDING)) for name in (MONEY, POWER))
    assert money.report.objective is not None and power.report.objective is not None
    found = sa.summarise(money)
    assert found.money is not None and found.money.unit == "EUR"
    assert money.estimate is not None and power.estimate is not None
    longer = money.cost.step_s / money.estimate.step_s
    assert longer != 1.0
    assert found.money.used * money.report.objective.value == pytest.approx(1e6 * longer)
    energy = sa.summarise(power).energy
    assert energy is not None
    parts = power.report.objective.parts
    joules = parts["idle power"] * power.cost.step_s / power.estimate.step_s
    joules += parts["computation"] * power.cost.compute_s / power.estimate.compute_s
    assert energy.used * 3.6e6 * power.job.tokens_per_step == pytest.approx(1e6 * joules)


def test_as_owned_every_accelerator_of_the_topology_is_paid_for() -> None:
    plan = planned(two(MONEY, **ONE_BUILDING))
    topology = Topology.model_validate(plan.job.topology)
    hourly = sum((one.accelerator_price_per_hour or 0) * one.num_accelerators for one in topology.buildings)
    money = sa.summarise(plan).money
    assert money is not None and money.owned is not None
    assert money.owned > money.used
    assert money.owned == pytest.approx(hourly / 3600 * plan.cost.step_s / (plan.job.tokens_per_step / 1e6))


@pytest.mark.parametrize("held", [{"b0": 1}, {"b1": 2}])
def test_hosts_that_are_held_back_are_owned(held: dict[str, int]) -> None:
    """Hosts that are held back count as owned: one host of a building, or all of one."""
    plan = planned(two(MONEY, **ONE_BUILDING | {"num_accelerators": 4, "spare_hosts": held}))
    topology = Topology.model_validate(plan.job.topology)
    hourly = sum((one.accelerator_price_per_hour or 0) * one.num_accelerators for one in topology.buildings)
    money = sa.summarise(plan).money
    assert money is not None and money.owned is not None
    assert money.owned == pytest.approx(hourly / 3600 * plan.cost.step_s / (plan.job.tokens_per_step / 1e6))


def test_costs_are_of_the_step_that_the_plan_states() -> None:
    """Costs use the plan's step time.

    The objective's value uses the estimate, but the summary states costs next to tokens per second of the simulated
    step.
    """
    plan = planned(two(MONEY, num_accelerators=16))
    longer = plan.model_copy(update={"cost": plan.cost.model_copy(update={"step_s": 2 * plan.cost.step_s})})
    (before, _), (after, _) = (token_costs(one) for one in (plan, longer))
    assert before is not None and after is not None and before.owned is not None and after.owned is not None
    topology = Topology.model_validate(plan.job.topology)
    assert plan.decision.placement is not None
    assert sum(share.num_accelerators for share in plan.decision.placement.fill) == topology.num_accelerators
    assert before.used == pytest.approx(before.owned)
    assert after.used == pytest.approx(after.owned)


@pytest.mark.heavy
def test_bottlenecks_are_those_of_the_explanation_largest_first() -> None:
    plan = sa.plan(plain_job(2, 2), alternatives=False)
    found = sa.summarise(plan)
    assert (found.money, found.energy) == (None, None)
    rows = sa.explain(plan, time_limit_s=0).sensitivities
    assert set(found.bottlenecks) == {row for row in rows if row.elasticity}
    sizes = [abs(row.more_s or 0.0) for row in found.bottlenecks]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 0


@pytest.mark.heavy
def test_what_more_of_a_link_brings_is_what_evaluate_says() -> None:
    plan = sa.evaluate(sa.plan(two("step_time", num_accelerators=16, degrees={"pp": 2}), alternatives=False))
    topology = plan.job.topology
    assert isinstance(topology, dict)
    key = next(key for key in topology["trunks"][0] if key.startswith("bandwidth"))
    wider = f"topology.trunks.0.{key}={topology['trunks'][0][key] * 1.1}"
    after_s = sa.evaluate(plan, overrides=[wider]).estimated.step_s
    row = next(row for row in sa.summarise(plan).bottlenecks if row.figure == "campus bandwidth")
    assert row.more_s is not None and row.trunks_more_s is not None
    assert row.trunks_more_s == pytest.approx(after_s - plan.estimated.step_s, rel=1e-6)
    assert row.more_s < 0.9 * row.trunks_more_s < 0  # NICs are as narrow
    words = effect(row, plan.estimated.step_s)
    saves = 100 * (1 - after_s / plan.estimated.step_s)
    assert words.endswith(f"of the step ({saves:.2f} % where inter-building links alone are wider)")
