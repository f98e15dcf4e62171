"""Decisions whose ranks differ: the longest row is the step, times are linear in layers, and checks name errors."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import scaleacross as sa
from instances import mixed_instance, plain_job, plain_topology
from oracles.exhaustive import candidates, placements
from scaleacross.catalogue import load_workload
from scaleacross.cost_models.candidates import candidate_of
from scaleacross.cost_models.differing_ranks import differing_rows, layer_costs
from scaleacross.cost_models.layer_seconds import TimedLayers
from scaleacross.cost_models.layout import layout_of
from scaleacross.cost_models.plan_cost import plan_cost, stage_memory
from scaleacross.cost_models.stages import block_counts, equal_stages, layers_of_ranks
from scaleacross.solvers.pools import pools
from scaleacross.spec.parallelism import Degrees, PipelineChoice, split_layers
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import BatchShare, Decision
from scaleacross.verification import illegal
from scaleacross.verification.shares import counted_layout
from scaleacross.workloads.problem import Problem, problem_of


def two_stages(**changes: Any) -> tuple[Problem, Decision]:
    """A decision of 8 layers on two stages of four accelerators (tp 4), one building each, with 16 micro-batches."""
    problem = problem_of(plain_job(topology=plain_topology(1, 1)))
    allocation = [{"building": name, "num_accelerators": 4} for name in ("b0", "b1")]
    placement = {"axis_order": ("tp", "cp", "dp_shard", "dp_replicate", "pp"), "fill": allocation}
    decision = Decision(
        degrees=Degrees(tp=4, pp=2),
        pipeline=PipelineChoice(schedule="1F1B"),
        recompute="none",
        shard="none",
        placement=Placement.model_validate(placement),
    )
    return problem, decision.model_copy(update=changes)


def two_replicas(*micro_batches: int) -> tuple[Problem, Decision]:
    """The same accelerators as two replicas: dp_replicate 2 instead of pp 2."""
    problem, decision = two_stages(degrees=Degrees(tp=4, dp_replicate=2))
    shares = tuple(
        BatchShare(buildings=(name,), num_replicas=1, num_micro_batches=m)
        for name, m in zip(("b0", "b1"), micro_batches, strict=False)
    )
    return problem, decision.model_copy(update={"batch_shares": shares or None})


def step_s(problem: Problem, decision: Decision) -> float:
    return plan_cost(problem.job, problem.profile, problem.topology, decision).cost.step_s


def test_classes_are_those_counted_rank_by_rank_wherever_borders_lie() -> None:
    """Replicas of one class need not follow each other, and a border may divide a stage."""
    problem = problem_of(plain_job(topology=plain_topology(4, 4)))
    _, decision = two_stages(degrees=Degrees(tp=2, dp_shard=2, dp_replicate=2, pp=2))
    for order in permutations(("tp", "dp_shard", "dp_replicate", "pp")):
        for first in range(8, 16):
            fill = (BuildingShare(building="b0", num_accelerators=first),)
            fill += (BuildingShare(building="b1", num_accelerators=16 - first),) * (first < 16)
            placed = decision.model_copy(update={"placement": Placement(axis_order=("cp", *order), fill=fill)})
            found = layout_of(problem.topology, placed)
            assert found == counted_layout(problem.topology, placed)


def test_the_equal_split_stated_or_not_is_one_step_time() -> None:
    problem, decision = two_stages()
    assert step_s(*two_stages(layers_per_stage=((4,), (4,)))) == step_s(problem, decision)


def test_an_unequal_split_takes_its_longest_stage() -> None:
    problem, equal = two_stages()
    _, lopsided = two_stages(layers_per_stage=((2,), (6,)))
    cost = plan_cost(problem.job, problem.profile, problem.topology, lopsided)
    assert cost.layers_per_stage == ((2,), (6,))
    assert [stage.num_layers for stage in cost.memory] == [2, 6]
    assert cost.memory[1].parameters_bytes > cost.memory[0].parameters_bytes
    assert 1.3 < cost.cost.step_s / step_s(problem, equal) < 1.5  # 6 layers instead of 4, and the head


def test_replicas_reduce_what_the_rank_with_most_experts_has_left() -> None:
    """Replicas reduce the gradients of the fullest rank.

    The first rank holds most, with the embedding and dense layers sharded over 32 ranks. Experts of other ranks are
    replicated over 2 more.
    """
    problem = problem_of(plain_job(496, 496, workload=load_workload("deepseek-v3"), global_batch_sequences=2048))
    allocation = [{"building": name, "num_accelerators": 1984} for name in ("b0", "b1")]
    order = ("tp", "cp", "dp_shard", "pp", "dp_replicate")
    decision = Decision(
        degrees=Degrees(tp=2, dp_shard=32, dp_replicate=2, pp=31, ep=16),
        pipeline=PipelineChoice(schedule="1F1B"),
        recompute="none",
        shard="optimizer",
        placement=Placement.model_validate({"axis_order": order, "fill": allocation}),
    )
    cost = plan_cost(problem.job, problem.profile, problem.topology, decision)
    experts = 2 * 256 * 3 * 7168 * 2048 / (2 * 16)  # of two layers, on one rank
    by_group = {one.shape: one.size_bytes * one.per_step for one in cost.sent if one.what.endswith("gradients")}
    assert by_group["expert"] == pytest.approx(4 * experts)
    assert by_group["dp_replicate"] == pytest.approx(by_group["dp_shard"] / 32 + 4 * experts / 2)
    assert by_group["dp_shard"] / 4 < experts


def test_the_ends_may_be_without_layers() -> None:
    """The first and the last of ten virtual stages may hold only embedding and head.

    Every other chunk of a rank has one layer.
    """
    pipeline = PipelineChoice(schedule="Interleaved1F1B", num_chunks=5)
    problem, decision = two_stages(pipeline=pipeline)
    assert not list(illegal(problem, decision))
    cost = plan_cost(problem.job, problem.profile, problem.topology, decision)
    assert cost.layers_per_stage == ((0, 1, 1, 1, 1), (1, 1, 1, 1, 0))
    assert [stage.num_layers for stage in cost.memory] == [4, 4]
    four = pipeline.model_copy(update={"num_chunks": 4})
    fewer = plan_cost(problem.job, problem.profile, problem.topology, decision.model_copy(update={"pipeline": four}))
    assert cost.cost.compute_s == pytest.approx(fewer.cost.compute_s)  # the same layers on the same ranks
    assert cost.cost.bubble_s < fewer.cost.bubble_s  # a pass through one chunk of every rank is shorter
    simulated = sa.simulate(sa.evaluate((problem.job, decision)))
    assert cost.cost.step_s == pytest.approx(simulated.step_s, rel=0.02)


def test_layers_split_over_more_stages_than_layers() -> None:
    assert split_layers(126, 128) == (0, *[1] * 126, 0)
    assert split_layers(3, 4) == (1, 1, 1, 0)
    with pytest.raises(ValueError, match="3 layers cannot fill 6 virtual stages"):
        split_layers(3, 6)


def test_more_micro_batches_on_one_replica_cost_as_many_on_both() -> None:
    problem, more = two_replicas(10, 6)
    twenty = problem_of(problem.job.model_copy(update={"global_batch_sequences": 20}))
    assert step_s(problem, more) == pytest.approx(step_s(twenty, two_replicas()[1]))
    assert step_s(problem, two_replicas(8, 8)[1]) == pytest.approx(step_s(problem, two_replicas()[1]))


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"layers_per_stage": ((4,), (5,))}, "holds 9 layers, the model has 8"),
        (
            {
                "layers_per_stage": ((4, 1), (0, 3)),
                "pipeline": PipelineChoice(schedule="Interleaved1F1B", num_chunks=2),
            },
            "chunk 0 of stage 1 holds no layer",
        ),
        ({"layers_per_stage": ((2, 2), (2, 2))}, r"has \[2, 2\] entries"),
        ({"batch_shares": (BatchShare(buildings=("b0",), num_replicas=1, num_micro_batches=16),)}, "1 in b0.b1"),
    ],
)
def test_verification_names_what_is_wrong(update: dict[str, Any], message: str) -> None:
    said = "\n".join(illegal(*two_stages(**update)))
    assert said.startswith("V2: ")
    assert re.search(message, said)


def test_verification_adds_the_shares_up() -> None:
    assert not list(illegal(*two_replicas(10, 6)))
    assert "V2: batch_shares hold 15 sequences, the batch has 16" in list(illegal(*two_replicas(9, 6)))


def test_shares_add_up_to_a_batch_that_replicas_do_not_divide() -> None:
    """Estimate, simulation and verification take 9 and 6 micro-batches of a batch of 15."""
    problem, decision = two_replicas(9, 6)
    job = problem.job.model_copy(update={"global_batch_sequences": 15})
    plan = sa.evaluate((job, decision))
    sa.verify(plan, deep=True)
    eighteen = problem_of(job.model_copy(update={"global_batch_sequences": 18}))
    assert plan.estimated.step_s == pytest.approx(step_s(eighteen, two_replicas()[1]))
    assert plan.estimated.step_s == pytest.approx(sa.simulate(plan).step_s, rel=0.02)
    assert plan.num_micro_batches == 9
    equal = decision.model_copy(update={"batch_shares": None})
    with pytest.raises(sa.InputError, match="a batch of 15 sequences does not divide by dp · micro-batch = 2"):
        sa.evaluate((job, equal))


def test_shares_of_a_pipeline_need_a_number_that_its_schedule_takes() -> None:
    """Each replica's own micro-batches must suit the schedule; their mean need not."""
    order = ("tp", "cp", "pp", "dp_shard", "dp_replicate")
    fill = ({"building": "b0", "num_accelerators": 4}, {"building": "b1", "num_accelerators": 4})
    _, decision = two_replicas(4, 6)
    decision = decision.model_copy(
        update={
            "degrees": Degrees(tp=2, pp=2, dp_replicate=2),
            "pipeline": PipelineChoice(schedule="Interleaved1F1B", num_chunks=2),
            "placement": Placement.model_validate({"axis_order": order, "fill": fill}),
        }
    )
    problem = problem_of(plain_job(topology=plain_topology(1, 1), global_batch_sequences=10))
    assert not list(illegal(problem, decision))


