"""Types of Hugging Face transformers that state their experts, or the layers with experts, under unusual keys."""

from __future__ import annotations

from scaleacross.workloads.hf_hybrids import MAMBA2, mamba2_of
from scaleacross.workloads.hf_keys import Keys
from scaleacross.workloads.hf_ordinary import (
    FULL,
    Fields,
    Traits,
    attention_of,
    compose,
    mixers_of,
    mlp_of,
    only_types,
    router_of,
    shared_experts,
)
from scaleacross.workloads.layer_kinds import Experts, FeedForward, Mixer


def ernie_moe(keys: Keys) -> Fields:
    """ERNIE 4.5 with experts: softmax scores plus a balancing bias, shared experts, dense layers at the ends."""
    traits = Traits(qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", theta=500_000.0, interleaved=True)
    count, width = keys.whole("num_hidden_layers"), keys.whole("moe_intermediate_size")
    if keys.flag("use_bias"):
        raise keys.fail("use_bias true is not read: experts with biases have a router that learns one")
    first, last = keys.whole("moe_layer_start_index", 1), keys.whole("moe_layer_end_index", -1)
    every = keys.whole("moe_layer_interval", 1)
    if every < 1:
        raise keys.fail(f"moe_layer_interval {every} must be at least 1")
    keys.get("moe_norm_min")
    routed = Experts(
        num_experts=keys.need("moe_num_experts"),
        top_k=keys.need("moe_k"),
        width=width,
        activation=keys.activation(),
        router_bias="balancing",
        shared_width=width * keys.whole("moe_num_shared_experts", 0),
        router=router_of(keys, "softmax", normalized=True),
    )
    feeds: list[tuple[str, FeedForward]] = [
        ("moe", routed)
        if (layer + 1) % every == 0 and first <= layer <= (count - 1 if last == -1 else last)
        else ("dense", mlp_of(keys, traits))
        for layer in range(count)
    ]
    return compose(mixers_of(keys, traits), feeds)


def hunyuan_moe(keys: Keys) -> Fields:
    """Hunyuan-A13B: norms of q and k, and a shared MLP as wide as an expert in every layer."""
    keys.refuse("use_cla")
    keys.refuse("moe_layer_num_skipped", 0)
    for key in ("moe_intermediate_size", "use_mixed_mlp_moe", "use_qk_norm", "norm_topk_prob"):
        keys.get(key)  # fixed by the class, so only marked as read
    width = keys.need("intermediate_size")
    if _same(keys, "num_shared_expert", 1) != 1:
        raise keys.fail("num_shared_expert: only one shared MLP in every layer is read")
    routed = Experts(
        num_experts=_same(keys, "num_experts", 1),
        top_k=_same(keys, "moe_topk", 1),
        width=width,
        activation=keys.activation(),
        shared_width=width,
        router=router_of(keys, "softmax", normalized=True),
    )
    mixers = mixers_of(keys, Traits(qk_norm="head"))
    return compose(mixers, [("moe", routed)] * len(mixers))


def _same(keys: Keys, key: str, default: int) -> int:
    """Return a number that may be stated per layer but must be equal in all layers."""
    value = keys.get(key, default)
    stated = set(value) if isinstance(value, list | tuple) else {value}
    if len(stated) != 1 or not isinstance(one := stated.pop(), int):
        raise keys.fail(f"{key} differs from layer to layer, which is not read")
    return one


def exaone_moe(keys: Keys) -> Fields:
    """K-EXAONE: sliding windows as in EXAONE 4, experts as in DeepSeek-V3."""
    traits = Traits(
        qkv_bias=False, output_bias=False, qk_norm="head", windows="alternating", full_every=4, rotary="windowed"
    )
    normalized = keys.flag("norm_topk_prob", default=True)
    mixers = mixers_of(keys, traits)
    names = ("num_experts", "num_shared_experts")
    return shared_experts(keys, mixers, score="sigmoid", normalized=normalized, leading=1, names=names)


def glm4v_moe(keys: Keys) -> Fields:
    """The language model of GLM-4.5V: GLM-4.5 without norms of q and k."""
    mixer = attention_of(keys, Traits(output_bias=False, fraction=0.5), FULL)
    normalized = keys.flag("norm_topk_prob", default=True)
    return shared_experts(keys, mixer, score="sigmoid", normalized=normalized, leading=1)


def bamba(keys: Keys) -> Fields:
    """Bamba: Mamba-2, with attention in the layers of ``attn_layer_indices``; an MLP in every layer."""
    count = keys.whole("num_hidden_layers")
    attending = set(keys.several("attn_layer_indices") or ())
    keys.get("z_loss_coefficient")
    only_types(keys, [str(each) for each in attending], {str(layer): 1 for layer in range(count)})
    attention = attention_of(keys, Traits(fraction=0.5), FULL)
    known: dict[bool, tuple[str, Mixer]] = {True: ("attention", attention)}
    if len(attending) < count:
        known[False] = ("mamba", mamba2_of(keys, MAMBA2))
    return compose([known[layer in attending] for layer in range(count)], [("dense", mlp_of(keys))] * count)
