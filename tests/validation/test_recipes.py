"""What published recipes add to a row, and what the variants do to a layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measured_rows import run

from scaleacross import catalogue
from scaleacross.spec.accelerator import Precision
from scaleacross.validation.mapping import case_of
from scaleacross.validation.recipes import EXPERT_RECIPES, expert_recipe
from scaleacross.validation.runs import Run
from scaleacross.workloads import variants
from scaleacross.workloads.layer_profile import LayerProfile, ModelProfile

MIXTRAL = catalogue.load_workload("mixtral-8x22b").profile()
LLAMA = catalogue.load_workload("llama3.1-70b").profile()


def moe_row(release: str, gpu: str = "GB200", precision: Precision = "fp8", **changes: object) -> Run:
    return replace(
        run("n1"),
        source="NVIDIA-NeMo/Megatron-Bridge",
        source_ref=f"docs/performance-summary.md {release}",
        framework="Megatron-Bridge / Megatron-Core",
        model="qwen3_30b_a3b",
        arch="moe",
        gpu=gpu,
        precision=precision,
        **{"experts": 8, "topk": 2, "moe_ffn": 1024, "ep": 8, "tp": 2, **changes},
    )


@pytest.mark.parametrize(
    ("release", "gpu", "graphs", "dispatch", "fused"),
    [
        ("25.11", "GB200", "none", "copies", False),
        ("26.04.01", "GB200", "partial", "deduplicated", False),
        ("26.06", "GB200", "full", "deduplicated", True),
        ("26.02", "H100-80GB", "none", "copies", False),
        ("26.04", "H100-80GB", "none", "deduplicated", False),
    ],
)
def test_the_newest_recipe_up_to_the_release_counts(
    release: str, gpu: str, graphs: str, dispatch: str, fused: bool
) -> None:
    recipe = expert_recipe(moe_row(release, gpu))
    assert (recipe.runtime.graphs, recipe.runtime.dispatch, recipe.fused) == (graphs, dispatch, fused)


def test_no_release_is_a_recipe_of_its_own() -> None:
    assert expert_recipe(run("n1")).runtime.dispatch == "copies"
    assert expert_recipe(moe_row("README.md")).since == (0, 0)
    assert expert_recipe(replace(moe_row("25.09"), notes="tokendrop")).runtime.graphs == "partial"


def test_a_row_of_a_source_left_out_has_no_recipe() -> None:
    row = moe_row("26.06")
    assert case_of(row).job.experts.graphs == "full"
    assert case_of(row, recipes=False).job.experts == case_of(replace(row, source_ref="README.md")).job.experts


def test_newer_recipes_stand_before_older_ones() -> None:
    for index, later in enumerate(EXPERT_RECIPES):
        for earlier in EXPERT_RECIPES[:index]:
            if earlier.model == later.model and set(earlier.gpus) & set(later.gpus):
                assert earlier.since > later.since


def test_experts_that_tp_does_not_divide_are_spread_over_it() -> None:
    case = case_of(moe_row("25.09", "H100-80GB"))
    assert (case.decisions[0].degrees.ep, case.profile.whole_experts) == (4, True)
    divided = case_of(moe_row("25.09", "H100-80GB", etp=2, ep=4))
    assert (divided.decisions[0].degrees.ep, divided.profile.whole_experts) == (4, False)


def _block(profile: ModelProfile) -> LayerProfile:
    return profile.blocks[-1][0]


def test_whole_experts_gather_for_attention_only() -> None:
    whole = _block(variants.with_whole_experts(MIXTRAL))
    assert (_block(MIXTRAL).tp_gathers, whole.tp_gathers) == (2, 1)
    assert variants.with_whole_experts(LLAMA) == LLAMA


def test_fused_experts_save_the_activation_and_a_conversion_each_way() -> None:
    fused = _block(variants.with_fused_experts(MIXTRAL))
    assert _block(MIXTRAL).elementwise_bytes - fused.elementwise_bytes == 6 * 16384 * 2
    kept = {gemm.name: (gemm.cast_input, gemm.cast_gradient) for gemm in fused.gemms}
    assert (kept["expert_up"], kept["expert_down"]) == ((True, False), (False, True))


def test_padding_copies_every_token_in_and_out() -> None:
    padded = _block(variants.with_padded_experts(MIXTRAL))
    assert padded.elementwise_bytes - _block(MIXTRAL).elementwise_bytes == 8 * 6144 * 2
    assert variants.with_padded_experts(LLAMA) == LLAMA


def test_pruned_recomputation_leaves_out_the_last_product() -> None:
    # q, k, v 8192 · 10240, output 8192², gate and up 2 · 8192 · 28672, down as much as either
    share = 8192 * 28672 / (8192 * 10240 + 8192**2 + 3 * 8192 * 28672)
    assert _block(variants.with_pruned_recompute(LLAMA)).full_recompute_fraction == pytest.approx(1 - share)


def test_eager_operators_move_more_bytes_than_fused_ones() -> None:
    more = _block(variants.with_eager_operators(LLAMA)).elementwise_bytes - _block(LLAMA).elementwise_bytes
    assert more == 2 * 30 * 8192 + 16 * (64 + 8) * 128 + 4 * 28672


def test_lean_activations_hold_what_the_backward_pass_reads() -> None:
    before = _block(LLAMA).activations["none"].sharded
    wide, narrow = (
        _block(variants.with_lean_activations(LLAMA, narrow=flag)).activations["none"].sharded for flag in (False, True)
    )
    assert before - wide == 2 * 28672  # SiLU(gate)
    assert wide - narrow == 2 * 8192 + 28672 - 64 * 128  # inputs of 1 byte; the attention output is held twice
