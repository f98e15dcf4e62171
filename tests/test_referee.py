"""plan(referee=N): the simulation chooses among the decisions with the best estimates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

import instances
import scaleacross as sa
from priced import POWER, two
from scaleacross.api import refereeing, verify
from scaleacross.cli import app
from scaleacross.report.cost import refereed as referee_words
from scaleacross.solvers.search_state import Search
from scaleacross.spec.plan import Decision, Finalist, Plan
from scaleacross.workloads.problem import Problem

JOB = instances.plain_job(2, 3, degrees={"cp": 1, "tp": [1, 2]}, schedules=["1F1B", "GPipe"])


def bare(decision: Decision) -> Decision:
    """The decision without its network and without the spans of its placement."""
    assert decision.placement is not None
    return decision.model_copy(
        update={"network": None, "placement": decision.placement.model_copy(update={"spans": {}})}
    )


class Simulated(NamedTuple):
    """The parts of a simulation that the selection of finalists and a plan read."""

    step_s: float

    @property
    def components_s(self) -> dict[str, float]:
        return {"compute": self.step_s, "bubble": 0.0, "optimizer": 0.0}


@pytest.fixture(scope="module")
def alone() -> Plan:
    """The plan that the estimate alone chooses."""
    return sa.plan(JOB)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Record the plans that are simulated.

    The simulated time is the inverse of the estimate, so the slowest estimate is fastest.
    """
    out: list[Plan] = []

    def inverse(plan: Plan, _: Problem) -> Simulated:
        out.append(plan)
        return Simulated(1 / plan.cost.step_s)

    monkeypatch.setattr(refereeing, "stepped", inverse)
    return out


@pytest.mark.heavy
def test_finalists_are_the_best_by_estimate_each_with_its_simulation(alone: Plan) -> None:
    found = sa.plan(JOB, referee=3)
    simulated = found.report.finalists
    assert len(simulated) == 3
    assert len({bare(one.decision).model_dump_json() for one in simulated}) == 3
    assert min(one.price_s for one in simulated) == alone.estimated.step_s
    assert max(one.price_s for one in simulated) <= refereeing.PRICE_RATIO * alone.estimated.step_s
    for one in simulated:
        priced = sa.evaluate((found.job, one.decision))
        assert one.price_s == pytest.approx(priced.estimated.step_s, rel=1e-12)
        assert one.replayed_s == pytest.approx(sa.simulate(priced).step_s, rel=1e-9)
    times = [one.replayed_s for one in simulated if one.replayed_s is not None]
    assert times == sorted(times) and found.decision == simulated[0].decision
    tie = alone.report.finalists
    assert len(tie) == 2 and max(one.price_s for one in tie) <= refereeing.TIE * alone.estimated.step_s
    assert found.report.num_placed > 3


@pytest.mark.heavy
def test_one_building_is_a_finalist_where_links_are_worse_than_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan in one building becomes a finalist if links are slower than estimated.

    Its rank among the estimates does not matter, as long as it may be faster than the fastest simulation.
    """

    def slow_links(plan: Plan, _: Problem) -> Simulated:
        return Simulated(plan.cost.step_s * (3.0 if len(plan.placement.fill) > 1 else 1.0))

    monkeypatch.setattr(refereeing, "stepped", slow_links)
    found = sa.plan(JOB, referee=1)
    first, second = found.report.finalists
    assert len(found.placement.fill) == 1
    assert first.price_s > second.price_s * refereeing.PRICE_RATIO
    assert first.replayed_s is not None and second.replayed_s is not None and first.replayed_s < second.replayed_s


@pytest.mark.heavy
def test_other_kinds_come_before_a_third_of_the_same(alone: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kinds of decisions come before a third finalist of the same kind.

    Errors of estimates are similar for equal degrees and schedules. If the best is slow in the simulation, a kind with
    a longer estimate is worth a try.
    """
    monkeypatch.setattr(refereeing, "stepped", lambda plan, _: Simulated(2 * plan.cost.step_s))
    found = [one.decision for one in sa.plan(JOB, referee=4).report.finalists]
    kinds = [(str(one.degrees), one.pipeline.schedule) for one in found]
    assert len(found) == 4 and max(map(kinds.count, kinds)) <= refereeing.OF_A_KIND


