"""Effects of frameworks on step times: each alone agrees with hand arithmetic or its limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured_rows import run

from scaleacross import catalogue
from scaleacross.cost_models.compute import LayerTimes, Shards, layer_times
from scaleacross.cost_models.kernels import attention_model_of
from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.cost_models.runtime import Runtime
from scaleacross.spec.accelerator import Accelerator, Precision
from scaleacross.spec.conversion import Conversion
from scaleacross.spec.framework import Overlap
from scaleacross.targets import TARGETS
from scaleacross.validation.mapping import Case, case_of
from scaleacross.workloads.layer_profile import LayerProfile
from scaleacross.workloads.variants import (
    with_attention_rate,
    with_unfused_attention,
    without_sequence_parallelism,
)

H100 = catalogue.load_accelerator("h100-sxm")


def times(
    layer: LayerProfile,
    *,
    tp: int = 1,
    chip: Accelerator = H100,
    precision: Precision = "bf16",
    experts: int = 0,
    host_share: float = 1.0,
) -> LayerTimes:
    one = np.ones(1, dtype=np.int64)
    return layer_times(
        layer,
        experts,
        chip,
        precision,
        Shards(tp * one, one, one, one, 0 * one, 0 * one, one, one),
        4096,
        Runtime(host_share=host_share),
    )


def block(name: str = "l1") -> LayerProfile:
    return case_of(run(name)).profile.blocks[0][0]


def cost_of(case: Case, **overlap: object) -> PlanCost:
    job = case.job.model_copy(update={"overlap": Overlap.model_validate(overlap)})
    return plan_cost(job, case.profile, case.topology, case.decisions[0])


def test_unfused_attention_moves_every_score() -> None:
    profile = case_of(run("l1")).profile
    unfused = with_unfused_attention(profile).blocks[0][0]
    memory = H100.memory_bandwidth_bytes_per_s * H100.memory_efficiency_fraction
    scores = 64 * 4096 * 4096  # heads · s²
    extra = float(times(unfused).attention_s[0])
    assert extra > 9 * scores / memory  # softmax and dropout only
    assert extra < (9 + 2 * 2 + 2) * scores / memory + 1e-3  # with the products that write and read the scores
    assert float(times(unfused).partly_s[0]) == pytest.approx(extra)  # selective repeats the attention core


def test_slower_attention_is_slower_by_its_ratio() -> None:
    profile = case_of(run("l1")).profile
    half = times(with_attention_rate(profile, 0.5).blocks[0][0])
    launch = max(H100.kernel_launch_s, attention_model_of(H100).launch_s)
    assert half.attention_s - launch == pytest.approx(2 * (times(block()).attention_s - launch))


def test_without_sequence_parallelism_norms_take_as_long_on_every_rank() -> None:
    profile = case_of(run("l1")).profile
    with_sp, without = profile.blocks[0][0], without_sequence_parallelism(profile).blocks[0][0]
    assert times(with_sp, tp=1).forward_s == pytest.approx(times(without, tp=1).forward_s)
    memory = H100.memory_bandwidth_bytes_per_s * H100.memory_efficiency_fraction
    more = times(without, tp=8).forward_s - times(with_sp, tp=8).forward_s
    assert more == pytest.approx(20 * 8192 * 4096 * (1 - 1 / 8) / memory)


def test_output_projection_stays_in_sixteen_bit() -> None:
    head = case_of(run("n1")).profile.head
    assert times(head, precision="fp8").forward_s == pytest.approx(times(head).forward_s)
    assert times(block("n1"), precision="fp8").forward_s < 0.8 * times(block("n1")).forward_s


def test_host_sets_a_floor_for_layers_with_experts_only() -> None:
    slow = H100.model_copy(update={"host_moe_pass_s": 1.0})
    routed = replace(block(), routed_tokens=2)
    assert times(block(), chip=slow).forward_s < 1
    floor = (
        18 / 20
    )  # four products, as many other operators and ten of the routing, of the 20 that the second is stated for
    assert times(routed, chip=slow, experts=8).forward_s == floor
    assert times(routed, chip=slow, experts=8).backward_s == 2 * floor
    assert times(routed, chip=slow, experts=8, host_share=0.5).forward_s == floor / 2
    assert times(routed, chip=slow, experts=8, host_share=0.0).forward_s < 0.1


def test_experts_of_a_rank_are_launched_one_by_one() -> None:
    mixtral = catalogue.load_workload("mixtral-8x22b").profile().blocks[0][0]
    slow = H100.model_copy(update={"host_moe_pass_s": 1.0})
    operators = 2 * len(mixtral.gemms) + 10  # of the layer with one expert on a rank
    for precision, launches in (
        ("bf16", 2 * 7),
        ("fp8", 2 * 2 * 7),
    ):  # two products, converted in 8 bit, of 7 more experts
        found = times(mixtral, chip=slow, experts=8, precision=precision).forward_s
        assert found == pytest.approx((operators + 0.12 * launches) / 20)


def test_copies_are_sorted_where_a_rank_has_several_experts() -> None:
    mixtral = catalogue.load_workload("mixtral-8x22b").profile().blocks[0][0]
    one = np.ones(1, dtype=np.int64)
    shards = Shards(one, one, 4 * one, one, 0 * one, 0 * one, one, one)
    sorts, fused, alone = (
        layer_times(mixtral, experts, H100, "bf16", shards, 4096, Runtime(0.0, 0.0, sorts)).elementwise_s
        for experts, sorts in ((8, True), (8, False), (4, True))
    )
    memory = H100.memory_bandwidth_bytes_per_s * H100.memory_efficiency_fraction
    assert sorts - fused == pytest.approx(4096 * 8 * 6144 * 2 / memory)
    assert alone == fused


def test_gradients_that_do_not_overlap_are_exposed_in_full() -> None:
    case = case_of(run("v1"))
    hidden, waited = cost_of(case), cost_of(case, gradient_reduce=False, parameter_gather=False)
    reduce = next(flow for flow in waited.collectives if "gradients" in flow.name)
    assert waited.cost.exposed_s["dp"] == pytest.approx(reduce.time_s * reduce.per_step)
    assert hidden.cost.exposed_s["dp"] < waited.cost.exposed_s["dp"]


def test_pipeline_messages_that_block_cost_the_last_rank_its_gradients() -> None:
    """Blocking pipeline messages delay the last rank by its gradient messages.

    Free messages delay only the pipeline's first and last micro-batch. Blocking ones also cost the busiest rank its own
    sends. Here the last rank sends gradients, all but the last of them before further work.
    """
    case = case_of(run("v2"))  # 8 stages, 8 micro-batches
    free, blocking = cost_of(case), cost_of(case, pipeline_messages=False)
    send = next(flow for flow in free.collectives if flow.op == "send")
    more = blocking.cost.exposed_s["pp"] - free.cost.exposed_s["pp"]
    assert more == pytest.approx(7 * send.time_s, rel=0.02)


def test_userbuffers_hide_their_share_of_tp() -> None:
    case = case_of(run("l1"))
    whole = cost_of(case, tp_reduce=False, tp_fraction=0.0)
    half = cost_of(case, tp_reduce=False, tp_fraction=0.5)
    assert half.cost.exposed_s["tp"] == pytest.approx(whole.cost.exposed_s["tp"] / 2)


def test_input_gradients_are_reduced_beside_weight_gradients() -> None:
    """Input gradients are reduced while weight gradients are computed.

    With sequence parallelism this overlaps half of the backward pass. Without it, and with a second forward pass, a
    third is overlapped. There are 3·80 pairs of 80 layers and 2 of the ends, which run forward once; 81 are reductions.
    Computation loses the work of 16 of 132 or 108 multiprocessors meanwhile.
    """
    for name, part, taken in (("l1", 1 / 4, 16 / 132), ("v1", 81 / 242, 16 / 108)):
        case, hidden = case_of(run(name)), part * (1 - taken)
        waited, beside = (cost_of(case, tp_reduce=on, tp_fraction=0.0).cost.exposed_s["tp"] for on in (False, True))
        assert beside == pytest.approx((1 - hidden) * waited)
        both = cost_of(case, tp_reduce=True, tp_fraction=0.5).cost.exposed_s["tp"]
        assert both == pytest.approx(0.5 * waited)  # userbuffers' share includes them


def test_reductions_over_slow_links_stick_out() -> None:
    case = case_of(replace(run("v1"), tp=16, dp=16))  # tp across hosts
    waited, beside = (cost_of(case, tp_reduce=on) for on in (False, True))
    saved = waited.cost.exposed_s["tp"] - beside.cost.exposed_s["tp"]
    assert 0 < saved < waited.cost.exposed_s["tp"] / 3
    assert saved < waited.cost.compute_s / 4


def test_pipeline_messages_wait_where_the_row_says_so() -> None:
    assert case_of(run("l1")).job.overlap.pipeline_messages
    assert not case_of(replace(run("l1"), overlap="no p2p overlap")).job.overlap.pipeline_messages


def test_frameworks_convert_as_their_recipes_say() -> None:
    titan = replace(run("n2"), framework="torchtitan")
    recipes = {
        row.precision: (case_of(row).job.conversion.recipe, case_of(row).job.conversion.narrow_parameters)
        for row in (
            *(replace(titan, precision=text) for text in ("fp8", "fp8-tensorwise", "fp8-rowwise")),
            *(replace(run("n2"), precision=text, gpu="GB200") for text in ("mxfp8", "fp8-cs", "nvfp4")),
        )
    }
    assert recipes == {
        "fp8": ("torchao_tensorwise", True),
        "fp8-tensorwise": ("torchao_tensorwise", False),
        "fp8-rowwise": ("torchao_rowwise", False),
        "mxfp8": ("mxfp8", True),
        "fp8-cs": ("tensorwise", True),
        "nvfp4": ("nvfp4", False),
    }
    assert case_of(run("n2")).job.conversion == Conversion(recipe="delayed", narrow_parameters=True)
    assert case_of(run("l1")).job.conversion == Conversion()  # bf16


def test_scales_per_row_cost_what_torchao_publishes() -> None:
    """Scales per row cost what torchao publishes.

    Llama 3 8B on 8 H100 has 6,768 tokens/s. It has 7,689.5 with one scale per tensor and parameters gathered in 8 bit
    (pytorch/ao 9519beb, torchao/float8/README.md). The row is not part of the fit.
    """
    model = replace(run("l1"), hidden=4096, ffn=14336, layers=32, heads=32, framework="torchtitan")
    row = replace(model, tp=1, cp=1, pp=1, vpp=None, dp=8, fsdp=8, n_gpus=8, gbs=8, seq=8192, recompute="selective")
    cases = (case_of(replace(row, precision=text)) for text in ("fp8-rowwise", "fp8"))
    slow, fast = (plan_cost(c.job, c.profile, c.topology, c.decisions[0]).cost.step_s for c in cases)
    assert slow / fast == pytest.approx(7689.5 / 6768, rel=0.03)


def test_torchtitan_runs_query_key_and_value_as_products_of_their_own() -> None:
    fused, own = (case_of(replace(run("l1"), framework=text)).profile for text in ("NeMo", "torchtitan"))
    one, apart = fused.blocks[0][0], own.blocks[0][0]
    assert sum(gemm.flop_per_token for gemm in apart.gemms) == sum(gemm.flop_per_token for gemm in one.gemms)
    assert [gemm.siblings for gemm in apart.gemms] == [3, 3, 3, 1, 2, 2, 1]


@pytest.mark.parametrize(
    ("framework", "target"),
    [("torchtitan", "torchtitan"), ("NeMo Megatron-Core", "megatron"), ("Megatron-LM", "megatron")],
)
def test_pipelines_of_rows_overlap_as_those_of_their_target(framework: str, target: str) -> None:
    """Pipelines of rows overlap as those of their target.

    Planner and validation time one framework in one way.
    """
    told = case_of(replace(run("l1"), framework=framework)).job.overlap
    fixed = {name.removeprefix("overlap."): value for name, value in TARGETS[target].behaviour.items()}
    names = fixed.keys() & {"reduce_within_pass", "unchunked_messages"}
    assert names and {name: getattr(told, name) for name in names} == {name: fixed[name] for name in names}


def test_torchtitan_s_rows_keep_what_its_target_says() -> None:
    """Rows of torchtitan follow its target.

    Its compiler covers layers unless a row says eager, and the loss if the column says so. One GPU alone has no FSDP.
    """
    row = replace(run("l1"), framework="torchtitan", tp=1, cp=1, pp=1, vpp=None, dp=64, fsdp=64, gbs=64)
    kept = case_of(row).job.kept
    assert kept.by == TARGETS["torchtitan"].behaviour["kept.by"]
    assert (kept.compiled, kept.autocast) == (("model",), False)
    assert case_of(replace(row, notes="eager", loss="compiled")).job.kept.compiled == ("loss",)
    assert case_of(replace(row, n_gpus=1, dp=1, fsdp=1)).job.kept.autocast
    assert case_of(run("l1")).job.kept.by == "megatron"
    head = [case_of(replace(row, loss=loss)).profile.head.activations["none"].sharded for loss in ("", "compiled")]
    assert head[0] - head[1] == 2 * 128256
