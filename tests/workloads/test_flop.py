"""Model FLOP against counts that do not share code with the profile."""

from __future__ import annotations

import pytest

from scaleacross.catalogue import load_workload


def attention_flop(layers: int, heads: int, qk_and_v: int, sequence: int) -> float:
    """Causal attention, forward and backward, FLOP per token.

    Token t uses t + 1 keys, (sequence + 1) / 2 on average.
    """
    return 3 * layers * heads * 2 * qk_and_v * (sequence + 1) / 2


# name -> layers, heads, (qk + v) features per head
SHAPES = {
    "llama3.1-8b": (32, 32, 256),
    "llama3.1-70b": (80, 64, 256),
    "llama3.1-405b": (126, 128, 256),
    "gpt3-175b": (96, 96, 256),
    "mixtral-8x22b": (56, 48, 256),
    "qwen3-235b-a22b": (94, 64, 256),
    "deepseek-v3": (61, 128, 192 + 128),
}


@pytest.mark.parametrize("sequence", [2048, 8192, 131_072])
@pytest.mark.parametrize("name", SHAPES)
def test_model_flop_is_six_per_active_parameter_plus_attention(name: str, sequence: int) -> None:
    layers, heads, qk_and_v = SHAPES[name]
    profile = load_workload(name).profile()
    expected = 6 * profile.active_parameters + attention_flop(layers, heads, qk_and_v, sequence)
    assert profile.model_flop_per_token(sequence) == pytest.approx(expected, rel=0.01)


def test_llama_405b_block_equals_the_formula_of_crosspipe() -> None:
    # arXiv 2507.00217: F = 2 b s² d + 4 b s d² (1 + α) + 6 b s d f with α = KV heads / heads
    d, f, s, alpha = 16_384, 53_248, 8192, 8 / 128
    block = load_workload("llama3.1-405b").profile().blocks[0][0]
    expected = 2 * s * d + 4 * d * d * (1 + alpha) + 6 * d * f
    assert block.forward_flop_per_token(s) == pytest.approx(expected, rel=1e-12)


def test_mixtral_computes_two_of_eight_experts() -> None:
    block = load_workload("mixtral-8x22b").profile().blocks[0][0]
    experts = sum(gemm.flop_per_token for gemm in block.gemms if gemm.shard.startswith("expert"))
    assert experts == 2 * 2 * 3 * 6144 * 16_384
    assert block.routed_tokens == 2


def test_weights_of_the_matrices_are_the_parameters() -> None:
    for name in SHAPES:
        profile = load_workload(name).profile()
        for layer, _ in profile.blocks:
            own = sum(
                gemm.in_features * gemm.out_features for gemm in layer.gemms if not gemm.shard.startswith("expert")
            )
            assert own == pytest.approx(layer.num_parameters, rel=0.001)  # all but norms and biases
            routed = sum(
                gemm.in_features * gemm.out_features for gemm in layer.gemms if gemm.shard.startswith("expert")
            )
            assert routed * profile.num_experts == layer.num_expert_parameters