@pytest.mark.heavy
def test_the_fastest_in_the_simulation_is_the_plan_with_its_own_gap(alone: Plan, replays: list[Plan]) -> None:
    found = sa.plan(JOB, referee=4)
    assert len(replays) == 4
    dearest = max(replays, key=lambda plan: plan.cost.step_s)
    assert found.decision == dearest.decision and found.estimated.step_s > alone.estimated.step_s
    assert found.report.objective_s == found.estimated.step_s
    assert found.report.bound_s <= alone.estimated.step_s
    assert found.report.gap == pytest.approx(1 - found.report.bound_s / found.estimated.step_s)
    assert found.report.status != "optimal"
    assert any(one.step_s is not None and one.step_s < found.estimated.step_s for one in found.report.alternatives)
    verify(found)


@pytest.mark.slow
def test_a_best_whose_simulation_is_late_meets_three_others(alone: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    late = 1 + refereeing.AGREEMENT
    factor = 0.99 * late

    def longer(plan: Plan, _: Problem) -> Simulated:
        return Simulated(plan.cost.step_s * (factor if plan.cost.step_s == alone.estimated.step_s else 1.0))

    monkeypatch.setattr(refereeing, "stepped", longer)
    assert len(sa.plan(JOB).report.finalists) == 2  # the best, and one that ties
    factor = 2.0
    found = sa.plan(JOB)
    assert len(found.report.finalists) == refereeing.AUTOMATIC
    assert found.estimated.step_s > alone.estimated.step_s and found.cost.step_s < 2 * alone.estimated.step_s
    assert found.report.gap == pytest.approx(1 - found.report.bound_s / found.estimated.step_s)
    assert sa.plan(JOB, simulated=False).decision == alone.decision
    only = sa.plan(JOB, referee=1).report.finalists
    assert [len(one.decision.placement.fill) for one in only if one.decision.placement] == [1, 2]


@pytest.mark.heavy
def test_simulations_take_no_time_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def takes_an_hour(plan: Plan, _: Problem) -> Simulated:
        nonlocal now
        now += 3600.0
        return Simulated(plan.cost.step_s)

    monkeypatch.setattr(refereeing, "stepped", takes_an_hour)
    found = sa.plan(JOB, alternatives=False, referee=1, time_limit_s=60, clock=lambda: now)
    assert (found.report.status, found.report.seconds) == ("optimal", 0.0)


def test_user_supplied_plans_come_before_other_runners_up(alone: Plan, replays: list[Plan]) -> None:
    near = [one for one in alone.report.alternatives if one.step_s and one.step_s < 1.1 * alone.estimated.step_s]
    last = max(near, key=lambda one: one.step_s or 0.0).decision
    sa.plan(JOB, alternatives=False, referee=2, incumbents=[bare(last)])
    several = [plan.decision for plan in replays if len(plan.placement.fill) > 1]
    assert [bare(one) for one in several] == [bare(alone.decision), bare(last), bare(last)]
    assert several[2].network is None  # beyond two: its estimate is below all simulated times


@pytest.mark.heavy
def test_no_user_supplied_plan_is_estimated_below_the_fastest_simulation(
    alone: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_supplied = max(alone.report.alternatives, key=lambda one: one.step_s or 0.0)
    best_s, dear_s = alone.estimated.step_s, user_supplied.step_s or 0.0
    late_s = 1.01 * dear_s
    monkeypatch.setattr(refereeing, "stepped", lambda plan, _: Simulated(max(plan.cost.step_s, late_s)))
    twice = sa.plan(JOB, alternatives=False, referee=1, incumbents=[bare(user_supplied.decision)])
    assert best_s < dear_s and len(twice.report.finalists) > 1
    assert bare(user_supplied.decision) in [bare(one.decision) for one in twice.report.finalists]
    late_s = 0.99 * dear_s
    once = sa.plan(JOB, alternatives=False, referee=1, incumbents=[bare(user_supplied.decision)])
    assert len(once.report.finalists) == 1


@pytest.mark.heavy
def test_user_supplied_plans_run_on_the_defaults_too_where_finalists_are_few(alone: Plan, replays: list[Plan]) -> None:
    user_supplied = sorted((bare(one.decision) for one in (alone, *alone.report.alternatives[:1])), key=str)
    sa.plan(JOB, alternatives=False, referee=99, incumbents=user_supplied)
    assert sorted((bare(plan.decision) for plan in replays if plan.decision.network is None), key=str) == user_supplied
    replays.clear()
    sa.plan(JOB, alternatives=False, referee=99)
    assert replays and all(plan.decision.network is not None for plan in replays)


@pytest.mark.heavy
def test_a_finalist_that_the_simulator_refuses_is_named(alone: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_best(plan: Plan, _: Problem) -> Simulated:
        if plan.cost.step_s == alone.estimated.step_s:
            raise sa.InputError("not this one")
        return Simulated(plan.cost.step_s)

    monkeypatch.setattr(refereeing, "stepped", refuse_best)
    found = sa.plan(JOB, alternatives=False, referee=2)
    assert [(one.replayed_s is None, one.reason) for one in found.report.finalists] == [
        (False, ""),
        (True, "not this one"),
    ]
    only = sa.plan(JOB, alternatives=False, referee=1)
    assert only.decision == alone.decision and only.report.finalists[0].replayed_s is None


def test_a_referee_of_nobody_or_of_another_objective_is_refused() -> None:
    with pytest.raises(sa.InputError, match="a referee of 0 finalists"):
        sa.plan(JOB, referee=0)
    with pytest.raises(sa.InputError, match="compares step times"):
        sa.plan(two(POWER), referee=2)


@pytest.mark.heavy
def test_no_bound_is_above_the_estimate_of_a_finalist(replays: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    """No stated bound exceeds the estimate of a finalist.

    Moved layers may take less than the bound of a search over equal stages. This test sets the bound too high on
    purpose.
    """
    monkeypatch.setattr(Search, "bound_s", property(lambda _: 1e9))
    found = sa.plan(JOB, referee=3)
    least_s = min(one.price_s for one in found.report.finalists)
    assert least_s < found.report.objective_s
    assert found.report.bound_s == least_s
    assert max(bound.step_s for bound in found.report.bounds) == least_s
    assert found.report.gap == pytest.approx(1 - least_s / found.report.objective_s)
    high = found.report.model_copy(update={"bound_s": found.report.objective_s, "gap": 0.0})
    with pytest.raises(sa.VerificationError, match="exceeds the estimate of a finalist"):
        sa.verify(found.model_copy(update={"report": high}))


def test_the_gap_of_the_best_estimate_stands_beside_the_choice(alone: Plan) -> None:
    """The report states the gap of the best estimate next to the choice.

    ``--gap`` concerns estimates, so a plan that the simulation chose may be further from the bound.
    """
    found = tuple(
        Finalist(decision=alone.decision, price_s=one, replayed_s=two) for one, two in ((3.1, 3.1), (3.0, 3.2))
    )
    words = referee_words(alone.report.model_copy(update={"finalists": found, "bound_s": 2.94}))
    assert "best estimate, 3.00 s (gap 2.0 %), takes 3.20 s there" in words and "asked for" not in words


def test_the_report_says_where_fewer_finalists_than_asked_for_exist(replays: list[Plan]) -> None:
    found = sa.plan(JOB, referee=60, alternatives=False)
    number = len(found.report.finalists)
    assert number < 60
    assert f"{number} of {number} finalists simulated (60 asked for, no more within reach of the best estimate)" in (
        referee_words(found.report)
    )
    again = sa.plan(JOB, referee=number, alternatives=False)
    assert len(again.report.finalists) == number and "asked for" not in referee_words(again.report)


@pytest.mark.heavy
def test_cli_says_what_the_simulation_chose(replays: list[Plan], tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(instances.plain_job(2, degrees={"cp": 1}, schedules=["1F1B"]).model_dump_json())
    shown = CliRunner().invoke(app, ["plan", str(path), "--referee", "2"])
    assert shown.exit_code == 0, shown.stderr
    words = " ".join(shown.stdout.split())
    assert "2 of 2 finalists simulated: the plan is estimated at" in words and "bound and gap are of estimates" in words
    data: dict[str, Any] = json.loads(CliRunner().invoke(app, ["plan", str(path), "--referee", "2", "--json"]).stdout)
    prices = [one["price_s"] for one in data["report"]["finalists"]]
    assert prices == sorted(prices, reverse=True) and data["estimate"]["step_s"] == prices[0]
    both = CliRunner().invoke(app, ["plan", str(path), "--referee", "2", "--refine", "1"])
    assert both.exit_code == 2 and "give one of them" in both.stderr
