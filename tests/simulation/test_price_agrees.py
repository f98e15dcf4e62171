"""Step time and simulation of the same plan agree, mechanism by mechanism."""

from __future__ import annotations

from typing import Any

import pytest

import scaleacross as sa
from design_points import placed, point
from scaleacross.api.problems import problem_of as load_problem
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import PipelineChoice
from scaleacross.spec.plan import Decision, Plan
from scaleacross.workloads.problem import problem_of

WITHIN = 0.05


def planned(job: Job, *overrides: str) -> Plan:
    return sa.plan(job, time_limit_s=20, alternatives=False, overrides=["schedules=1F1B", *overrides])


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("model", "regions", "dp", "shard", "bucket", "calls"),
    [
        # buckets of a million parameters per replica hold all of the model
        pytest.param("llama3.1-8b", 3, 4096, "optimizer", None, 1, marks=pytest.mark.slow),
        pytest.param("llama3.1-8b", 3, 4096, "optimizer", 400_000_000, 6, marks=pytest.mark.slow),
        # a layer each: much slower than the others
        pytest.param("llama3.1-8b", 3, 4096, "optimizer", 1, 32, marks=pytest.mark.slow),
        ("llama3.1-70b", 6, 256, "parameters", None, 80),
    ],
)
def test_buckets_across_regions_pay_their_latency(
    model: str, regions: int, dp: int, shard: str, bucket: int | None, calls: int
) -> None:
    job = point(model=model, regions=regions, latency_ms=25.0)
    degrees = ["degrees.tp=4", "degrees.cp=1", "degrees.pp=1", f"degrees.dp_shard={dp}", "degrees.dp_replicate=1"]
    plan = planned(
        job, *degrees, f"shard={shard}", *([] if bucket is None else [f"overlap.bucket_parameters={bucket}"])
    )
    reduced = next(one for one in plan.collectives if one.axis == "dp_shard" and one.op == "reduce_scatter")
    assert reduced.level in ("campus", "region")
    assert reduced.per_step == calls
    step = sa.simulate(plan)
    assert abs(step.difference) < WITHIN, (plan.cost.step_s, step.step_s)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("fields", "decision"),
    [
        (  # the embedding makes the first chunk's bucket more than twice its share
            {"model": "llama3.1-8b", "accelerators": 16384, "buildings": 2, "latency_ms": 2.5},
            placed(
                ("Interleaved1F1B", 8),
                "tp cp pp dp_shard dp_replicate",
                (8192, 8192),
                "optimizer",
                tp=4,
                cp=2,
                pp=2,
                dp_shard=128,
                dp_replicate=8,
            ),
        ),
        (  # gradients of replicas share the adapters with exposed all-to-alls
            {"model": "deepseek-v3", "accelerators": 65536, "buildings": 2, "latency_ms": 2.5},
            placed(
                ("Interleaved1F1B", 8),
                "tp cp pp dp_shard dp_replicate",
                (32768, 32768),
                "optimizer",
                tp=2,
                cp=2,
                pp=4,
                dp_shard=2048,
                dp_replicate=2,
                ep=64,
            ),
        ),
        (  # gradients of replicas cross narrow links between buildings during exposed all-to-alls inside buildings
            {"model": "deepseek-v3", "accelerators": 8192, "buildings": 4, "regions": 3, "latency_ms": 2.5},
            placed(
                ("1F1B", 1),
                "tp cp pp dp_shard dp_replicate",
                (2048, 2048, 2048, 2048),
                "parameters",
                cp=2,
                dp_shard=1024,
                dp_replicate=4,
                ep=64,
            ),
        ),
        # sharded parameters are gathered over dp_shard, then over cp, after the reductions of the layer before
        pytest.param(
            {"model": "llama3.1-8b", "accelerators": 8192, "buildings": 6, "regions": 1, "latency_ms": 0.025},
            placed(
                ("1F1B", 1),
                "pp tp cp dp_shard dp_replicate",
                (1368, 1368, 1368, 1368, 1360, 1360),
                "parameters",
                tp=2,
                cp=2,
                dp_shard=16,
                dp_replicate=128,
            ).model_copy(update={"recompute": "none"}),
            marks=pytest.mark.xfail(
                strict=True,
                reason="16 % below its simulation, where reductions take more of computation and of the trunks",
            ),
        ),
        (  # a pipeline through eight buildings crosses regions once and links inside regions six times
            {"model": "llama3.1-405b", "accelerators": 16384, "buildings": 8, "regions": 2, "latency_ms": 25.0},
            placed(
                ("Interleaved1F1B", 3),
                "tp cp dp_shard dp_replicate pp",
                (2048,) * 8,
                "optimizer",
                tp=8,
                cp=4,
                pp=8,
                dp_shard=64,
            ),
        ),
        (  # replicas reduce while shards are gathered and scattered over the same adapters
            {"model": "llama3.1-8b", "accelerators": 32768, "buildings": 2, "regions": 1},
            placed(
                ("1F1B", 1),
                "tp cp pp dp_shard dp_replicate",
                (16384, 16384),
                "parameters",
                tp=4,
                cp=2,
                dp_shard=2,
                dp_replicate=2048,
            ).model_copy(update={"recompute": "none"}),
        ),
        (  # of four stages the second one has exposed all-to-alls across regions
            {"model": "deepseek-v3", "accelerators": 32768, "buildings": 3, "regions": 3},
            placed(
                ("Interleaved1F1B", 8),
                "tp cp dp_shard dp_replicate pp",
                (10928, 5456),
                "optimizer",
                tp=2,
                cp=4,
                pp=4,
                dp_shard=512,
                ep=256,
            ),
        ),
        (  # two stages do, and the others wait for them
            {"model": "deepseek-v3", "accelerators": 32768, "buildings": 3, "regions": 3},
            placed(
                ("Interleaved1F1B", 8),
                "tp cp dp_shard dp_replicate pp",
                (10928, 10920, 10920),
                "optimizer",
                tp=2,
                cp=4,
                pp=4,
                dp_shard=1024,
                ep=256,
            ),
        ),
        (  # every one of eight chunks waits for the parameters of its first layer
            {"model": "llama3.1-405b", "accelerators": 2048, "buildings": 4, "latency_ms": 25.0},
            placed(
                ("Interleaved1F1B", 8),
                "tp cp dp_shard pp dp_replicate",
                (512, 512, 512, 512),
                "parameters",
                pp=2,
                dp_shard=256,
                dp_replicate=4,
            ),
        ),
        (  # single rank: weight gradients run apart, reductions cannot overlap input gradients; otherwise 20 % too low
            {"model": "llama3.1-70b", "accelerators": 4096, "buildings": 8, "regions": 8, "latency_ms": 2.5},
            placed(
                ("ZBH1", 1),
                "cp dp_shard tp pp dp_replicate",
                (512,) * 8,
                "optimizer",
                tp=2,
                dp_shard=64,
                dp_replicate=32,
            ).model_copy(update={"recompute": "selective"}),
        ),
        (  # most rings of shards stay in a building and are slower than those that cross; otherwise 17 % too low
            {
                "model": "llama3.1-8b",
                "accelerators": 8192,
                "buildings": 6,
                "regions": 1,
                "latency_ms": 0.025,
                "oversubscription": 1.0,
            },
            placed(
                ("1F1B", 1),
                "cp pp tp dp_shard dp_replicate",
                (1368,) * 4 + (1360,) * 2,
                "parameters",
                tp=4,
                dp_shard=256,
                dp_replicate=8,
            ).model_copy(update={"recompute": "none"}),
        ),
    ],
    ids=[
        "embedding",
        "shared_adapters",
        "behind_exchanges",
        "one_layer_ahead",
        "two_far_levels",
        "crowded_adapters",
        "straddling_stage",
        "straddling_stages",
        "first_layers",
        "single_rank",
        "rings_over_borders",
    ],
)
def test_what_gradients_and_parameters_cost_beside_layers(fields: dict[str, Any], decision: Decision) -> None:
    plan = sa.evaluate((point(**fields), decision))
    step = sa.simulate(plan)
    assert abs(step.difference) < WITHIN, (plan.cost.step_s, step.step_s)


