"""Interleaved schedules whose micro-batches are no multiple of pp are searched, bounded, verified and estimated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import scaleacross as sa
from cases import each
from instances import instance, mixed_instance, plain_job
from oracles.exhaustive import exhaustive
from scaleacross.api.problems import problem_of as resolved
from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import refusal
from scaleacross.solvers.bounds import critical_path_bound
from scaleacross.solvers.every_placement import placer_on
from scaleacross.solvers.joint import search
from scaleacross.solvers.pools import pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.parallelism import Degrees, PipelineChoice, ScheduleName
from scaleacross.spec.plan import Decision
from scaleacross.workloads.problem import Problem, problem_of

IN_CHUNKS: tuple[ScheduleName, ...] = ("Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS", "ZBVZeroBubble")


def in_chunks(drawn: Problem, batch: int) -> Problem:
    """The problem with multi-chunk schedules only.

    The only powers of two that divide its batch are 1 and 2.
    """
    update = {
        "schedules": IN_CHUNKS,
        "num_chunks": (2, 3),
        "global_batch_sequences": batch,
        "micro_batch_sequences": (1,),
    }
    return problem_of(drawn.job.model_copy(update=update))


@pytest.mark.heavy
@each("seed", (13, 23, 41), (0, 7, 8, 11, 38, 50, 57), size=3)
@pytest.mark.parametrize("batch", [6, 10])
def test_no_bound_exceeds_a_step_of_unequal_rounds(seed: int, batch: int) -> None:
    """For every candidate with m < pp or m no multiple of pp, base ≤ coarse ≤ tight ≤ exact."""
    problem, tried = in_chunks(instance(seed), batch), 0
    fastest = np.inf
    for pool in pools(problem.topology):
        placer = placer_on(pool, problem.job, problem.profile)
        space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
        for partials in space.partials(Refusals()):
            partials = partials.take(np.flatnonzero(partials.num_micro_batches % partials.pp))
            for row in range(0, len(partials), 3):
                one = partials.take(np.array([row]))
                base_s = placer.bounder.partial_bound_s(one)[0]
                coarse = placer.bounder.coarse(space.expand(one, Refusals()))
                tight = placer.bounder.tight(coarse)
                assert (base_s <= coarse.bound_s * (1 + 1e-12)).all()
                assert (coarse.bound_s <= tight.bound_s * (1 + 1e-12)).all()
                priced = tight.take(np.array([0]))
                placed = placer.place(priced.candidates, priced.work)
                if placed is not None:
                    exact_s = float(priced.free_s[0] + placed.communication_s)
                    assert priced.bound_s[0] <= exact_s * (1 + 1e-12), priced.candidates.decision(0)
                    assert placer.bounder.partial_floor_s(one)[0] <= exact_s * (1 + 1e-12), priced.candidates.decision(
                        0
                    )
                    fastest, tried = min(fastest, exact_s), tried + 1
    assert tried >= 3
    assert critical_path_bound(problem).step_s <= fastest * (1 + 1e-12)


@pytest.mark.heavy
def test_one_micro_batch_passes_all_stages_with_all_that_it_waits_for() -> None:
    """The bound includes the path of one micro-batch through all stages, with its exposed communication.

    With fewer micro-batches than ranks this path is most of the step. Without it the bound was 58 % of the step.
    """
    pins = ("degrees.tp=4", "degrees.cp=1", "degrees.pp=2", "degrees.dp_shard=256", "degrees.dp_replicate=60")
    more = ("degrees.ep=128", "schedules=[Interleaved1F1B]", "num_chunks=[7]", "micro_batch_sequences=[1]")
    problem = resolved("deepseek_v3_region", (*pins, *more, "shard=[optimizer]", "recompute=[none]"))
    pool = pools(problem.topology)[0]
    placer = placer_on(pool, problem.job, problem.profile)
    space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
    (partials,) = space.partials(Refusals())
    priced = placer.bounder.tight(placer.bounder.coarse(space.expand(partials, Refusals())))
    placed = placer.place(priced.candidates, priced.work)
    assert len(priced.bound_s) == 1 and placed is not None
    assert 0.9 <= priced.bound_s[0] / (priced.free_s[0] + placed.communication_s) <= 1


@each("seed", (52,), (13, 23, 41), size=1)
def test_the_search_finds_the_optimum_of_brute_force(seed: int) -> None:
    problem = in_chunks(instance(seed), 6)
    oracle, found = exhaustive(problem), search(problem, time_limit_s=600, gap_tolerance=0.0)
    assert found.best is not None and found.bound_violation_s <= 1e-12
    assert found.best.step_s == pytest.approx(oracle.step_s, rel=1e-9)
    assert found.bound_s <= found.best.step_s


@each("seed", (), (1, 9, 14), size=1)
def test_unequal_shares_may_have_any_legal_rounds(seed: int) -> None:
    drawn = mixed_instance(seed)
    update = {"schedules": ("Interleaved1F1B",), "num_chunks": (2,), "global_batch_sequences": 14}
    problem = problem_of(drawn.job.model_copy(update=update))
    oracle, found = exhaustive(problem), search(problem, time_limit_s=600, gap_tolerance=0.0)
    assert (found.best is None) == (oracle.decision is None)
    if found.best is not None:
        assert found.best.step_s == pytest.approx(oracle.step_s, rel=1e-9)
        assert found.bound_s <= oracle.step_s * (1 + 1e-12)


def decided(
    pp: int, m: int, v: int, schedule: ScheduleName = "Interleaved1F1B", **changes: Any
) -> tuple[Any, Decision]:
    job = plain_job(4, global_batch_sequences=m, schedules=[schedule], num_chunks=[v], **changes)
    pipeline = PipelineChoice(schedule=schedule, num_chunks=v)
    return job, Decision(degrees=Degrees(tp=2, pp=pp), pipeline=pipeline, recompute="none", shard="none")


@pytest.mark.parametrize(
    ("pp", "m", "v"), [(4, 6, 2), (4, 10, 2), (3, 5, 3), (3, 4, 2), (4, 15, 2), (4, 3, 2), (4, 2, 2)]
)
def test_the_step_time_is_that_of_the_simulation(pp: int, m: int, v: int) -> None:
    """Step times are within 2 % of the simulation, as for whole rounds.

    Another number of rounds, or one more micro-batch, would be off by 10 % or more.
    """
    plan = sa.evaluate(decided(pp, m, v, sequence_length=16384))
    assert plan.num_micro_batches == m
    assert plan.estimated.step_s == pytest.approx(sa.simulate(plan).step_s, rel=0.02)


def test_a_plan_may_beat_those_of_whole_rounds_only() -> None:
    """A plan with partial rounds can be the fastest.

    Six micro-batches on four stages interleave in one round of six. If m had to be a multiple of pp, only 1F1B would
    remain.
    """
    job = plain_job(
        4,
        global_batch_sequences=6,
        recompute="none",
        shard="none",
        num_chunks=[1, 2],
        degrees={"pp": 4, "tp": 2, "cp": 1},
    )
    plan = sa.plan(job, gap_tolerance=0.0, simulated=False, alternatives=False)
    assert plan.decision.pipeline.schedule == "Interleaved1F1B" and plan.num_micro_batches % plan.degrees.pp
    others = sa.plan(job, overrides=["schedules=[GPipe, 1F1B]"], gap_tolerance=0.0, simulated=False, alternatives=False)
    assert plan.estimated.step_s < others.estimated.step_s
    assert plan.report.bound_s <= plan.estimated.step_s


def test_what_no_generator_accepts_is_refused_everywhere() -> None:
    reason = refusal("Interleaved1F1B", 4, 9, 2)
    assert reason is not None
    with pytest.raises(InputError, match="rounds"):
        sa.evaluate(decided(4, 9, 2))
    job, _ = decided(4, 9, 2, degrees={"pp": 4, "dp_shard": 1, "dp_replicate": 1})
    refusals = Refusals()
    assert not list(SearchSpace(job, problem_of(job).profile, 16, 4).partials(refusals))
    assert any(rule.startswith("R7") for rule in refusals.counts)
