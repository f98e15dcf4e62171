"""Rules complete rows with missing fields, and variants change a layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from measured_rows import run

from scaleacross import catalogue
from scaleacross.validation.mapping import case_of
from scaleacross.validation.predict import predict
from scaleacross.validation.runs import Run
from scaleacross.workloads import variants
from scaleacross.workloads.layer_profile import LayerProfile, ModelProfile

MIXTRAL = catalogue.load_workload("mixtral-8x22b").profile()
LLAMA = catalogue.load_workload("llama3.1-70b").profile()


def moe_row(gpu: str = "GB200", **changes: Any) -> Run:
    return replace(
        run("n1"),
        source="NVIDIA-NeMo/Megatron-Bridge",
        framework="Megatron-Bridge / Megatron-Core",
        model="qwen3_30b_a3b",
        arch="moe",
        gpu=gpu,
        precision="fp8",
        **{"experts": 8, "topk": 2, "moe_ffn": 1024, "ep": 8, "tp": 2, **changes},
    )


def test_tokens_are_sent_once_to_each_domain_where_experts_spread_over_several() -> None:
    hosts = {"etp": 1, "tp": 1, "dp": 16, "vpp": None}  # two hosts of 8, or one rack of 64
    found = {
        gpu: case_of(moe_row(gpu, **hosts, ep=ep, experts=16)).job.experts
        for gpu, ep in (("H100-80GB", 8), ("H100-96GB", 16), ("GB200", 16))
    }
    dispatch = {gpu: experts.dispatch for gpu, experts in found.items()}
    assert dispatch == {"H100-80GB": "copies", "H100-96GB": "deduplicated", "GB200": "deduplicated"}
    assert {gpu: experts.graphs for gpu, experts in found.items()} == {
        "H100-80GB": "none",
        "H100-96GB": "none",
        "GB200": "partial",
    }  # racks as NVIDIA's playbook has them


def test_whole_layers_are_recomputed_as_far_as_memory_asks_for_it() -> None:
    case = case_of(replace(run("n1"), recompute="", mbs=8))
    alone = {d.recompute: predict(replace(case, decisions=(d,))) for d in case.decisions}
    found = predict(case)
    light, heavy = alone["selective"], alone["full"]
    assert not light.fits and heavy.fits and light.step_s < found.step_s < heavy.step_s
    share = (light.memory_bytes - light.capacity_bytes) / (light.memory_bytes - heavy.memory_bytes)
    assert found.step_s == pytest.approx((1 - share) * light.step_s + share * heavy.step_s)


def test_experts_that_tp_does_not_divide_are_spread_over_it() -> None:
    case = case_of(moe_row("H100-80GB"))
    assert (case.decisions[0].degrees.ep, case.decisions[0].degrees.expert_ranks) == (4, 8)
    divided = case_of(moe_row("H100-80GB", etp=2, ep=4))
    assert (divided.decisions[0].degrees.ep, divided.decisions[0].degrees.expert_ranks) == (4, 4)


def _block(profile: ModelProfile) -> LayerProfile:
    return profile.blocks[-1][0]


def test_biases_of_experts_are_added_by_kernels_of_their_own_where_a_model_has_them() -> None:
    plain = catalogue.load_workload("gpt-oss-120b").profile()
    biased = variants.with_separate_expert_bias(plain)
    per_copy = (28 + 40) / 3  # with twice as much backward the 68 bytes that experts.py moves in both passes
    added = per_copy * 2880 * 4
    assert _block(biased).elementwise_bytes - _block(plain).elementwise_bytes == pytest.approx(added)
    again = _block(biased).modules["moe"].elementwise_bytes - _block(plain).modules["moe"].elementwise_bytes
    assert again == pytest.approx(added)
    assert variants.with_separate_expert_bias(MIXTRAL) == MIXTRAL
    assert variants.with_separate_expert_bias(LLAMA) == LLAMA


def test_padding_copies_every_token_in_and_out() -> None:
    padded = _block(variants.with_padded_experts(MIXTRAL))
    assert padded.elementwise_bytes - _block(MIXTRAL).elementwise_bytes == 8 * 6144 * 2
    assert variants.with_padded_experts(LLAMA) == LLAMA


def test_pruned_recomputation_leaves_out_the_last_product() -> None:
    # q, k, v 8192 · 10240, output 8192², gate and up 2 · 8192 · 28672, down as much as either
    share = 8192 * 28672 / (8192 * 10240 + 8192**2 + 3 * 8192 * 28672)
    assert _block(variants.with_pruned_recompute(LLAMA)).full_recompute_fraction == pytest.approx(1 - share)


def test_eager_operators_move_more_bytes_than_fused_ones() -> None:
    more = (
        _block(variants.with_eager_operators(LLAMA, variants.Uncompiled())).elementwise_bytes
        - _block(LLAMA).elementwise_bytes
    )
    assert more == 2 * 30 * 8192 + 16 * (64 + 8) * 128 + 4 * 28672
    one_kernel = variants.Uncompiled(norms=False, rotary=False, gates=False)
    assert variants.with_eager_operators(LLAMA, one_kernel) == LLAMA


@pytest.mark.parametrize(
    ("name", "stream", "inside"),
    [
        ("llama3.1-8b", 2, 0),
        ("gemma-3-27b", 4, (32 + 16) * 128),  # norms before and after each half, and of q and k
        ("deepseek-v3", 2, 1536 + 512),  # norms of both latents
        ("gpt3-175b", 0, 0),  # LayerNorm
    ],
)
def test_eager_norms_are_those_that_a_layer_has(name: str, stream: int, inside: int) -> None:
    block = _block(catalogue.load_workload(name).profile())
    eager = variants.Uncompiled(norms=True, rotary=False, gates=False)
    found = _block(variants.with_eager_operators(catalogue.load_workload(name).profile(), eager))
    on_stream = 30 * stream * block.hidden_size
    assert found.stream_bytes - block.stream_bytes == on_stream
    assert found.elementwise_bytes - block.elementwise_bytes == on_stream + 30 * inside


def test_lean_activations_hold_what_the_backward_pass_reads() -> None:
    before = _block(LLAMA).activations["none"].sharded
    wide, narrow = (
        _block(variants.with_lean_activations(LLAMA, narrow=flag)).activations["none"].sharded for flag in (False, True)
    )
    assert before - wide == 2 * 28672  # SiLU(gate)
    assert wide - narrow == 2 * 8192 + 28672 - 64 * 128  # inputs of 1 byte; the attention output is held twice
