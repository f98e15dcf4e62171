"""Types of Hugging Face transformers that mix kinds of layers, or are built in a way of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from scaleacross.workloads.hf_keys import Keys
from scaleacross.workloads.hf_ordinary import (
    FULL,
    Fields,
    Traits,
    assemble,
    attention_of,
    compose,
    mlp_of,
    only_types,
    routed_of,
    router_of,
    sparse_feeds,
)
from scaleacross.workloads.layer_kinds import (
    Attention,
    Experts,
    FeedForward,
    GatedDeltaNet,
    LayerKind,
    Mamba2,
    Mixer,
    Mlp,
)
from scaleacross.workloads.transformer_parts import QkNorm


def qwen3_next(keys: Keys) -> Fields:
    """Gated delta nets, every fourth layer gated attention; experts with a gated shared one."""
    count = keys.whole("num_hidden_layers")
    every = keys.whole("full_attention_interval", 4)
    types = keys.several("layer_types", count) or [
        "linear_attention" if (layer + 1) % every else FULL for layer in range(count)
    ]
    linear = GatedDeltaNet(
        num_key_heads=keys.whole("linear_num_key_heads", 16),
        num_value_heads=keys.whole("linear_num_value_heads", 32),
        key_head_dim=keys.whole("linear_key_head_dim", 128),
        value_head_dim=keys.whole("linear_value_head_dim", 128),
        conv_kernel=keys.whole("linear_conv_kernel_dim", 4),
    )
    full = attention_of(keys, Traits(qk_norm="head", fraction=0.25), FULL, output_gate=True)
    known: dict[str, tuple[str, Mixer]] = {"linear_attention": ("linear", linear), FULL: ("full", full)}
    only_types(keys, types, known)
    feeds = sparse_feeds(keys, routed_of(keys, normalized=keys.flag("norm_topk_prob", default=True)), count)
    return {**compose([known[each] for each in types], feeds), "unit_offset_norm": True}


def llama4(keys: Keys) -> Fields:
    """Llama 4: attention in chunks with rotary embedding, or over everything without; experts in some layers."""
    count = keys.whole("num_hidden_layers")
    interval = keys.whole("no_rope_layer_interval", 4)
    rotary = keys.several("no_rope_layers") or [int((layer + 1) % interval != 0) for layer in range(count)]
    if len(rotary) != count:
        raise keys.fail(f"key 'no_rope_layers' has {len(rotary)} entries for {count} layers")
    types = keys.several("layer_types", count) or ["chunked_attention" if each else FULL for each in rotary]
    only_types(keys, types, {"chunked_attention": 1, FULL: 1})
    step = max(1, keys.whole("interleave_moe_layer_step", 1))
    with_experts = set(keys.several("moe_layers") or range(step - 1, count, step))
    traits = Traits(theta=500_000.0)
    rope = keys.rope(traits.theta, interleaved=True)
    norm: QkNorm = "unweighted" if keys.flag("use_qk_norm", default=True) else "none"
    keys.get("attn_temperature_tuning"), keys.get("floor_scale"), keys.get("attn_scale")
    mixers: list[tuple[str, Mixer]] = []
    for rotates, kind in zip(rotary, types, strict=True):
        chunk = keys.get("attention_chunk_size", 8192) if kind == "chunked_attention" else None
        mixer = attention_of(
            keys, traits, FULL, rope=rope if rotates else "none", qk_norm=norm if rotates else "none", chunk=chunk
        )
        mixers.append(("chunked" if chunk else "full", mixer))
    width = keys.whole("intermediate_size")
    routed = Experts(
        num_experts=keys.need("num_local_experts"),
        top_k=keys.need("num_experts_per_tok"),
        width=width,
        activation=keys.activation(),
        shared_width=width,
        weights_on_input=True,
        router=router_of(keys, "sigmoid", normalized=False),
    )
    feeds: list[tuple[str, FeedForward]] = [
        ("moe", routed) if layer in with_experts else ("dense", mlp_of(keys, width="intermediate_size_mlp"))
        for layer in range(count)
    ]
    return compose(mixers, feeds)


_NEMOTRON: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEMOTRON_WORDS: Final = {"linear_attention": "mamba", "full_attention": "attention"}


def nemotron_h(keys: Keys) -> Fields:
    """Nemotron-H: one sub-layer per layer, Mamba-2, attention, MLP or experts."""
    pattern = keys.get("hybrid_override_pattern")
    stated = keys.several("layers_block_type") or keys.several("layer_types")
    if stated is None and not isinstance(pattern, str):
        raise keys.fail("key 'layers_block_type' or 'hybrid_override_pattern' is missing")
    letters = {letter for letter in pattern or "" if letter not in _NEMOTRON}
    if stated is None and letters:
        raise keys.fail(
            f"hybrid_override_pattern has the letters {''.join(sorted(letters))}; known: {''.join(_NEMOTRON)}"
        )
    types = [_NEMOTRON_WORDS.get(str(t), str(t)) for t in stated or [_NEMOTRON[letter] for letter in pattern]]
    only_types(keys, types, dict.fromkeys(_NEMOTRON.values()))
    if (count := keys.get("num_hidden_layers")) not in (None, len(types)):
        raise keys.fail(f"num_hidden_layers is {count}, but the layers' own list has {len(types)}")
    keys.get("intermediate_size"), keys.get("expand")
    made = {kind: _NEMOTRON_PARTS[kind](keys) for kind in set(types)}
    return assemble([(kind, made[kind]) for kind in types])


def _nemotron_mamba(keys: Keys) -> LayerKind:
    def first(*names: str, default: int) -> int:
        return next((keys.whole(name) for name in names if keys.get(name) is not None), default)

    mixer = Mamba2(
        num_heads=keys.whole("mamba_num_heads", 128),
        head_dim=keys.whole("mamba_head_dim", 64),
        state_size=keys.whole("ssm_state_size", 128),
        num_groups=first("mamba_n_groups", "n_groups", default=8),
        conv_kernel=first("mamba_d_conv", "conv_kernel", default=4),
        conv_bias=keys.flag("use_conv_bias", default=True),
        bias=keys.flag("use_bias"),
        chunk=first("mamba_chunk_size", "chunk_size", default=128),
    )
    keys.get("mamba_hidden_act"), keys.get("mamba_proj_bias")
    return LayerKind(mixer=mixer)


def _nemotron_experts(keys: Keys) -> LayerKind:
    keys.refuse("moe_latent_size")
    keys.get("moe_shared_expert_overlap")
    feed = Experts(
        num_experts=keys.whole("n_routed_experts", 8),
        top_k=keys.whole("num_experts_per_tok", 2),
        width=keys.whole("moe_intermediate_size", 7688),
        gated=False,
        activation=keys.activation("mlp_hidden_act", "relu2"),
        router_bias="balancing",
        shared_width=keys.whole("moe_shared_expert_intermediate_size", 7688),
        router=router_of(keys, "sigmoid", normalized=keys.flag("norm_topk_prob", default=True), grouped=True),
    )
    return LayerKind(feed_forward=feed)


def _nemotron_mlp(keys: Keys) -> LayerKind:
    feed = Mlp(
        width=keys.need("intermediate_size"),
        gated=False,
        activation=keys.activation("mlp_hidden_act", "relu2"),
        bias=keys.flag("mlp_bias"),
    )
    return LayerKind(feed_forward=feed)


def _nemotron_attention(keys: Keys) -> LayerKind:
    keys.refuse("sliding_window")
    return LayerKind(mixer=attention_of(keys, Traits(), FULL, rope="none"))


_NEMOTRON_PARTS: Final[Mapping[str, Callable[[Keys], LayerKind]]] = {
    "mamba": _nemotron_mamba,
    "attention": _nemotron_attention,
    "mlp": _nemotron_mlp,
    "moe": _nemotron_experts,
}


def gpt_neox(keys: Keys) -> Fields:
    """GPT-NeoX and Pythia: LayerNorm with biases, attention and MLP side by side."""
    fraction = keys.number("rotary_pct", 0.25) or 0.25
    bias = keys.flag("attention_bias", default=True)
    base = keys.number("rotary_emb_base", 10_000.0) or 10_000.0
    traits = Traits(qkv_bias=bias, output_bias=bias, theta=base, fraction=fraction)
    feed = Mlp(
        width=keys.need("intermediate_size"), gated=False, activation=keys.activation("hidden_act", "gelu"), bias=True
    )
    kind = LayerKind(
        mixer=attention_of(keys, traits, FULL),
        feed_forward=feed,
        parallel=keys.flag("use_parallel_residual", default=True),
    )
    return {**assemble([("dense_block", kind)] * keys.whole("num_hidden_layers")), "norm": "layernorm"}


def gpt2(keys: Keys) -> Fields:
    """GPT-2: learned positions, LayerNorm and biases everywhere."""
    hidden, heads = keys.whole("n_embd"), keys.whole("n_head")
    if heads < 1 or hidden % heads:
        raise keys.fail(f"n_embd {hidden} is no multiple of n_head {heads}")
    keys.refuse("add_cross_attention")
    attention = Attention(
        num_heads=heads, num_kv_heads=heads, head_dim=hidden // heads, qkv_bias=True, output_bias=True, rope="none"
    )
    for key in ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
        keys.get(key)
    width = keys.whole("n_inner", 4 * hidden)
    feed = Mlp(width=width, gated=False, activation=keys.activation("activation_function", "gelu_new"), bias=True)
    dropout = any(keys.number(key, 0.1) for key in ("resid_pdrop", "embd_pdrop"))
    kind = LayerKind(mixer=attention, feed_forward=feed)
    return {
        **assemble([("dense_block", kind)] * keys.whole("n_layer")),
        "hidden_size": hidden,
        "norm": "layernorm",
        "num_learned_positions": keys.whole("n_positions", 1024),
        "dropout": dropout,
    }