@pytest.mark.parametrize("seed", [9, 32, 39, 44, 54, 60])
def test_layer_costs_are_those_of_the_rows_and_of_the_memory(seed: int) -> None:
    """Layer costs of ``partition_stages`` add up to the plan's step time and memory, and both count classes alike."""
    problem = mixed_instance(seed)
    job, profile = problem.job, problem.profile
    for pool in (pool for pool in pools(problem.topology) if len(pool.accelerators) == 2):
        for candidate in list(candidates(problem, pool))[:4]:
            settings = candidate_of(candidate, job.global_batch_sequences)
            timed = TimedLayers.of(profile, job, pool.accelerators, settings)
            costs = layer_costs(timed)
            split = equal_stages(profile.num_layers, candidate.degrees.pp, candidate.pipeline.num_chunks)
            table = layers_of_ranks(block_counts(profile), split)
            for placement in list(placements(pool, candidate.degrees))[:6]:
                decision = candidate.model_copy(update={"placement": placement})
                layout = layout_of(problem.topology, decision)
                assert layout == counted_layout(problem.topology, decision)
                same = (int(settings.num_micro_batches[0]),) * len(layout)
                _, work, _ = differing_rows(timed, layout, split, same)
                slowest = max(costs.slowest_pass_s(table, one.types).max() for one in layout)
                assert (work.forward_s + work.backward_s).max() == pytest.approx(slowest)
                stages = stage_memory(job, profile, pool.accelerators, decision, settings, layout)
                assert np.array([stage.total_bytes - stage.reserved_bytes for stage in stages]) == pytest.approx(
                    costs.bytes(table)
                )
