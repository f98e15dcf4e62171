"""Step time and memory of a whole decision: the bundled two-building job with a placement by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from machines import accelerator, allocation, building, gpt, job, topology, trunk

from scaleacross.catalogue import load_job, resolve
from scaleacross.cost_models.plan_cost import PlanCost, layers_per_stage, plan_cost
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import Decision

PROBLEM = resolve(load_job("llama3_405b_two_buildings"))
ORDER = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
SHARES = allocation(("building-a", 10_000), ("building-b", 6_384))


def decision(**changes: Any) -> Decision:
    fields: dict[str, Any] = {
        "degrees": Degrees(tp=8, pp=16, dp_shard=128),
        "pipeline": PipelineChoice(schedule="Interleaved1F1B", num_chunks=4),
        "recompute": "selective",
        "shard": "optimizer",
        "placement": Placement(axis_order=ORDER, fill=SHARES),
    }
    return Decision(**(fields | changes))


def cost_of(of: Decision) -> PlanCost:
    return plan_cost(PROBLEM.job, PROBLEM.profile, PROBLEM.topology, of)


COST = cost_of(decision())


def numbers(value: object) -> list[float]:
    """All figures inside nested mappings and sequences."""
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers(part)]
    if isinstance(value, list | tuple):
        return [number for part in value for number in numbers(part)]
    return [float(value)] if isinstance(value, int | float) else []


def test_every_figure_is_finite_and_not_negative() -> None:
    parts = [COST.cost, *COST.memory, *COST.traffic, *COST.collectives]
    found = [number for part in parts for number in numbers(part.model_dump())]
    assert len(found) > 150
    assert all(math.isfinite(number) and number >= 0 for number in found)


def test_components_add_up_to_the_step() -> None:
    cost = COST.cost
    parts = cost.compute_s + cost.bubble_s + cost.optimizer_s + sum(cost.exposed_s.values())
    assert parts == pytest.approx(cost.step_s)
    assert cost.tokens_per_s == pytest.approx(8192 * 2048 / cost.step_s)
    # 6 FLOP per parameter but the embedding table, and causal attention: 6 · layers · heads · 128 · s
    flop = 6 * (405_853_388_800 - 128_256 * 16_384) + 6 * 126 * 128 * 128 * 8192
    assert cost.model_flop_per_s == pytest.approx(flop * 8192 * 2048 / cost.step_s / 16_384, rel=1e-3)
    assert cost.mfu == pytest.approx(cost.model_flop_per_s / 989.4e12)
    assert 0.3 < cost.mfu < 0.5


def test_stages_are_described_one_by_one() -> None:
    assert len(COST.memory) == 16
    assert [stage.stage for stage in COST.memory] == list(range(16))
    # 126 layers on 64 virtual stages: two less than twice as many, the ends hold one
    assert sum(sum(stage) for stage in COST.layers_per_stage) == sum(s.num_layers for s in COST.memory) == 126
    assert (COST.layers_per_stage[0][0], COST.layers_per_stage[15][3]) == (1, 1)
    assert all(stage.capacity_bytes == 81_559 * 2**20 for stage in COST.memory)
    assert all(stage.total_bytes < stage.capacity_bytes for stage in COST.memory)


def test_traffic_fits_through_every_level() -> None:
    assert [level.level for level in COST.traffic] == ["scale_up", "rack", "zone", "building", "campus"]
    assert all(level.utilisation < 1 for level in COST.traffic)
    # 10,000 / (8 · 128) is no whole number of stages: the shard groups of one stage straddle both buildings as well
    campus = COST.traffic[-1]
    assert set(campus.bytes_per_step) == {"dp_shard", "pp"}


def test_spans_name_the_outermost_level_of_every_axis_in_use() -> None:
    assert COST.placement.spans == {"tp": "scale_up", "dp_shard": "campus", "pp": "campus"}
    collectives = {(c.axis, c.op): c for c in COST.collectives}
    assert collectives["tp", "all_gather"].level == "scale_up"
    assert collectives["pp", "send"].level == "campus"
    assert collectives["pp", "send"].algorithm == "point_to_point"
    assert {c.group_size for c in COST.collectives} == {8, 16, 128}


def test_whole_stages_in_a_building_keep_data_parallelism_out_of_the_trunk() -> None:
    # 9 stages of 8 · 64 accelerators in a, 6 in b; six of them occupy a zone
    degrees, pipeline = Degrees(tp=8, pp=15, dp_shard=64), PipelineChoice(schedule="1F1B")
    placement = Placement(axis_order=ORDER, fill=allocation(("building-a", 512 * 9), ("building-b", 512 * 6)))
    even = cost_of(decision(degrees=degrees, placement=placement, pipeline=pipeline))
    assert set(even.traffic[-1].bytes_per_step) == {"pp"}
    assert even.placement.spans["dp_shard"] == "zone"


def test_data_parallelism_across_the_trunk_costs_more_than_the_pipeline() -> None:
    outermost = ("tp", "cp", "pp", "dp_shard", "dp_replicate")
    crossing = cost_of(decision(placement=Placement(axis_order=outermost, fill=SHARES)))
    assert crossing.cost.exposed_s["dp"] > COST.cost.exposed_s["dp"]
    assert crossing.cost.compute_s == COST.cost.compute_s
    assert crossing.memory == COST.memory, "memory does not depend on where ranks sit"


def test_the_smallest_memory_is_what_every_stage_may_use() -> None:
    small, large = accelerator("small", memory_bytes=40e9, reserved_memory_bytes=2e9), accelerator("large")
    fleet = topology([building("a", 1, chip=large), building("b", 1, chip=small)], trunks=[trunk("a", "b")])
    of = decision(
        degrees=Degrees(dp_replicate=8),
        pipeline=PipelineChoice(schedule="1F1B"),
        shard="none",
        placement=Placement(axis_order=ORDER, fill=allocation(("a", 4), ("b", 4))),
    )
    stage = plan_cost(job(), gpt().profile(), fleet, of).memory[0]
    assert (stage.capacity_bytes, stage.reserved_bytes) == (40e9, 2e9)


def test_a_decision_without_placement_or_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="no placement"):
        cost_of(decision(placement=None))
    small = Placement(axis_order=ORDER, fill=allocation(("building-a", 8192)))
    with pytest.raises(ValueError, match=r"holds 8192 accelerators, .* = 16384"):
        cost_of(decision(placement=small))
    elsewhere = Placement(axis_order=ORDER, fill=allocation(("building-z", 16_384)))
    with pytest.raises(KeyError, match="building-z"):
        cost_of(decision(placement=elsewhere))


def test_virtual_stages_loop_over_the_ranks() -> None:
    of = decision(degrees=Degrees(tp=8, pp=4, dp_shard=512), pipeline=PipelineChoice(schedule="1F1B"))
    assert layers_per_stage(PROBLEM.profile, of) == ((31,), (32,), (32,), (31,))
