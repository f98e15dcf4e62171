"""Activation bytes and element-wise traffic per token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleacross.catalogue import load_workload
from scaleacross.workloads import DenseTransformer


def gpt(**changes: object) -> DenseTransformer:
    fields: dict[str, object] = {
        "name": "gpt",
        "num_layers": 2,
        "hidden_size": 1024,
        "num_heads": 16,
        "num_kv_heads": 16,
        "head_dim": 64,
        "intermediate_size": 4096,
        "vocabulary_size": 50_000,
        "gated_mlp": False,
        "tied_embedding": True,
        "norm": "layernorm",
        "bias": True,
        "dropout": True,
    }
    return DenseTransformer.model_validate({**fields, **changes})


def held(workload: DenseTransformer, policy: str) -> float:
    activations = workload.profile().blocks[0][0].activations[policy]
    assert activations.replicated == 0
    return activations.sharded


def test_gpt_block_holds_34_bytes_per_feature() -> None:
    # Korthikanti et al. (arXiv 2205.05198) equation 1 without the attention square, plus 4 bytes of statistics per head
    assert held(gpt(), "none") == 34 * 1024 + 4 * 16


def test_dropout_masks_are_two_bytes_per_feature() -> None:
    assert held(gpt(), "none") - held(gpt(dropout=False), "none") == 2 * 1024


def test_llama_block_holds_what_crosspipe_counts() -> None:
    # arXiv 2507.00217: (12 + 4 α) d + 8 f; softmax statistics added
    d, f, heads, kv_heads = 16_384, 53_248, 128, 8
    block = load_workload("llama3.1-405b").profile().blocks[0][0]
    expected = (12 + 4 * kv_heads / heads) * d + 8 * f + 4 * heads
    assert block.activations["none"].sharded == expected


def test_selective_drops_norm_outputs_and_the_activation_product() -> None:
    d, f = 16_384, 53_248
    activations = load_workload("llama3.1-405b").profile().blocks[0][0].activations
    assert activations["none"].sharded - activations["selective"].sharded == 4 * d + 4 * f
    assert activations["full"].sharded == 2 * d


def test_mixtral_holds_its_token_copies() -> None:
    d, f, k, experts = 6144, 16_384, 2, 8
    attention = 12 * d + 4 * d * 8 / 48 + 4 * 48
    block = load_workload("mixtral-8x22b").profile().blocks[0][0]
    assert block.activations["none"].sharded == attention + 4 * experts + k * (2 * d + 8 * f)
    assert block.activations["selective"].sharded == attention - 4 * d + 4 * experts + k * (2 * d + 4 * f)


def test_latent_attention_holds_latents_and_expanded_heads() -> None:
    d, heads = 7168, 128
    leading = load_workload("deepseek-v3").profile().blocks[0][0]
    latents = 4 * 1536 + 4 * 512
    expanded = 2 * heads * (192 + 192 + 128) + 2 * heads * 128 + 4 * heads
    assert leading.activations["none"].sharded == 8 * d + latents + expanded + 8 * 18_432
    assert leading.kv_features == heads * (192 + 128)


def test_head_holds_fp32_softmax_whatever_the_policy() -> None:
    head = load_workload("llama3.1-8b").profile().head
    assert {policy: kept.sharded for policy, kept in head.activations.items()} == dict.fromkeys(
        ("none", "selective", "full"), 4 * 4096 + 4 * 128_256
    )


def test_elementwise_traffic_item_by_item() -> None:
    d, f, q, k = 16_384, 53_248, 16_384, 1024
    block = load_workload("llama3.1-405b").profile().blocks[0][0]
    assert block.elementwise_bytes == 2 * 4 * d + 4 * (q + k) + 6 * f + 2 * 6 * d


@given(
    heads=st.sampled_from([8, 16, 32]),
    groups=st.sampled_from([1, 2, 4, 8]),
    width=st.integers(1, 10_000),
    gated=st.booleans(),
    qk_norm=st.booleans(),
)
def test_more_recomputation_never_holds_more(heads: int, groups: int, width: int, gated: bool, qk_norm: bool) -> None:
    workload = gpt(
        num_heads=heads, num_kv_heads=heads // groups, intermediate_size=width, gated_mlp=gated, qk_norm=qk_norm
    )
    assert held(workload, "none") > held(workload, "selective") > held(workload, "full") > 0


@pytest.mark.parametrize("name", ["llama3.1-8b", "deepseek-v3"])
def test_a_block_gathers_for_attention_and_for_the_mlp(name: str) -> None:
    profile = load_workload(name).profile()
    assert {layer.tp_gathers for layer, _ in profile.blocks} == {2}
    assert profile.embedding.tp_gathers + profile.head.tp_gathers == 1
