"""The cost model agrees with published numbers.

Every file of this folder names paper, table and tolerance. ``pytest tests/golden -rP`` prints the published and our
numbers.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from golden_tables import HERE, compare, golden, rows

import scaleacross as sa
from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import Recompute
from scaleacross.verification import does_not_fit
from scaleacross.workloads.dense_transformer import DenseTransformer
from scaleacross.workloads.variants import with_unfused_attention, without_sequence_parallelism

CLUSTER = sa.load_topology(HERE / "a100_cluster.yaml")
MEGATRON_ORDER = ("tp", "cp", "dp_shard", "dp_replicate", "pp")


@pytest.mark.parametrize("row", rows("llama3_table4"))
def test_llama3_table4(row: dict[str, Any], request: pytest.FixtureRequest) -> None:
    if "missed" in row:
        request.applymarker(pytest.mark.xfail(strict=True, reason=row["missed"]))
    plan = sa.evaluate(HERE.parents[1] / "configs" / "plans" / f"{row['plan']}.yaml")
    compare(plan.cost.model_flop_per_s / 1e12, row["published_tflop_per_s"], row["tolerance"], "TFLOP/s")
    assert not list(does_not_fit(plan.memory)), "it ran in 80 GB"


def test_crosspipe_forward_time() -> None:
    of = golden("crosspipe_405b")
    block = sa.load_workload(of["workload"]).profile().blocks[0][0]
    flop = block.forward_flop_per_token(of["sequence_length"]) * of["sequence_length"] * of["layers_per_stage"]
    compare(flop / of["tp"] / of["assumed_flop_per_s"], of["published_s"], of["tolerance"], "s")


@pytest.mark.parametrize("row", rows("parameter_counts"))
def test_parameter_counts(row: dict[str, Any]) -> None:
    profile = sa.load_workload(row["workload"]).profile()
    if "exact" in row:
        assert profile.total_parameters == row["exact"]
        return
    compare(profile.total_parameters / 1e9, row["total"] / 1e9, row["tolerance"], "billion")
    if "active" in row:
        compare(profile.active_parameters / 1e9, row["active"] / 1e9, row["tolerance"], "billion active")


def megatron(row: dict[str, Any], micro_batch: int, chunks: int, recompute: Recompute) -> PlanCost:
    """One of Megatron-LM's GPT runs, with the software of its time.

    It has fp16 gradients, ranks in Megatron-LM's order, and hosts used one after another. Attention is unfused, and no
    pipeline message overlaps. Gradients overlap only without a pipeline. Selective recomputation alone uses sequence
    parallelism. Until 2022 a kernel of its own added gradients up.
    """
    model = DenseTransformer(
        name="gpt",
        num_layers=row["layers"],
        hidden_size=row["hidden"],
        num_heads=row["heads"],
        num_kv_heads=row["heads"],
        head_dim=row["hidden"] // row["heads"],
        intermediate_size=4 * row["hidden"],
        vocabulary_size=row["vocabulary_size"],
        gated_mlp=False,
        tied_embedding=True,
        norm="layernorm",
        bias=True,
        num_learned_positions=row["sequence_length"],
        dropout=True,
    )
    job = Job(
        name="gpt",
        workload=model,
        topology=CLUSTER,
        sequence_length=row["sequence_length"],
        global_batch_sequences=row["batch"],
        precision="fp16",
        optimizer={"gradient_bytes": 2.0, "reduce_bytes": 2.0, "fused_accumulation": row["fused_accumulation"]},
        overlap={
            "gradient_reduce": row["pp"] == 1 and "dp" in row,
            "parameter_gather": False,
            "pipeline_messages": False,
            "tp_reduce": row["tp_reduce"],
        },
    )
    profile = with_unfused_attention(model.profile())
    profile = profile if recompute == "selective" else without_sequence_parallelism(profile)
    degrees = Degrees(tp=row["tp"], pp=row["pp"], dp_replicate=row.get("dp", 1))
    decision = Decision(
        degrees=degrees,
        pipeline=PipelineChoice(
            schedule="Interleaved1F1B" if chunks > 1 else "1F1B", num_chunks=chunks, micro_batch_sequences=micro_batch
        ),
        recompute=recompute,
        shard="none",
        placement=Placement(
            axis_order=MEGATRON_ORDER,
            fill=(BuildingShare(building="selene", num_accelerators=degrees.world_size),),
        ),
    )
    return plan_cost(job, profile, CLUSTER, decision)


@pytest.mark.parametrize("row", rows("megatron_sc21_table1"))
def test_megatron_sc21_table1(row: dict[str, Any]) -> None:
    s, layers, h, vocabulary = (row[key] for key in ("sequence_length", "layers", "hidden", "vocabulary_size"))
    flop = 96 * row["batch"] * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (16 * layers * h))
    world = row["tp"] * row["pp"] * row["dp"]
    assert flop / (world * row["achieved_tflop_per_s"] * 1e12) == pytest.approx(row["published_s"], rel=1e-3)
    cost = megatron(row, row["micro_batch"], row["chunks"], "full")
    compare(cost.cost.step_s, row["published_s"], row["tolerance"], "s")
    assert not list(does_not_fit(cost.memory)), "it ran in 80 GB"


def test_megatron_scaling_up_to_a_common_factor() -> None:
    table = golden("megatron_sc21_table1")
    common = table["common_factor"]
    shared = {key: value for key, value in table.items() if key != "rows"}
    alike = [shared | row for row in table["rows"] if row["tp"] == common["tp"]]
    factors = [
        megatron(row, row["micro_batch"], row["chunks"], "full").cost.step_s / row["published_s"] for row in alike
    ]
    for factor in factors:
        compare(factor, median(factors), common["tolerance"], "of the published time")


@pytest.mark.parametrize("row", rows("korthikanti_table5"))
def test_korthikanti_table5(row: dict[str, Any]) -> None:
    cost = megatron(row, row["micro_batch"], row["chunks"], row["recompute"])
    compare(cost.cost.step_s, row["published_s"], row["tolerance"], "s")
    assert not list(does_not_fit(cost.memory)), "it ran in 80 GB"


def test_recomputation_slows_down_as_published() -> None:
    """Recomputation slows the step as published.

    The ratio between the two columns of the table needs no efficiency.
    """
    table = golden("korthikanti_table5")
    shared = {key: value for key, value in table.items() if key != "rows"}
    for full, selective in zip(table["rows"][::2], table["rows"][1::2], strict=True):
        ours = [
            megatron(shared | row, row["micro_batch"], row["chunks"], row["recompute"]).cost.step_s
            for row in (full, selective)
        ]
        published = full["published_s"] / selective["published_s"]
        compare(ours[0] / ours[1], published, table["tolerance_of_ratio"], "times as long")