@pytest.mark.heavy
def test_messages_back_to_the_first_rank_queue_on_a_narrow_trunk() -> None:
    """Messages of both boundaries between two buildings share one link; with two links the step is 18 % too low."""
    decision = {
        "degrees": {"tp": 8, "cp": 4, "pp": 15, "dp_shard": 2, "dp_replicate": 16},
        "pipeline": {"schedule": "Interleaved1F1B", "num_chunks": 2},
        "recompute": "none",
        "shard": "optimizer",
        "placement": {
            "axis_order": ["tp", "dp_replicate", "cp", "dp_shard", "pp"],
            "fill": [
                {"building": "building-a", "num_accelerators": 9216},
                {"building": "building-b", "num_accelerators": 6144},
            ],
        },
    }
    narrow = load_problem("llama3_405b_two_buildings", ("topology.trunks.0.oversubscription_ratio=64",)).job
    step = sa.simulate(sa.evaluate((narrow, Decision.model_validate(decision))))
    assert abs(step.difference) < WITHIN


@pytest.mark.parametrize(
    ("fields", "overrides"),
    [
        pytest.param(
            {"model": "llama3.1-70b", "accelerators": 8192, "buildings": 4, "regions": 4},
            "schedules=DualPipeV tp=4 cp=2 pp=2 dp_shard=128 dp_replicate=4",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"model": "deepseek-v3", "accelerators": 16384, "buildings": 2, "regions": 2},
            "schedules=InterleavedZeroBubble num_chunks=2 tp=2 cp=2 pp=16 dp_shard=128 dp_replicate=2",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["dual_pipe", "zero_bubble"],
)
def test_last_weight_gradients_leave_reductions_across_regions_little(fields: dict[str, Any], overrides: str) -> None:
    """Step times were 9 and 8 % too low when windows covered whole backward passes."""
    pinned = [one if one.startswith(("schedules", "num_chunks")) else f"degrees.{one}" for one in overrides.split()]
    asked = ["shard=optimizer", "recompute=selective", *pinned]
    plan = sa.plan(point(**fields, latency_ms=25.0), time_limit_s=20, alternatives=False, overrides=asked)
    step = sa.simulate(plan)
    assert abs(step.difference) < WITHIN, (plan.cost.step_s, step.step_s)


@pytest.mark.parametrize(
    ("fields", "decision"),
    [
        (  # replicas of all fourteen ranks use these links, the last ranks first; 12 % too high if all came at once
            {"accelerators": 16384, "buildings": 6, "latency_ms": 0.25, "oversubscription": 7.0},
            placed(
                ("1F1B", 1),
                "tp cp pp dp_shard dp_replicate",
                (2688, 2688, 2688, 2688, 2688, 896),
                "optimizer",
                tp=8,
                cp=4,
                pp=14,
                dp_shard=2,
                dp_replicate=16,
            ).model_copy(update={"recompute": "none"}),
        ),
        (  # the same with eight chunks on sixteen ranks: 18 %
            {"accelerators": 16384, "buildings": 8, "regions": 2, "latency_ms": 2.5, "oversubscription": 16.0},
            placed(
                ("Interleaved1F1B", 8),
                "tp cp dp_shard pp dp_replicate",
                (2048,) * 8,
                "optimizer",
                tp=8,
                pp=16,
                dp_shard=16,
                dp_replicate=8,
            ).model_copy(update={"recompute": "selective"}),
        ),
        pytest.param(  # parameters of later chunks and ranks arrive well before their use: 8 %
            {"model": "deepseek-v3", "accelerators": 16384, "buildings": 2, "regions": 2, "latency_ms": 25.0},
            placed(
                ("Interleaved1F1B", 2),
                "tp cp pp dp_shard dp_replicate",
                (8192,) * 2,
                "optimizer",
                tp=8,
                cp=4,
                pp=16,
                dp_shard=32,
                ep=16,
            ).model_copy(
                update={"pipeline": PipelineChoice(schedule="Interleaved1F1B", num_chunks=2, micro_batch_sequences=8)}
            ),
            marks=pytest.mark.xfail(strict=True, reason="6 % too high: ranks' all-to-alls count as sharing uplinks"),
        ),
    ],
    ids=["one_after_another", "chunks", "parameters"],
)
def test_gradients_and_parameters_come_to_the_trunks_one_rank_after_another(
    fields: dict[str, Any], decision: Decision
) -> None:
    plan = sa.evaluate((point(**{"model": "llama3.1-405b"} | fields), decision))
    step = sa.simulate(plan)
    assert abs(step.difference) < WITHIN, (plan.cost.step_s, step.step_s)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("fields", "decision"),
    [
        (  # the last of three ranks holds 3/4 of the first one's parameters in as many buckets
            {"model": "llama3.1-8b", "accelerators": 131072, "buildings": 6, "oversubscription": 16.0},
            placed(
                ("ZBVZeroBubble", 2),
                "tp cp dp_replicate pp dp_shard",
                (18432,) * 5 + (6144,),
                "optimizer",
                tp=4,
                cp=4,
                pp=3,
                dp_shard=512,
                dp_replicate=4,
            ).model_copy(
                update={"pipeline": PipelineChoice(schedule="ZBVZeroBubble", num_chunks=2, micro_batch_sequences=2)}
            ),
        ),
        (  # 28 ranks, all but the first with 2/3 of its parameters
            {"model": "llama3.1-70b", "accelerators": 8192, "buildings": 6, "regions": 6, "oversubscription": 16.0},
            placed(
                ("DualPipeV", 2),
                "dp_replicate tp cp pp dp_shard",
                (1344,) * 5 + (448,),
                "optimizer",
                tp=4,
                cp=2,
                pp=28,
                dp_shard=32,
            ).model_copy(update={"recompute": "selective"}),
        ),
    ],
    ids=["three_ranks", "many_ranks"],
)
def test_every_rank_reduces_what_it_holds_itself(fields: dict[str, Any], decision: Decision) -> None:
    """Estimates were 7 to 9 % too low when all ranks had the latencies of the one with most parameters."""
    job = point(**({"latency_ms": 25.0} | fields))
    plan = sa.evaluate((job, with_network(problem_of(job), decision).decision))
    assert plan.estimate is not None
    assert plan.estimate.step_s == pytest.approx(plan.cost.step_s, rel=0.02)


def test_chunks_have_their_gradients_round_by_round() -> None:
    """Two of three chunks finish all rounds well before the pipeline ends.

    The step time was 13 % too high when their last micro-batch returned through all stages at the latest.
    """
    job = point(model="llama3.1-70b", accelerators=8192, buildings=3, regions=3, latency_ms=25.0)
    decision = placed(
        ("Interleaved1F1B", 3),
        "tp cp dp_shard dp_replicate pp",
        (2736, 2728, 2728),
        "optimizer",
        tp=8,
        pp=16,
        dp_shard=64,
    ).model_copy(update={"recompute": "selective"})
    plan = sa.evaluate((job, decision))
    step = sa.simulate(plan)
    assert abs(step.difference) < WITHIN, (plan.cost.step_s, step.step_s)
