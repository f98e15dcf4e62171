"""Steps of many micro-batches, extrapolated from simulations of few, equal simulations of all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import instances
import scaleacross as sa
from scaleacross.schedules.pipeline import chosen
from scaleacross.simulation import steady
from scaleacross.simulation.step_run import Disturbance, StepRun, simulate_step
from scaleacross.spec.parallelism import Degrees, PipelineChoice, ScheduleName, ShardLevel
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import Decision, Plan
from scaleacross.workloads.problem import problem_of

REPEATS = [
    ("1F1B", 1, "none"),
    ("1F1B", 1, "parameters"),
    ("Interleaved1F1B", 2, "optimizer"),
    ("ZBH1", 1, "optimizer"),
    ("ZBVZeroBubble", 2, "optimizer"),
    ("DualPipeV", 2, "optimizer"),
]

ONE_PACE = Placement(
    axis_order=("cp", "dp_shard", "tp", "dp_replicate", "pp"),
    fill=(
        BuildingShare(building="b0", num_accelerators=4),
        BuildingShare(building="b1", num_accelerators=12),
    ),
)
"""The first stage of two replicas is in one building, all others in the other. Both replicas keep the same pace."""


def plan_of(
    schedule: ScheduleName, num_chunks: int, shard: ShardLevel, pp: int = 4, count: int = 242, **changes: Any
) -> Plan:
    """A plan of replicas of ``pp`` stages over two unequal buildings, with ``count`` micro-batches each."""
    fields = {"sequence_length": 8192, "global_batch_sequences": 2 * count, "schedules": [schedule]}
    job = instances.plain_job(1, pp - 1, **fields | changes)
    degrees = Degrees(tp=2, pp=pp, dp_shard=2 if shard != "none" else 1, dp_replicate=1 if shard != "none" else 2)
    pipeline = PipelineChoice(schedule=schedule, num_chunks=num_chunks)
    placement = ONE_PACE if shard == "none" else None
    decision = Decision(degrees=degrees, pipeline=pipeline, recompute="none", shard=shard, placement=placement)
    plan = sa.evaluate((job, decision))
    assert plan.num_micro_batches == count
    return plan


def simulated_few(plan: Plan, few: int) -> StepRun:
    return simulate_step(plan, problem_of(plan.job), Disturbance(micro_batches=few))


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Number of micro-batches of every simulation; None means all."""
    out: list[int | None] = []

    def counted(plan: Plan, problem: Any, unequal: Disturbance | None = None) -> StepRun:
        out.append(unequal.micro_batches if unequal else None)
        return simulate_step(plan, problem, unequal)

    monkeypatch.setattr(steady, "simulate_step", counted)
    return out


@pytest.mark.parametrize(
    ("schedule", "num_chunks", "shard"),
    [pytest.param(*one, marks=pytest.mark.heavy if at % 2 else ()) for at, one in enumerate(REPEATS)],
    ids=str,
)
def test_few_micro_batches_say_what_all_take(
    schedule: ScheduleName, num_chunks: int, shard: ShardLevel, counts: list[int | None]
) -> None:
    count = 240 if schedule.startswith("Interleaved") else 242
    plan = plan_of(schedule, num_chunks, shard, count=count, sequence_length=4096)
    problem = problem_of(plan.job)
    found, whole = steady.steady_step(plan, problem), simulate_step(plan, problem)
    assert found.step_s == pytest.approx(whole.step_s, rel=1e-9)
    assert found.components_s == pytest.approx(whole.components_s, rel=1e-6, abs=1e-9 * whole.step_s)
    assert sum(found.components_s.values()) == pytest.approx(found.step_s, rel=1e-9)
    assert None not in counts and sum(filter(None, counts)) < plan.num_micro_batches


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_what_does_not_repeat_is_played_whole(schedule: ScheduleName, counts: list[int | None]) -> None:
    """Steps that do not repeat are simulated in full.

    GPipe runs all forward passes, then all backward passes. The replicas of this 1F1B have different paces.
    """
    plan = plan_of(schedule, 1, "optimizer")
    assert steady.steady_step(plan, problem_of(plan.job)).step_s == simulate_step(plan, problem_of(plan.job)).step_s
    assert counts[-1] is None


def test_few_micro_batches_are_played_at_once(counts: list[int | None]) -> None:
    plan = plan_of("1F1B", 1, "optimizer", count=10)
    counts.clear()  # it was simulated when it was evaluated
    assert steady.steady_step(plan, problem_of(plan.job)).step_s == simulate_step(plan, problem_of(plan.job)).step_s
    assert counts == [None]


def test_one_late_task_of_the_steady_part_is_no_period() -> None:
    plan = plan_of("1F1B", 1, "none")
    step_run, whole = simulated_few(plan, 26), chosen(plan.decision.pipeline, 4, plan.num_micro_batches)
    found = steady.period_of(step_run, 26, whole)
    assert found is not None and found.seconds > 0
    line = step_run.timeline
    hidden = np.flatnonzero(line.arrival_s > 0.3 * line.total_s)
    late = line.arrival_s.copy()
    late[hidden] += 1e-3 * found.seconds * np.linspace(0, 1, len(hidden))
    assert steady.period_of(replace(step_run, timeline=replace(line, arrival_s=late)), 26, whole) is None


def test_a_schedule_that_goes_on_otherwise_is_no_period() -> None:
    """A schedule whose rows do not repeat has no period.

    The simulation repeats, but the rows of all micro-batches do not. One is another schedule, and one exchanges two
    passes.
    """
    plan = plan_of("1F1B", 1, "none")
    step_run, whole = simulated_few(plan, 26), chosen(plan.decision.pipeline, 4, plan.num_micro_batches)
    rows = [list(row) for row in whole.actions]
    rows[0][300], rows[0][302] = rows[0][302], rows[0][300]
    exchanged = replace(whole, actions=tuple(map(tuple, rows)))
    assert steady.period_of(step_run, 26, exchanged) is None
    assert steady.period_of(step_run, 26, chosen(PipelineChoice(schedule="ZBH1"), 4, plan.num_micro_batches)) is None


def test_a_first_stage_without_layers_is_simulated() -> None:
    decision = Decision(
        degrees=Degrees(tp=2, pp=4, dp_shard=2),
        pipeline=PipelineChoice(schedule="1F1B"),
        recompute="none",
        shard="parameters",
        layers_per_stage=((0,), (3,), (3,), (2,)),
    )
    plan = sa.evaluate((instances.plain_job(1, 3, sequence_length=8192, global_batch_sequences=32), decision))
    assert sa.simulate(plan).step_s == pytest.approx(plan.estimated.step_s, rel=0.1)
