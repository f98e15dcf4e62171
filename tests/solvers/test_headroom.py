"""Plans keep the requested memory free: searched, verified and reported. User-supplied settings may use it."""

from __future__ import annotations

import io

import pytest

import scaleacross as sa
from cases import each
from instances import instance, mixed_instance, plain_job
from oracles.exhaustive import exhaustive
from scaleacross.errors import InfeasibleError, VerificationError
from scaleacross.report.cost import proof
from scaleacross.solvers.joint import search
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan
from scaleacross.verification import verify
from scaleacross.workloads.problem import Problem, problem_of

SHAPE = {"schedules": ["1F1B"], "micro_batch_sequences": 1, "degrees": {"tp": 1, "cp": 1, "pp": 2}}


def job_of(headroom: float, **changes: object) -> Job:
    return plain_job(2, memory_headroom_fraction=headroom, **(SHAPE | changes))


def fullest(plan: Plan) -> float:
    return max(stage.total_bytes / stage.capacity_bytes for stage in plan.memory)


@pytest.fixture(scope="module")
def full() -> Plan:
    """The fastest plan without a limit on memory beyond the capacity."""
    return sa.plan(job_of(0.0), gap_tolerance=0.0, alternatives=False)


@pytest.mark.heavy
def test_a_plan_leaves_the_headroom_free(full: Plan) -> None:
    """A plan leaves the headroom that the job asks for.

    The job asks for slightly more than the fastest plan leaves. The new plan equals brute
    force, and the report bounds what the headroom costs.
    """
    assert full.report.headroom is None
    job = job_of(1 - fullest(full) + 0.001)
    plan = sa.plan(job, gap_tolerance=0.0, alternatives=False)
    assert fullest(plan) <= 1 - job.memory_headroom_fraction < fullest(full)
    assert plan.estimated.step_s == pytest.approx(exhaustive(problem_of(job)).step_s, rel=1e-9)
    room = plan.report.headroom
    assert room is not None and room.fraction == job.memory_headroom_fraction
    assert room.num_candidates >= 1 and room.bound_s is not None
    assert (
        room.bound_s <= full.estimated.step_s * (1 + 1e-9) < plan.estimated.step_s
    )  # the stated loss never exceeds the real one


@pytest.mark.heavy
@each("seed", (4,), (6, 7, 13, 41, 48, 54), size=2)
@pytest.mark.parametrize("headroom", [0.1, 0.3])
def test_the_search_equals_brute_force_with_headroom(seed: int, headroom: float) -> None:
    drawn = instance(seed)
    _equals_brute_force(problem_of(drawn.job.model_copy(update={"memory_headroom_fraction": headroom})))


@each("seed", (), (1, 2, 9, 12, 37, 58), size=1)
def test_so_does_that_of_two_types(seed: int) -> None:
    drawn = mixed_instance(seed)
    _equals_brute_force(problem_of(drawn.job.model_copy(update={"memory_headroom_fraction": 0.1})))


def _equals_brute_force(problem: Problem) -> None:
    oracle, found = exhaustive(problem), search(problem, time_limit_s=600, gap_tolerance=0.0)
    assert (found.best is None) == (oracle.decision is None)
    if found.best is not None:
        assert found.best.step_s == pytest.approx(oracle.step_s, rel=1e-9)
        assert found.bound_s <= oracle.step_s * (1 + 1e-12)


def test_headroom_that_no_candidate_needs_changes_nothing(full: Plan) -> None:
    plan = sa.plan(job_of(0.01), gap_tolerance=0.0, alternatives=False)
    assert fullest(full) < 0.99
    assert plan.decision == full.decision
    assert plan.report.headroom is not None


def test_settings_that_take_it_are_evaluated_and_say_so(full: Plan) -> None:
    job = job_of(1 - fullest(full) + 0.001)
    taken = sa.evaluate((job, full.decision))
    assert taken.estimated.step_s == pytest.approx(full.estimated.step_s)
    assert any("memory_headroom_fraction asks for" in note for note in taken.report.notes)
    assert not any("does not fit" in note for note in taken.report.notes)
    verify(taken)


def test_verification_counts_the_headroom_of_a_plan(full: Plan) -> None:
    job = job_of(1 - fullest(full) + 0.001)
    taken = sa.evaluate((job, full.decision))
    claimed = taken.model_copy(update={"report": taken.report.model_copy(update={"status": "gap_tolerance"})})
    with pytest.raises(VerificationError, match=r"V3: stage \d leaves .* free, memory_headroom_fraction asks for"):
        verify(claimed)
    less = taken.memory[0].model_copy(update={"headroom_bytes": 0.0})
    with pytest.raises(VerificationError, match="V3: headroom_bytes of stage 0"):
        verify(taken.model_copy(update={"memory": (less, *taken.memory[1:])}))


def test_where_only_the_headroom_stands_in_the_way_the_way_out_is_named() -> None:
    with pytest.raises(InfeasibleError, match="memory_headroom_fraction: 0"):
        sa.plan(job_of(0.98))


def test_the_report_says_what_it_costs(full: Plan) -> None:
    from rich.console import Console

    console = Console(width=300, record=True, file=io.StringIO())
    console.print(proof(sa.plan(job_of(1 - fullest(full) + 0.001), gap_tolerance=0.0, alternatives=False)))
    said = console.export_text()
    assert "memory_headroom_fraction" in said and "of the step at most" in said
