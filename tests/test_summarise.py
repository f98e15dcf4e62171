"""What the first lines say beyond the plan, held against the objectives and the explanation."""

from __future__ import annotations

import pytest

import scaleacross as sa
from instances import plain_job
from priced import MONEY, POWER, two
from scaleacross.spec.topology import Topology

ONE_BUILDING = {"degrees": {"tp": 1, "cp": 1}, "num_accelerators": 8, "schedules": ["1F1B"], "recompute": ["none"]}


def test_tokens_cost_what_the_objective_says() -> None:
    money, power = (sa.plan(two(name, **ONE_BUILDING), alternatives=False) for name in (MONEY, POWER))
    assert money.report.objective is not None and power.report.objective is not None
    found = sa.summarise(money)
    assert found.money is not None and found.money.unit == "EUR"
    assert found.money.used * money.report.objective.value == pytest.approx(1e6)
    energy = sa.summarise(power).energy
    assert energy is not None
    # tokens per megajoule: a kWh is 3.6 MJ
    assert energy.used * 3.6 * power.report.objective.value == pytest.approx(1e6)


def test_as_owned_every_accelerator_of_the_topology_is_paid_for() -> None:
    plan = sa.plan(two(MONEY, **ONE_BUILDING), alternatives=False)
    topology = Topology.model_validate(plan.job.topology)
    hourly = sum((one.accelerator_price_per_hour or 0) * one.num_accelerators for one in topology.buildings)
    money = sa.summarise(plan).money
    assert money is not None and money.owned is not None
    assert money.owned > money.used
    assert money.owned == pytest.approx(hourly / 3600 * plan.cost.step_s / (plan.job.tokens_per_step / 1e6))


@pytest.mark.heavy
def test_bottlenecks_are_those_of_the_explanation_largest_first() -> None:
    plan = sa.plan(plain_job(2, 2), alternatives=False)
    found = sa.summarise(plan)
    assert (found.money, found.energy) == (None, None)
    rows = sa.explain(plan, time_limit_s=0).sensitivities
    assert set(found.bottlenecks) == {row for row in rows if row.elasticity}
    sizes = [abs(row.elasticity or 0.0) for row in found.bottlenecks]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 0
