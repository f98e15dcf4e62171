"""Recomputation of named modules: what Megatron-Core with Transformer Engine frees and repeats, counted by hand."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from scaleacross.catalogue import load_workload
from scaleacross.spec.recomputation import MODULE_SETS, MODULES, RECOMPUTES, Recompute, modules_of
from scaleacross.workloads.layer_profile import LayerProfile
from scaleacross.workloads.variants import with_lean_activations, without_sequence_parallelism


def freed(layer: LayerProfile, policy: str) -> float:
    return layer.kept("none").sharded - layer.kept(policy).sharded


def flop_again(layer: LayerProfile, module: str) -> float:
    return sum(gemm.flop_per_token for gemm in layer.gemms if module in gemm.modules)


def test_a_dense_layer_has_its_feed_forward_and_its_attention_alone() -> None:
    """A dense layer offers only its feed-forward part and its attention.

    The norms of grouped-query attention are inside products, so ``layernorm`` has nothing to free.
    """
    profile = with_lean_activations(load_workload("llama3.1-8b").profile(), narrow=False)
    layer, _ = profile.blocks[0]
    h, f, a = 4096, 14_336, 32
    assert profile.modules == ("core_attn", "mlp")
    assert layer.kept("none").sharded == 8 * h + 4 * h + 4 * h / 4 + 6 * f + 4 * a
    assert freed(layer, "core_attn") == 4 * a
    assert freed(layer, "mlp") == 2 * h + 6 * f
    assert freed(layer, "core_attn+mlp") == 4 * a + 2 * h + 6 * f
    assert flop_again(layer, "mlp") == 6 * h * f
    assert (layer.gathers_again("mlp"), layer.gathers_again("core_attn"), layer.gathers_again("full")) == (1, 0, 2)
    assert (profile.keys_again("core_attn"), profile.keys_again("mlp")) == (1, 0)
    assert profile.acting("layernorm+mlp+moe") == "mlp"
    assert profile.acting("moe_act") == "none"


def test_latent_attention_and_experts() -> None:
    profile = with_lean_activations(load_workload("deepseek-v3").profile(), narrow=False)
    (dense, _), (experts, _) = profile.blocks
    h, a, n, r, v, q_l, k_l = 7168, 128, 128, 64, 128, 1536, 512
    K, e, s, f = 8, 2048, 2048, 18_432
    assert profile.modules == MODULES
    for layer in (dense, experts):
        assert freed(layer, "mla_up_proj") == 2 * a * (2 * (n + r) + v)
        assert flop_again(layer, "mla_up_proj") == 2 * q_l * a * (n + r) + 2 * k_l * a * (n + v)
        assert layer.gathers_again("mla_up_proj") == pytest.approx((q_l + k_l) / h / 2)
    assert freed(dense, "layernorm") == 2 * h
    assert freed(experts, "layernorm") == 4 * h
    assert freed(dense, "mlp") == 2 * h + 6 * f
    assert freed(dense, "mlp+moe") == freed(dense, "mlp")
    assert freed(experts, "moe_act") == 2 * K * e
    assert freed(experts, "shared_experts") == 6 * s
    router = 4 * 256
    assert freed(experts, "moe") == router + 2 * K * h + 6 * K * e + 6 * s
    assert flop_again(experts, "moe") == 6 * K * h * e + 6 * h * s + 2 * h * 256
    assert (experts.gathers_again("moe"), experts.gathers_again("moe_act")) == (1, 0)
    assert experts.gathers_again("moe_act+shared_experts") == 1


def test_what_is_freed_is_never_more_than_what_is_held() -> None:
    for name in ("llama3.1-405b", "deepseek-v3", "qwen3-235b-a22b", "mixtral-8x22b"):
        for narrow in (False, True):
            plain = load_workload(name).profile()
            lean = with_lean_activations(plain, narrow=narrow)
            for profile in (plain, lean, without_sequence_parallelism(lean)):
                for layer, _ in profile.blocks:
                    for policy in RECOMPUTES:
                        kept, whole = layer.kept(policy), layer.kept("none")
                        assert -1e-9 <= kept.sharded <= whole.sharded
                        assert -1e-9 <= kept.replicated <= whole.replicated
                        assert kept.sharded + kept.replicated >= 2 * layer.hidden_size - 1e-9


def test_without_sequence_parallelism_norms_are_freed_on_every_rank() -> None:
    layer, _ = without_sequence_parallelism(load_workload("llama3.1-8b").profile()).blocks[0]
    assert layer.kept("none").replicated - layer.kept("mlp").replicated == 2 * 4096


def test_policies_are_spelled_in_one_order_and_misprints_are_named() -> None:
    policy: TypeAdapter[str] = TypeAdapter(Recompute)
    assert policy.validate_python("mlp + core_attn") == "core_attn+mlp"
    assert all(policy.validate_python(name) == name for name in RECOMPUTES)
    assert len(set(RECOMPUTES)) == len(RECOMPUTES)
    assert [modules_of(name) for name in RECOMPUTES[3 : 3 + len(MODULE_SETS)]] == list(MODULE_SETS)
    for text, why in (
        ("mpl", "'mpl' is no recompute policy"),
        ("full+mlp", "'full' stands alone"),
        ("moe+moe_act", "moe computes moe_act again already"),
        ("", "'' is no recompute policy"),
        ("mlp+", "'' is no recompute policy"),
    ):
        with pytest.raises(ValidationError, match=why.replace("+", r"\+")):
            policy.validate_python(text)
