"""A job without a plan gets one message: the shortage, the rules that refused it, and changes that work."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

import scaleacross as sa
from cases import each
from instances import accelerator, moe, plain_job, plain_topology
from oracles import exhaustive
from scaleacross.solvers.infeasible import _relaxations, closest_candidate
from scaleacross.solvers.joint import search
from scaleacross.solvers.pools import pools
from scaleacross.spec.job import Job
from scaleacross.units import human_bytes
from scaleacross.verification import recompute
from scaleacross.workloads.problem import problem_of


def small_memory(mib: float) -> dict[str, Any]:
    """One building of 8 accelerators with 16 MiB reserved on each."""
    return plain_topology(2, accelerator=accelerator(random.Random(0), "small", mib))


def message(job: Job) -> str:
    with pytest.raises(sa.InfeasibleError) as caught:
        sa.plan(job)
    assert caught.value.exit_code == 3
    return str(caught.value)


TOO_LARGE = [
    plain_job(topology=small_memory(250), recompute="none", micro_batch_sequences=8),
    plain_job(topology=small_memory(250), recompute="none", micro_batch_sequences=4, degrees={"pp": 1, "cp": 1}),
    plain_job(topology=small_memory(70), shard="none", recompute="full", degrees={"tp": 1}),
    plain_job(topology=small_memory(100), workload=moe(), recompute="none", num_accelerators=4),
    plain_job(topology=small_memory(17)),
]


@pytest.mark.heavy
@pytest.mark.parametrize("job", TOO_LARGE, ids=range(len(TOO_LARGE)))
def test_too_large_names_the_closest_candidate(job: Job) -> None:
    said = message(job)
    problem = problem_of(job)
    closest = closest_candidate(problem)
    assert closest is not None
    number = re.search(r"No plan fits: ([\d,]+) candidates", said)
    assert number is not None
    every = [decision for pool in pools(problem.topology) for decision in exhaustive.candidates(problem, pool)]
    assert int(number[1].replace(",", "")) == len(every)
    assert str(closest.decision.degrees) in said
    assert f"{human_bytes(closest.needed_bytes)} of {human_bytes(closest.capacity_bytes)} per accelerator" in said
    assert f"{human_bytes(closest.needed_bytes - closest.capacity_bytes)} too much" in said


def test_the_closest_candidate_is_the_closest() -> None:
    """The named candidate is the one closest to fitting, by the memory that plans state for every decision."""
    problem = problem_of(TOO_LARGE[1])
    [pool] = pools(problem.topology)
    needs = {}
    for decision in exhaustive.candidates(problem, pool):
        placed = next(exhaustive.placements(pool, decision.degrees), None)
        if placed is not None:
            cost = recompute(problem, decision.model_copy(update={"placement": placed}))
            needs[decision.model_dump_json()] = max(s.total_bytes - s.reserved_bytes for s in cost.memory)
    closest = closest_candidate(problem)
    assert closest is not None
    assert closest.needed_bytes == pytest.approx(min(needs.values()), rel=1e-12)
    assert needs[closest.decision.model_dump_json()] == pytest.approx(closest.needed_bytes, rel=1e-12)


@pytest.mark.heavy
@each("number", (0,), range(5), size=1)
def test_every_way_out_that_is_named_gives_a_plan_and_no_other_does(number: int) -> None:
    job = TOO_LARGE[number]
    said = message(job)
    named = 0
    for label, relaxed in _relaxations(problem_of(job), 0):
        if label in said:
            named += 1
            assert _plans(relaxed)
        else:
            assert search(problem_of(relaxed), time_limit_s=600).best is None
    assert named or "nor do more hosts: use a smaller model" in said
    assert bool(named) == (job is not TOO_LARGE[-1])


@pytest.mark.heavy
def test_the_least_multiple_of_the_hosts_is_a_way_out() -> None:
    changes: dict[str, Any] = {"degrees": {"cp": 1}, "global_batch_sequences": 2}
    way_out = "3 times the hosts in every building (24 accelerators; equal stages do not fit on 16)"
    assert f"Ways out: {way_out}." in message(plain_job(topology=small_memory(40), **changes))
    for hosts, fits in ((4, False), (6, True)):
        there = plain_topology(hosts, accelerator=accelerator(random.Random(0), "small", 40))
        closest = closest_candidate(problem_of(plain_job(topology=there, **changes)))
        assert closest is not None
        assert (closest.needed_bytes <= closest.capacity_bytes) == fits
    assert "times the hosts" not in message(plain_job(topology=small_memory(40), num_accelerators=8, **changes))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changes", "rule", "way_out"),
    [
        ({"degrees": {"tp": 3}}, "R1", "leave degrees.tp free"),
        ({"degrees": {"cp": 3}}, "R2", "leave degrees.cp free"),
        ({"degrees": {"pp": 9}}, "R3", "leave degrees.pp free"),
        ({"micro_batch_sequences": 5}, "R4", "allow every micro_batch_sequences (1, 2, 4, 8)"),
        ({"shard": "none", "degrees": {"ep": 2}}, "R8", "allow every shard (none, optimizer, parameters)"),
        ({"num_accelerators": 6}, "R6", "leave num_accelerators free"),
        ({"schedules": "Interleaved1F1B", "num_chunks": 8, "degrees": {"pp": 4}}, "R3", "leave degrees.pp free"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_nothing_legal_names_the_rules(changes: dict[str, Any], rule: str, way_out: str) -> None:
    job = plain_job(2, workload=moe(), **changes)
    said = message(job)
    assert "no combination of degrees is legal" in said
    assert re.search(rf"Refused: .*\b{rule} .*\(\d+\)", said)
    if way_out in dict(_relaxations(problem_of(job), 0)):
        assert (way_out in said) == _plans(dict(_relaxations(problem_of(job), 0))[way_out])
    assert "Ways out" in said


def _plans(job: Job) -> bool:
    try:
        sa.plan(job, gap_tolerance=0.9, alternatives=False, simulated=False)  # any plan; ``plan`` verifies it
    except sa.InfeasibleError:
        return False
    return True


@pytest.mark.slow
def test_no_whole_hosts_in_any_building() -> None:
    """Twelve accelerators are whole hosts of 4 or of 6, but neither building holds twelve."""
    topology = plain_topology(2, 1)
    topology["regions"][0]["buildings"][1]["accelerators_per_host"] = 6
    pins = {"schedules": "1F1B", "recompute": "none", "micro_batch_sequences": 1, "shard": "none"}
    sizes = {"num_accelerators": 12, "global_batch_sequences": 12, "sequence_length": 6144}
    said = message(plain_job(topology=topology, **sizes, **pins))
    assert "No placement holds any of the" in said
    assert "leave num_accelerators free" in said
