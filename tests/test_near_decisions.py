"""Where a limit ends the search, no neighbour of the plan is faster in simulation."""

from __future__ import annotations

from typing import Any

import pytest

import scaleacross as sa
from instances import plain_job, plain_topology, plain_trunk
from scaleacross.api import near_decisions as near_module
from scaleacross.api.near_decisions import near_decisions
from scaleacross.api.refereeing import TIE
from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.errors import InputError
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.spec.parallelism import GRID_AXES, Degrees, PipelineChoice
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import Decision, Plan
from scaleacross.workloads.problem import problem_of

TOPOLOGY = plain_topology(4, 2) | {"trunks": [plain_trunk("b0", "b1")]}


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan after four step times; the search's own best has cp 4 and dp_shard 2, and a neighbour is faster."""
    return sa.plan(plain_job(topology=TOPOLOGY), work_limit=4, alternatives=False)


def test_a_faster_neighbour_becomes_the_plan(plan: Plan) -> None:
    problem = problem_of(plan.job)
    near = [one for seconds, one in near_decisions(problem, plan.decision) if seconds <= TIE * plan.estimated.step_s]
    assert near
    for one in near:
        other = sa.evaluate((plan.job, with_network(problem, one).decision))
        assert other.cost.step_s >= plan.cost.step_s * (1 - 1e-9)
    assert plan.decision == plan.report.finalists[0].decision
    sa.verify(plan)


def test_neighbours_are_allowed_and_differ_in_one_choice(plan: Plan) -> None:
    fixed = {"degrees": {"tp": [1, 2]}, "recompute": ["none", "full"], "micro_batch_sequences": 1}
    problem = problem_of(plain_job(topology=TOPOLOGY, **fixed))
    near = list(near_decisions(problem, plan.decision))
    assert {_changed(plan.decision, one) for _, one in near} > {("degrees",), ("recompute",)}
    assert {one.degrees.tp for _, one in near} == {1, 2}
    assert {one.recompute for _, one in near} == {"none", "full"}
    assert {one.pipeline for _, one in near} == {plan.decision.pipeline}
    assert {one.degrees.world_size for _, one in near} == {plan.degrees.world_size}
    for seconds, one in near:
        assert seconds <= with_network(problem, one).cost.cost.step_s * (1 + 1e-9)
        sa.evaluate((problem.job, one))


def test_replicas_that_become_shards_shard_their_states() -> None:
    """Without ranks to shard over nothing is sharded, and with them something is."""
    whole = Decision(
        degrees=Degrees(dp_replicate=8),
        pipeline=PipelineChoice(schedule="1F1B"),
        recompute="none",
        shard="none",
        placement=Placement(axis_order=GRID_AXES, fill=(BuildingShare(building="b0", num_accelerators=8),)),
    )
    near = [one for _, one in near_decisions(problem_of(plain_job(topology=TOPOLOGY)), whole)]
    assert {one.shard for one in near if one.degrees.dp_shard > 1} == {"optimizer", "parameters"}
    assert {one.shard for one in near if one.degrees.dp_shard * one.degrees.cp == 1} == {"none"}


def test_neighbours_leave_the_headroom_free(plan: Plan) -> None:
    """A neighbour that fits only without the headroom is left out."""
    every = [one for _, one in near_decisions(problem_of(plan.job), plan.decision)]
    filled = {one.model_dump_json(): _filled(plan, one) for one in every}
    shares = sorted(set(filled.values()))
    most = sum(shares[len(shares) // 2 - 1 : len(shares) // 2 + 1]) / 2
    less = problem_of(plan.job.model_copy(update={"memory_headroom_fraction": 1 - most}))
    fitting = {one.model_dump_json() for _, one in near_decisions(less, plan.decision)}
    assert fitting == {name for name, share in filled.items() if share <= most}
    assert 0 < len(fitting) < len(filled)


def test_a_neighbour_that_cannot_be_timed_is_left_out(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_small(*given: Any, **network: Any) -> PlanCost:
        if given[3].pipeline.micro_batch_sequences > 1:
            raise InputError("too long")
        return plan_cost(*given, **network)

    problem, present = problem_of(plan.job), plan.decision
    every = {one.pipeline.micro_batch_sequences for _, one in near_decisions(problem, present)}
    monkeypatch.setattr(near_module, "plan_cost", only_small)
    assert {one.pipeline.micro_batch_sequences for _, one in near_decisions(problem, present)} == {1} < every


def _filled(plan: Plan, decision: Decision) -> float:
    """Largest share of a stage's memory that a decision fills."""
    return max(stage.total_bytes / stage.capacity_bytes for stage in sa.evaluate((plan.job, decision)).memory)


def _changed(decision: Decision, other: Decision) -> tuple[str, ...]:
    """Names of the fields that differ, but for the network."""
    return tuple(name for name, value in decision if name != "network" and value != getattr(other, name))
