"""The drivers of gathers and all-to-alls are optimal among all choices on random plans, by whole step times.

They are verified and simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import pytest

import scaleacross as sa
from cases import each
from instances import random_job
from oracles.brute_force import equals_brute_force
from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.spec.network_choice import MOVES, CommunicatorChoice, Driver
from scaleacross.spec.plan import Decision, Plan
from scaleacross.workloads.problem import problem_of

DRIVERS: tuple[Driver, ...] = ("multiprocessors", "copy_engines", "host")
HOST = {"memory_gib": 1024.0, "memory_bandwidth_gbyte_per_s": 800.0, "link_bandwidth_gbyte_per_s": 55.0}
ENOUGH = {"num_multiprocessors": 132, "collective_multiprocessors": 24}


def driven_job(seed: int, drivers: tuple[Driver, ...] = DRIVERS) -> sa.Job:
    """A random job with many gathers and overlapped all-to-alls, on accelerators that lose much computation to kernels."""
    job = random_job(seed)
    topology = job.model_dump()["topology"]
    for region in topology["regions"]:
        for building in region["buildings"]:
            building["host"] = HOST
            building["accelerator"] |= ENOUGH
    network = job.network.model_copy(update={"drivers": drivers})
    shard, experts = ("optimizer", "parameters"), job.experts.model_copy(update={"overlap_fraction": 0.8})
    return job.model_copy(update={"topology": topology, "network": network, "shard": shard, "experts": experts})


@cache
def planned(seed: int) -> Plan | None:
    """The plan of a seed; None if nothing fits."""
    try:
        return sa.plan(driven_job(seed), alternatives=False)
    except sa.InfeasibleError:
        return None


def otherwise(decision: Decision) -> Iterator[tuple[CommunicatorChoice, ...]]:
    """All networks that differ from the plan in drivers only."""
    chosen = decision.network or ()
    ways = [DRIVERS if one.op in MOVES else ("multiprocessors",) for one in chosen]
    for drivers in product(*ways):
        yield tuple(one.model_copy(update={"driver": driver}) for one, driver in zip(chosen, drivers, strict=True))


@pytest.mark.heavy
@each("seed", (10, 30), (2, 4, 7, 9, 12, 16, 19, 26, 29, 31, 116, 119, 133))
def test_no_other_driver_makes_a_shorter_step(seed: int) -> None:
    """No other driver gives a shorter step, by brute force. The stated bound is below all of these step times."""
    plan = planned(seed)
    if plan is None:
        return
    problem = problem_of(plan.job)
    steps = []
    for network in otherwise(plan.decision):
        decision = plan.decision.model_copy(update={"network": network})
        steps.append(plan_cost(problem.job, problem.profile, problem.topology, decision).cost.step_s)
    estimated = (plan.estimate or plan.cost).step_s
    assert estimated <= min(steps) * (1 + 1e-9)
    assert plan.network is None or plan.network.bound_s <= min(steps) * (1 + 1e-9)


@each("seed", (10,), (2, 4, 7, 9, 12, 16, 19, 26, 29, 31, 116, 119), heavy=(30,))
def test_more_drivers_make_a_plan_slower_by_the_gap_that_it_states_at_most(seed: int) -> None:
    """More allowed drivers make a plan slower by no more than its stated gap.

    The search assumes the kernels' time and the fewest multiprocessors of any driver.
    """
    plan = planned(seed)
    if plan is None:
        return
    kernels = sa.plan(driven_job(seed, ("multiprocessors",)), alternatives=False)
    bound_s = (plan.estimate or plan.cost).step_s * (1 - plan.report.gap)
    assert bound_s <= (kernels.estimate or kernels.cost).step_s * (1 + 1e-9)


@each("seed", (10,), (19, 54, 116))
def test_the_search_finds_the_optimum_of_brute_force(seed: int) -> None:
    """The search equals brute force over all degrees, placements and drivers."""
    equals_brute_force(problem_of(driven_job(seed)))


def engines(**network: object) -> Plan:
    """The bundled job of one building with sharded parameters."""
    stated = [f"network.{name}={value}" for name, value in network.items()]
    return sa.plan(
        "configs/jobs/llama3_8b_one_building.yaml", overrides=["shard=parameters", *stated], alternatives=False
    )


@pytest.mark.heavy
def test_copy_engines_give_computation_back_and_are_explained() -> None:
    """Copy engines free multiprocessors, and the plan explains the choice.

    The same plan with kernels is slower in the simulation. V9 refuses drivers that the job excludes or that cannot run
    the operation.
    """
    plan = engines(drivers='["multiprocessors","copy_engines"]')
    moved = [one for one in plan.decision.network or () if one.op == "all_gather"]
    assert moved and all(one.driver == "copy_engines" for one in moved)
    reason = next(term.driver for term in plan.network.terms if term.op == "all_gather")
    assert (reason.driver, reason.held_fraction) == ("copy_engines", pytest.approx(1 / 132))
    assert reason.kernels_held_fraction == pytest.approx(16 / 132)
    by_kernels = tuple(one.model_copy(update={"driver": "multiprocessors"}) for one in plan.decision.network)
    kernels = sa.evaluate((plan.job, plan.decision.model_copy(update={"network": by_kernels})))
    assert (plan.estimate or plan.cost).step_s < (kernels.estimate or kernels.cost).step_s
    assert sa.simulate(plan).step_s < sa.simulate(kernels).step_s
    wrong = tuple(one.model_copy(update={"driver": "host"}) for one in plan.decision.network)
    with pytest.raises(sa.InputError) as refused:
        sa.evaluate((plan.job, plan.decision.model_copy(update={"network": wrong})))
    said = str(refused.value)
    assert "driven by host; the job allows multiprocessors, copy_engines" in said
    assert "adds nothing up" in said


EXPERTS = {
    "name": "experts",
    "workload": "mixtral-8x22b",
    "topology": "one_building",
    "num_accelerators": 112,
    "sequence_length": 4096,
    "global_batch_sequences": 512,
    "degrees": {"tp": 2, "pp": 7, "ep": 4},
}


def exchanging(overlap_fraction: float, *drivers: Driver) -> Plan:
    """The plan of a model with experts, of whose all-to-alls ``overlap_fraction`` overlaps with another micro-batch."""
    own = {"experts": {"overlap_fraction": overlap_fraction}, "network": {"drivers": drivers or ("multiprocessors",)}}
    return sa.plan(sa.Job.model_validate(EXPERTS | own), alternatives=False)


def step_s(plan: Plan) -> float:
    """Estimated step time of a plan, s."""
    return (plan.estimate or plan.cost).step_s


def tokens_by(plan: Plan) -> Driver:
    """The driver of dispatch and combine."""
    return next(one.driver for one in plan.decision.network or () if one.op == "all_to_all")


@pytest.mark.heavy
def test_copy_engines_move_tokens_that_overlap_with_computation() -> None:
    """Copy engines move tokens whose all-to-alls overlap with computation.

    Kernels would take multiprocessors from the overlapped micro-batch. Estimate and simulation lose equal time.
    All-to-alls without overlap keep kernels.
    """
    kernels, engines = exchanging(0.9), exchanging(0.9, "multiprocessors", "copy_engines")
    assert (tokens_by(kernels), tokens_by(engines)) == ("multiprocessors", "copy_engines")
    saved_s, timed_s = step_s(kernels) - step_s(engines), sa.simulate(kernels).step_s - sa.simulate(engines).step_s
    assert saved_s > 0.002 * step_s(kernels)
    assert timed_s == pytest.approx(saved_s, rel=0.15)
    term = next(one for one in engines.network.terms if one.op == "all_to_all")
    assert term.driver.driver == "copy_engines" and term.time_s >= term.driver.kernels_s
    assert engines.network.bound_s <= step_s(engines) <= step_s(exchanging(0.0)) * (1 + 1e-9)
    assert tokens_by(exchanging(0.0, "multiprocessors", "copy_engines")) == "multiprocessors"
