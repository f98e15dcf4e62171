"""The same model in older and other frameworks."""

from __future__ import annotations

import pytest

from scaleacross import catalogue
from scaleacross.spec.framework import Kept
from scaleacross.workloads.dense_transformer import DenseTransformer
from scaleacross.workloads.layer_profile import LayerProfile, ModelProfile
from scaleacross.workloads.variants import (
    with_attention_rate,
    with_lean_activations,
    with_operator_recompute,
    with_pruned_recompute,
    with_separate_projections,
    with_unfused_attention,
    without_sequence_parallelism,
)


def model(*, gated: bool = True) -> ModelProfile:
    return DenseTransformer(
        name="m",
        num_layers=4,
        hidden_size=4096,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=14336,
        vocabulary_size=128256,
        gated_mlp=gated,
        tied_embedding=False,
    ).profile()


def block(profile: ModelProfile) -> LayerProfile:
    return profile.blocks[0][0]


def test_without_sequence_parallelism_norms_and_residuals_are_repeated() -> None:
    before, after = block(model()), block(without_sequence_parallelism(model()))
    assert before.stream_bytes == 20 * 4096  # two norms of 4d, two residual additions of 6d
    assert (before.replicated_elementwise_bytes, after.replicated_elementwise_bytes) == (0, 20 * 4096)
    for policy, stream in {"none": 8 * 4096, "full": 2 * 4096}.items():
        kept, was = after.activations[policy], before.activations[policy]
        assert kept.replicated == stream  # norm inputs and outputs; the block input
        assert kept.sharded + kept.replicated == was.sharded + was.replicated


def rerun_share(layer: LayerProfile) -> float:
    """Share of the products' FLOP that selective recomputation repeats."""
    again = sum(gemm.flop_per_token * gemm.selective for gemm in layer.gemms)
    return again / sum(gemm.flop_per_token for gemm in layer.gemms)


def test_operator_recompute_repeats_every_second_product() -> None:
    after = block(with_operator_recompute(with_separate_projections(model()), Kept()))
    # q, k, v, output, gate, up, down: k, output and up are repeated
    repeated = 4096 * 1024 + 4096 * 4096 + 4096 * 14336
    total = 2 * 4096 * 1024 + 2 * 4096 * 4096 + 3 * 4096 * 14336
    assert rerun_share(after) == pytest.approx(repeated / total)
    plain = block(with_operator_recompute(with_separate_projections(model(gated=False)), Kept()))
    # q, k, v, output, up, down: k, output and down
    assert rerun_share(plain) == pytest.approx(
        (4096 * 1024 + 4096 * 4096 + 4096 * 14336) / (2 * 4096 * 1024 + 2 * 4096 * 4096 + 2 * 4096 * 14336)
    )
    assert after.activations["selective"].sharded < block(model()).activations["selective"].sharded


def test_attention_variants_change_only_attention() -> None:
    base = block(model())
    unfused, slower = block(with_unfused_attention(model())), block(with_attention_rate(model(), 0.5))
    assert unfused.attention is not None and not unfused.attention.fused
    assert slower.attention is not None and slower.attention.rate_ratio == 0.5
    for other in (unfused, slower):
        assert other.gemms == base.gemms and other.elementwise_bytes == base.elementwise_bytes


def test_down_projections_of_latents_end_no_feed_forward() -> None:
    """Down projections of latents are not the end of a feed-forward part.

    DeepSeek-V3's kv_down and q_down read the stream. No activation of theirs is smaller, eager or pruned.
    """
    profile = catalogue.load_workload("deepseek-v3").profile()
    dense = block(profile)
    gemms = {gemm.name: gemm for gemm in dense.gemms}
    assert {"q_down", "kv_down", "mlp_down"} <= gemms.keys()
    pruned = block(with_pruned_recompute(profile))
    whole = sum(gemm.flop_per_token for gemm in dense.gemms)
    assert pruned.full_recompute_fraction == pytest.approx(1 - gemms["mlp_down"].flop_per_token / whole)
    lean = block(with_lean_activations(profile, narrow=False))
    assert dense.activations["none"].sharded - lean.activations["none"].sharded == 2 * 18_432


def test_blocks_of_equal_layers_share_one_in_every_variant() -> None:
    profile = catalogue.load_workload("gpt-oss-120b").profile()
    assert len(profile.blocks) == len(profile.of_blocks) == 36
    for variant in (profile, with_separate_projections(profile), with_unfused_attention(profile)):
        assert [variant.layers[number] for number in variant.of_blocks] == [layer for layer, _ in variant.blocks]
        assert len(variant.layers) == 2
