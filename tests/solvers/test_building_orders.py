"""The search proposes orders of the buildings along a pipeline, and the simulation chooses among them."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

import scaleacross as sa
from instances import accelerator, plain_building, plain_job, plain_trunk
from scaleacross.api import refereeing, verify
from scaleacross.api.problems import problem_of
from scaleacross.cost_models.failures import replicas_lost
from scaleacross.solvers.building_orders import MAX_ORDERED, other_orders
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import Decision
from scaleacross.workloads.problem import Problem

SLOWEST_PP = ("dp_replicate", "tp", "cp", "dp_shard", "pp")


def chained(*names: str, gbyte_per_s: float = 0.5, **changes: Any) -> dict[str, Any]:
    """Buildings of two hosts, listed by name. Equal links join them in a chain in the given order."""
    return {
        "name": "chain",
        "regions": [{"name": "r", "buildings": [plain_building(name, 2, **changes) for name in sorted(names)]}],
        "trunks": [plain_trunk(*pair, gbyte_per_s) for pair in pairwise(names)],
    }


def problem_on(topology: dict[str, Any], **changes: Any) -> Problem:
    return problem_of(plain_job(topology=topology, **changes), ())


def decided(names: str, degrees: Degrees, *axis_order: str, **pipeline: Any) -> Decision:
    allocation = tuple(BuildingShare(building=name, num_accelerators=8) for name in names)
    chosen = PipelineChoice(**({"schedule": "1F1B", "num_chunks": 1, "micro_batch_sequences": 1} | pipeline))
    order = axis_order or SLOWEST_PP
    return Decision(
        degrees=degrees,
        pipeline=chosen,
        recompute="none",
        shard="optimizer",
        placement=Placement.model_validate({"axis_order": order, "fill": allocation}),
    )


def orders_of(problem: Problem, decision: Decision) -> list[str]:
    found = [one.placement for one in other_orders(problem, decision)]
    return ["".join(share.building for share in one.fill) for one in found if one is not None]


def test_a_chain_is_tried_from_end_to_end() -> None:
    problem = problem_on(chained("c", "a", "d", "b"))
    assert orders_of(problem, decided("abcd", Degrees(pp=4, dp_shard=8))) == ["bdac"]  # cadb takes as long
    assert orders_of(problem, decided("cadb", Degrees(pp=4, dp_shard=8))) == []


def test_the_reversal_is_tried_where_shares_differ() -> None:
    problem = problem_on(chained("c", "a", "d", "b"))
    found = decided("abcd", Degrees(pp=7, dp_shard=4))
    assert found.placement is not None
    allocation = (*found.placement.fill[:3], BuildingShare(building="d", num_accelerators=4))
    found = found.model_copy(update={"placement": found.placement.model_copy(update={"fill": allocation})})
    assert sorted(orders_of(problem, found)) == ["bdac", "cadb"]


def test_pipelines_inside_buildings_have_no_other_order() -> None:
    problem = problem_on(chained("c", "a", "d", "b"))
    assert (
        orders_of(
            problem,
            decided("abcd", Degrees(pp=2, dp_shard=4, dp_replicate=4), "tp", "cp", "dp_shard", "pp", "dp_replicate"),
        )
        == []
    )
    assert orders_of(problem, decided("abcd", Degrees(dp_shard=32))) == []
    assert orders_of(problem, decided("ab", Degrees(pp=2, dp_shard=8))) == []


def test_messages_that_cross_count_and_not_which_buildings_follow_each_other() -> None:
    """The number of messages that cross buildings decides, not which buildings are adjacent in the order.

    Pipelines end inside a building. One link, between the first and the last building, should carry no message.
    """
    thin = {**chained("a", "b", "c", gbyte_per_s=1.0)}
    thin["trunks"] = [plain_trunk("a", "b", 0.2), plain_trunk("b", "c", 1.0), plain_trunk("a", "c", 1.0)]
    degrees, order = Degrees(cp=2, pp=3, dp_shard=4), ("tp", "dp_replicate", "cp", "pp", "dp_shard")
    looped = decided("abc", degrees, *order, schedule="Interleaved1F1B", num_chunks=2)
    assert orders_of(problem_on(thin), looped)[0] in ("acb", "bca")


def test_accelerator_types_keep_their_places() -> None:
    topology = chained("c", "a", "d", "b")
    for building in topology["regions"][0]["buildings"][:1]:  # a
        building["accelerator"] = accelerator(random.Random(1), "other", 1000.0)
    found = orders_of(problem_on(topology), decided("abcd", Degrees(pp=4, dp_shard=8)))
    assert found and all(order[0] == "a" for order in found)


def test_failure_domains_are_kept() -> None:
    topology = chained("c", "a", "d", "b")
    wanted = {"level": "building", "max_replicas_lost": 8}
    decision = decided("abcd", Degrees(pp=4, dp_shard=8))
    problem = problem_on(topology, failure_domains=wanted)
    for one in other_orders(problem, decision):
        assert one.placement is not None
        assert (
            replicas_lost(problem.topology, one.placement.fill, one.degrees, one.placement.axis_order, "building") <= 8
        )
    assert orders_of(problem_on(topology, failure_domains=wanted | {"max_replicas_lost": 7}), decision) == []


def test_many_buildings_are_tried_in_chains() -> None:
    names = "hbgcfade"
    assert len(names) > MAX_ORDERED
    assert set(orders_of(problem_on(chained(*names)), decided("abcdefgh", Degrees(pp=8, dp_shard=8)))) & {
        names,
        names[::-1],
    }


@pytest.mark.heavy
def test_a_plan_is_the_order_of_its_fastest_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = chained("b1", "b0", "b2")
    topology["trunks"] = [plain_trunk("b1", "b0", 0.5), plain_trunk("b0", "b2", 1.0, 500.0)]
    degrees = {"tp": 1, "cp": 2, "pp": 3, "dp_shard": 2, "dp_replicate": 2}
    job = plain_job(topology=topology, degrees=degrees, schedules=["Interleaved1F1B"], num_chunks=[2])
    found = sa.plan(job, work_limit=60, alternatives=False)
    verify(found)
    with monkeypatch.context() as patch:
        patch.setattr(refereeing, "other_orders", lambda *_: [])
        before = sa.plan(job, work_limit=60, alternatives=False)
    assert found.cost.step_s < 0.7 * before.cost.step_s
    assert found.cost.step_s == pytest.approx(sa.simulate(found).step_s, rel=1e-9)
    placed = [one.decision.placement for one in found.report.finalists]
    assert placed[0] == found.decision.placement and before.decision.placement in placed
