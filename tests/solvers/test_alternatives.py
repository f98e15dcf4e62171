"""Alternatives of a plan: each one recomputes to its stated step time, and its reasons add up to the difference."""

from __future__ import annotations

import re
from functools import cache

import pytest

import scaleacross as sa
from instances import plain_job, plain_topology, plain_trunk
from scaleacross.solvers.alternatives import COMPONENT_NAMES, MAX_ALTERNATIVES, WORTH_NAMING, why_slower
from scaleacross.spec.job import Job
from scaleacross.spec.plan import COMPONENTS, Plan
from scaleacross.units import human_seconds
from scaleacross.verification import illegal, recompute
from scaleacross.workloads.problem import problem_of


def job(**trunk: float) -> Job:
    topology = plain_topology(4, 2)
    topology["trunks"] = [plain_trunk("b0", "b1", **trunk)]
    """A job of 24 accelerators in 16 + 8. Each of three axes may be the one that crosses."""
    sizes = {"num_accelerators": 24, "global_batch_sequences": 24, "sequence_length": 6144}
    choices = {"micro_batch_sequences": [1, 2], "recompute": ["none", "full"], "shard": ["none", "optimizer"]}
    schedules = {"schedules": ["1F1B", "Interleaved1F1B"], "num_chunks": [1, 2]}
    return plain_job(topology=topology, **sizes, degrees={"tp": 2, "cp": 1, "pp": 2}, **choices, **schedules)


@cache
def planned(**trunk: float) -> Plan:
    return sa.plan(job(**trunk), gap_tolerance=0.0)


TRUNKS = [
    pytest.param({}, id="plain"),
    pytest.param({"latency_us": 5000.0}, id="far", marks=pytest.mark.heavy),
    pytest.param({"gbyte_per_s": 0.5}, id="narrow", marks=pytest.mark.heavy),
]


@pytest.fixture(scope="module", params=TRUNKS)
def plan(request: pytest.FixtureRequest) -> Plan:
    return planned(**request.param)


def test_alternatives_are_real_plans_that_recompute(plan: Plan) -> None:
    problem = problem_of(plan.job)
    assert 3 <= len(plan.report.alternatives) <= MAX_ALTERNATIVES
    for alternative in plan.report.alternatives:
        if alternative.step_s is None:
            continue
        if not alternative.label.endswith("alone"):
            assert list(illegal(problem, alternative.decision)) == []
        assert recompute(problem, alternative.decision).cost.step_s == pytest.approx(alternative.step_s, rel=1e-9)
        assert alternative.step_s >= plan.cost.step_s * (1 - 1e-9) or alternative.label.endswith("alone")


def test_alternatives_come_fastest_first_and_differ(plan: Plan) -> None:
    steps = [alternative.step_s for alternative in plan.report.alternatives if alternative.step_s is not None]
    assert steps == sorted(steps)
    labels = [alternative.label for alternative in plan.report.alternatives]
    assert len(set(labels)) == len(labels)
    assert all(alternative.decision != plan.decision for alternative in plan.report.alternatives)


def test_another_axis_across_the_buildings(plan: Plan) -> None:
    """A label describes the decision: the named axis is the outermost one, across the buildings."""
    across = [a for a in plan.report.alternatives if a.label.endswith("across the buildings")]
    assert across
    for alternative in across:
        axis = alternative.label.split()[0]
        placement = alternative.decision.placement
        assert placement is not None
        assert placement.axis_order[-1] == axis
        assert axis != plan.placement.axis_order[-1]
        assert alternative.decision.degrees == plan.degrees


def test_one_choice_changed_alone(plan: Plan) -> None:
    won = plan.decision
    for alternative in plan.report.alternatives:
        lost, kind = alternative.decision, alternative.label.split()[0]
        if kind in ("schedule", "recompute", "shard", "micro-batch"):
            same = {
                "schedule": lost.pipeline.schedule == won.pipeline.schedule,
                "recompute": lost.recompute == won.recompute,
                "shard": lost.shard == won.shard,
                "micro-batch": lost.pipeline.micro_batch_sequences == won.pipeline.micro_batch_sequences,
            }
            assert lost.degrees == won.degrees
            assert [name for name, equal in same.items() if not equal] == [kind]


def test_reasons_name_every_component_that_matters(plan: Plan) -> None:
    problem = problem_of(plan.job)
    won = recompute(problem, plan.decision)
    for alternative in plan.report.alternatives:
        if alternative.step_s is None:
            continue
        lost = recompute(problem, alternative.decision)
        reason = why_slower(won, lost)
        assert alternative.reason.endswith(reason)
        for name in COMPONENTS:
            change = lost.cost.component(name) - won.cost.component(name)
            words = f"{'+' if change > 0 else '−'}{human_seconds(abs(change))} {COMPONENT_NAMES[name]}"
            assert (words in reason) == (abs(change) > WORTH_NAMING * won.cost.step_s), (alternative.label, name)


@pytest.mark.heavy
def test_a_reason_says_where_the_loser_crosses() -> None:
    found = planned(gbyte_per_s=0.5)
    reasons = " | ".join(alternative.reason for alternative in found.report.alternatives)
    assert re.search(r"\+[\d.]+ m?s exposed [a-z/\- ]+ \((\w+ crosses \w+(, )?)+\)", reasons)
    assert "crosses campus" in reasons


@pytest.mark.heavy
def test_the_largest_building_alone() -> None:
    free = sa.plan(plain_job(4, 2, global_batch_sequences=24, sequence_length=6144), gap_tolerance=0.0)
    alone = [a for a in free.report.alternatives if a.label == "b0 alone"]
    assert (len(free.placement.fill) == 1) or len(alone) == 1
    if alone:
        assert alone[0].decision.placement is not None
        assert [share.building for share in alone[0].decision.placement.fill] == ["b0"]
        assert "accelerators" in alone[0].reason
    [impossible] = [a for a in planned().report.alternatives if a.label == "b0 alone"] or [None]
    if impossible is not None:  # the job asks for 24 accelerators, b0 has 16
        assert impossible.step_s is None


def test_a_single_building_has_no_buildings_to_cross() -> None:
    labels = [
        a.label for a in sa.plan(plain_job(2, degrees={"tp": 1, "cp": 1}, micro_batch_sequences=1)).report.alternatives
    ]
    assert labels
    assert not any("across" in label or "alone" in label for label in labels)
