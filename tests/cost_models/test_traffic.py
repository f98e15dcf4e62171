"""Bytes of a step: sizes of collectives, bytes per level, and when a pipeline sends less than data parallelism."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machines import accelerator, allocation, candidates, flat, gpt, job

from scaleacross.catalogue import load_workload
from scaleacross.cost_models.axes import axis_terms, group_of
from scaleacross.cost_models.groups import exact_shape
from scaleacross.cost_models.levels import build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.cost_models.plan_traffic import time_of
from scaleacross.cost_models.recomputation import gathers_again, gathers_once
from scaleacross.cost_models.step import one_row
from scaleacross.cost_models.traffic import Flow, Volumes, flows
from scaleacross.cost_models.window_traffic import windows_of
from scaleacross.cost_models.work import work_of
from scaleacross.spec.framework import Kept, KeptBy, Overlap
from scaleacross.spec.parallelism import SHARD_LEVELS, Degrees, PipelineChoice, ShardLevel
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import Decision
from scaleacross.workloads.dense_transformer import DenseTransformer
from scaleacross.workloads.equal_copies import EVERY_COPY
from scaleacross.workloads.problem import as_pytorch_keeps
from scaleacross.workloads.variants import without_sequence_parallelism
from scaleacross.workloads.workload import Workload

ORDER = ("tp", "cp", "dp_shard", "dp_replicate", "pp")


def sent(workload: Workload, **columns: Any) -> dict[tuple[str, str, str], Flow]:
    of, rows = job(2048, 64), candidates(**columns)
    profile = workload.profile()
    work = work_of(profile, of, [accelerator()], rows)
    found = flows(Volumes(of, profile, rows, work, 0.0))
    keys = [(flow.axis, flow.op, flow.what) for flow in found]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, found, strict=True))


def test_sizes_of_a_dense_model() -> None:
    of = sent(gpt(), tp=2, cp=4, pp=2, micro_batch=3, num_micro_batches=8, dp_shard=2, shard="optimizer")
    tokens = 3 * 2048 / 4
    assert of["tp", "all_gather", "activations"].size_bytes == tokens * 1024 * 2
    # attention and MLP gather and scatter once each, in both passes; the head once more; 4 layers, 8 micro-batches
    assert (
        of["tp", "all_gather", "activations"].per_step
        == of["tp", "reduce_scatter", "activations"].per_step
        == 8 * 2 * (4 * 2 + 1)
    )
    # keys and values of the whole sequence, 2 · 1024 features, 2 bytes, halved by tp; twice gathered, once reduced
    assert of["cp", "all_gather", "keys and values"].size_bytes == 3 * 2048 * 2048 * 2 / 2
    assert of["cp", "all_gather", "keys and values"].per_step == 4 * 8 * 2
    assert of["cp", "reduce_scatter", "key and value gradients"].per_step == 4 * 8
    assert of["pp", "send", "activations"].size_bytes == tokens * 1024 * 2 / 2
    assert of["pp", "send", "activations"].per_step == 8  # of two stages each is an end: one boundary, one direction


def test_without_sequence_parallelism_the_all_reduce_that_is_estimated_is_listed() -> None:
    """Without sequence parallelism the timed all-reduce is a listed flow.

    It occurs as often as a gather with its scatter. If nothing overlaps, its time is the exposed time.
    """
    of, rows = job(2048, 64, overlap=Overlap(tp_reduce=False)), candidates(tp=2, num_micro_batches=8)
    profile = without_sequence_parallelism(gpt().profile())
    volumes = Volumes(of, profile, rows, work_of(profile, of, [accelerator()], rows), 0.0)
    tp = [flow for flow in flows(volumes) if flow.axis == "tp"]
    assert [(flow.op, flow.what) for flow in tp] == [("all_reduce", "activations")]
    gathers = sent(gpt(), tp=2, num_micro_batches=8)["tp", "all_gather", "activations"]
    assert (tp[0].per_step, tp[0].size_bytes) == (gathers.per_step, gathers.size_bytes)
    levels = build_levels(flat(1, 2), allocation(("b0", 2)))
    shape, links = one_row(exact_shape(2, 1, levels)), links_of(levels)
    waited = axis_terms("tp", volumes, shape, links, network="library").serial_s["tp"][0]
    each = float(time_of(tp[0], group_of("library", "tp", shape, links, 0.0), EVERY_COPY).time_s[0])
    assert waited == pytest.approx(tp[0].per_step * each)


@pytest.mark.parametrize("shard", SHARD_LEVELS)
@pytest.mark.parametrize("hidden", [True, False])
def test_what_is_received_concurrently_with_computation_is_what_flows_carry(shard: ShardLevel, hidden: bool) -> None:
    """Bytes received during computation equal those of the flows, call by call.

    An overlapped flow of states brings (d−1)/d of its bytes, and an all-reduce brings twice that.
    """
    overlap = Overlap(gradient_reduce=hidden, shard_prefetch=not hidden)
    of, profile = job(2048, 64, overlap=overlap), load_workload("mixtral-8x22b").profile()
    rows = candidates(dp_shard=8, dp_replicate=2, cp=2, ep=4, pp=4, num_micro_batches=8, shard=shard)
    volumes = Volumes(of, profile, rows, work_of(profile, of, [accelerator()], rows), 0.0)
    ranks = {"dp_shard": 8, "dp_replicate": 2, "cp": 2, "expert": 2}
    on = (overlap.gradient_reduce, overlap.parameter_gather, overlap.shard_prefetch, overlap.shard_prefetch)
    expected = 0.0
    for flow in flows(volumes):
        if any(on[row] for row in windows_of(flow, shard)):
            passes = 2 if flow.op == "all_reduce" else 1
            expected += passes * (1 - 1 / ranks[flow.shape]) * flow.size_bytes * flow.per_step
    assert (expected == 0) == (shard == "none" and not hidden)
    # cp first, then its share over dp_shard, carry together what one group of cp · dp_shard ranks receives
    assert volumes.received_concurrently_bytes[0] == pytest.approx(expected)


def test_experts_exchange_their_copies_four_times_per_layer() -> None:
    of = sent(load_workload("mixtral-8x22b"), dp_shard=8, ep=4, pp=4, num_micro_batches=8, shard="optimizer")
    flow = of["ep", "all_to_all", "tokens"]
    assert flow.size_bytes == 2048 * 2 * 6144 * 2  # top 2
    assert flow.per_step == 14 * 8 * 4
    halved = sent(load_workload("mixtral-8x22b"), tp=2, dp_shard=8, ep=4, pp=4, num_micro_batches=8, shard="optimizer")
    assert (
        halved["ep", "all_to_all", "tokens"].size_bytes == flow.size_bytes / 2
    )  # sequence parallelism: half the tokens


def test_gradients_are_reduced_once_and_parameters_gathered_back() -> None:
    profile = gpt().profile()
    of = sent(gpt(), dp_shard=4, dp_replicate=2, shard="optimizer", num_micro_batches=8)
    buckets = min(profile.num_layers, -(-profile.total_parameters // 40_000_000))
    assert {flow.per_step for flow in of.values()} == {buckets}
    whole = {key: flow.size_bytes * flow.per_step for key, flow in of.items()}
    assert whole["dp_shard", "reduce_scatter", "gradients"] == 4 * profile.total_parameters
    assert whole["dp_shard", "all_gather", "parameters"] == 2 * profile.total_parameters
    assert whole["dp_replicate", "all_reduce", "gradients"] == 4 * profile.total_parameters / 4
    every = sent(gpt(), dp_shard=4, shard="parameters", num_micro_batches=8)  # layer by layer, with every micro-batch
    assert every["dp_shard", "reduce_scatter", "gradients"].per_step == 8 * profile.num_layers
    assert every["dp_shard", "all_gather", "parameters"].per_step == 16 * profile.num_layers


def across(workload: Workload, num_buildings: int, sequences: int, degrees: Degrees, **changes: Any) -> PlanCost:
    """The cost of a decision on buildings of equal size.

    Gradients are sent in 16 bit, and micro-batches have one sequence.
    """
    per_building = degrees.world_size // num_buildings
    fleet, shares = flat(num_buildings, per_building), [(f"b{index}", per_building) for index in range(num_buildings)]
    of = job(changes.pop("sequence_length", 4096), sequences, optimizer={"reduce_bytes": 2.0})
    pipeline = PipelineChoice(schedule=changes.pop("schedule", "1F1B"), num_chunks=changes.pop("num_chunks", 1))
    shard = changes.pop("shard", "none")
    order = changes.pop("order", ORDER)
    decision = Decision(
        degrees=degrees,
        pipeline=pipeline,
        recompute="none",
        shard=shard,
        layers_per_stage=changes.pop("layers_per_stage", None),
        placement=Placement(axis_order=order, fill=allocation(*shares)),
    )
    return plan_cost(of, workload.profile(), fleet, decision)


def test_experts_exchange_tokens_where_a_stage_without_any_is_the_busiest() -> None:
    # DeepSeek-V3 begins with three dense layers: together with the embedding they are the fullest and busiest stage
    workload, degrees = load_workload("deepseek-v3"), Degrees(dp_shard=128, ep=64, pp=31)
    split = ((3,), *[(2,)] * 28, (1,), (1,))
    cost = across(workload, 1, 128 * 64, degrees, shard="optimizer", layers_per_stage=split)
    stated = {one.name: one for one in cost.collectives}
    assert cost.pipeline.rank == 0
    # two layers with experts, 64 micro-batches, dispatch and combine in both passes
    assert stated["ep all_to_all of tokens"].per_step == 64 * 2 * 4
    one_stage = 2 * 256 / 64 * 3 * 7168 * 2048
    reduced = stated["dp_shard reduce_scatter of expert gradients"]
    assert reduced.bytes_per_rank * reduced.per_step == pytest.approx(one_stage * 2)
    assert reduced.group_size == 2


def campus(cost: PlanCost) -> dict[str, float]:
    """Bytes per step and direction over the inter-building link, by axis."""
    return next(dict(level.bytes_per_step) for level in cost.traffic if level.level == "campus")


MISTRAL_7B = DenseTransformer(  # arXiv 2310.06825, table 1
    name="mistral-7b",
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14_336,
    vocabulary_size=32_000,
    gated_mlp=True,
    tied_embedding=False,
)


@pytest.mark.parametrize(
    ("workload", "crossover_tokens"),
    [
        (load_workload("llama3.1-405b"), 24.8e6),
        (MISTRAL_7B, 1.77e6),
        (load_workload("deepseek-v3"), 93.6e6),  # 671.0e9 / 7168; 95.6e6 with the 14e9 of the MTP module
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_pipeline_sends_less_than_data_parallelism_below_n_over_d_tokens(
    workload: Workload, crossover_tokens: float
) -> None:
    """A pipeline sends less than data parallelism below N/D tokens.

    Over two buildings, per direction, it sends 2·T·d of activations. Data parallelism sends 2·N of gradients and
    parameters in 16 bit.
    """
    profile = workload.profile()
    exact = profile.total_parameters / profile.blocks[0][0].hidden_size
    assert exact == pytest.approx(crossover_tokens, rel=0.005)
    for factor, pipeline_sends_less in ((0.999, True), (1.001, False)):
        sequences = round(factor * exact / 64 / 2) * 2
        short = {"sequence_length": 64}
        pipeline = campus(across(workload, 2, sequences, Degrees(pp=2), **short))["pp"]
        sharded = campus(across(workload, 2, sequences, Degrees(dp_shard=2), shard="optimizer", **short))["dp_shard"]
        replicated = campus(across(workload, 2, sequences, Degrees(dp_replicate=2), **short))["dp_replicate"]
        assert pipeline == 2 * sequences * 64 * profile.blocks[0][0].hidden_size
        assert sharded == pytest.approx(2 * profile.total_parameters)
        assert replicated == pytest.approx(2 * profile.total_parameters)
        assert (pipeline < sharded) == pipeline_sends_less


def test_sharded_parameters_cross_in_every_micro_batch() -> None:
    once = campus(across(gpt(), 2, 16, Degrees(dp_shard=2), shard="optimizer"))["dp_shard"]
    every = campus(across(gpt(), 2, 16, Degrees(dp_shard=2), shard="parameters"))["dp_shard"]
    assert every / once == pytest.approx(8 * 3 / 2)  # m times two gathers and a reduction, against one of each


@pytest.mark.parametrize("num_chunks", [1, 2, 4])
def test_interleaving_crosses_the_trunk_by_its_loop_back_too(num_chunks: int) -> None:
    # per micro-batch and direction: v forwards of one building or v−1 looped back by the other
    schedule = "1F1B" if num_chunks == 1 else "Interleaved1F1B"
    cost = across(gpt(), 2, 8, Degrees(pp=2), schedule=schedule, num_chunks=num_chunks)
    message = 4096 * 1024 * 2
    assert campus(cost)["pp"] == 8 * (2 * num_chunks - 1) * message


def test_a_middle_stage_sends_both_ways_over_its_own_uplink_but_once_over_each_trunk() -> None:
    message = 4096 * 1024 * 2
    assert campus(across(gpt(), 4, 8, Degrees(pp=4)))["pp"] == 8 * message
    inside = next(level for level in across(gpt(), 1, 8, Degrees(pp=4)).traffic if level.level == "rack")
    assert inside.bytes_per_step == {"pp": 2 * 8 * message}


def test_side_by_side_groups_add_up_on_the_trunk() -> None:
    one = campus(across(gpt(), 2, 8, Degrees(pp=2)))["pp"]
    four = campus(across(gpt(), 2, 8, Degrees(pp=2, dp_replicate=4)))
    assert four == {"pp": pytest.approx(one)}, "a quarter of the micro-batches in each of four pipelines"
    tensor = campus(across(gpt(), 2, 8, Degrees(pp=2, tp=4)))
    assert tensor == {"pp": pytest.approx(one)}, "each rank sends its share of the features"


def test_utilisation_is_bytes_over_what_the_step_could_carry() -> None:
    cost = across(gpt(), 2, 8, Degrees(pp=2, tp=2))
    for level in cost.traffic:
        total = sum(level.bytes_per_step.values())
        assert level.utilisation == pytest.approx(total / level.capacity_bytes_per_s / cost.cost.step_s)
    assert np.isfinite([level.utilisation for level in cost.traffic]).all()


@pytest.mark.parametrize(
    ("name", "by", "whole", "divided"),
    [
        ("mixtral-8x7b", "megatron", 1, 3),
        ("mixtral-8x7b", "pytorch", 1, 2),
        ("deepseek-v3", "megatron", 2, 10),
        ("deepseek-v3", "pytorch", 2, 2.5),
        ("llama3.1-8b", "megatron", 2, 2),
    ],
)
def test_gathers_over_tp_by_where_experts_lie(name: str, by: KeptBy, whole: float, divided: float) -> None:
    """Gathers over tp depend on where experts are.

    Attention and shared experts gather once each. Experts that tp divides gather every copy of a token. torchtitan's
    gather tokens, in common with shared ones, and scatter their own results (models/common/moe_sharding.py).
    """
    profile = load_workload(name).profile()
    layer = (as_pytorch_keeps(profile, Kept(by="pytorch")) if by == "pytorch" else profile).blocks[-1][0]
    rows = candidates(tp=2, expert_lanes=[2, 1], dp_shard=2, recompute="full", num_micro_batches=1, micro_batch=1)
    assert gathers_once(layer, rows).tolist() == gathers_again(layer, rows).tolist() == [whole, divided]
