"""Types of Hugging Face transformers that mix kinds of layers or have an unusual structure."""

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
    multipliers_of,
    only_types,
    rotary_layers,
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


def qwen3_next(keys: Keys, *, experts: bool = True) -> Fields:
    """Gated delta nets, every fourth layer gated attention; experts with a gated shared one, or an MLP."""
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
    keys.get("attn_output_gate"), keys.get("mamba_ssm_dtype"), keys.get("mlp_only_layers")
    feeds: list[tuple[str, FeedForward]]
    if experts:
        feeds = sparse_feeds(keys, routed_of(keys, normalized=keys.flag("norm_topk_prob", default=True)), count)
    else:
        feeds = [("dense", mlp_of(keys))] * count
    predicted = keys.whole("mtp_num_hidden_layers", 0)
    made = compose([known[each] for each in types], feeds)
    return {**made, "unit_offset_norm": True, "num_prediction_layers": predicted}


def llama4(keys: Keys) -> Fields:
    """Llama 4: attention in chunks with rotary embedding, or full attention without; experts in some layers."""
    count = keys.whole("num_hidden_layers")
    rotary = rotary_layers(keys, count)
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
    keys.get("intermediate_size_mlp")  # marked as read, even without dense layers
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


def mamba_model(keys: Keys) -> Fields:
    """Mamba-2: state-space layers alone."""
    kind = LayerKind(mixer=mamba2_of(keys, {**MAMBA2, "num_heads": ("num_heads",), "head_dim": ("head_dim",)}))
    keys.get("rms_norm"), keys.get("hidden_act")
    return assemble([("mamba", kind)] * keys.whole("num_hidden_layers"))


def granite_hybrid(keys: Keys) -> Fields:
    """Granite 4: Mamba-2 or attention in every layer, then routed and shared experts, or a dense MLP."""
    count = keys.whole("num_hidden_layers")
    stated = keys.several("layer_types", count) or keys.several("layers_block_type", count) or ["mamba"] * count
    types = [_NEMOTRON_WORDS.get(str(each), str(each)) for each in stated]
    only_types(keys, types, dict.fromkeys(("mamba", "attention")))
    position = keys.get("position_embedding_type", "nope")
    rope = keys.rope(10_000.0) if position == "rope" else "none"
    known: dict[str, Mixer] = {"attention": attention_of(keys, Traits(), FULL, rope=rope)}
    if "mamba" in types:
        known["mamba"] = mamba2_of(keys, MAMBA2)
    shared = keys.need("shared_intermediate_size")
    keys.get("intermediate_size"), keys.get("num_experts_per_tok")
    feed: FeedForward = Mlp(width=shared, activation=keys.activation())
    if experts := keys.whole("num_local_experts", 0):
        feed = Experts(
            num_experts=experts,
            top_k=keys.need("num_experts_per_tok"),
            width=keys.need("intermediate_size"),
            activation=keys.activation(),
            shared_width=shared,
            router=router_of(keys, "softmax", normalized=True),
        )
    name = "moe" if experts else "dense"
    out = compose([(each, known[each]) for each in types], [(name, feed)] * count)
    return {**out, "multipliers": multipliers_of(keys)}


MAMBA2: Final[Mapping[str, tuple[str, ...]]] = {
    "num_heads": ("mamba_num_heads", "mamba_n_heads"),
    "head_dim": ("mamba_head_dim", "mamba_d_head"),
    "state_size": ("ssm_state_size", "mamba_d_state", "state_size"),
    "num_groups": ("mamba_n_groups", "n_groups"),
    "conv_kernel": ("mamba_d_conv", "conv_kernel"),
    "chunk": ("mamba_chunk_size", "chunk_size"),
}
"""Field of a Mamba-2 layer -> keys under which the types state it."""


def mamba2_of(keys: Keys, names: Mapping[str, tuple[str, ...]]) -> Mamba2:
    """A Mamba-2 layer. ``names`` lists the keys of each number; the file or the class states one of them."""

    def first(names: tuple[str, ...]) -> int:
        return keys.whole(next((name for name in names if keys.get(name) is not None), names[0]))

    def flag(*names: str, default: bool) -> bool:
        return keys.flag(next((name for name in names if keys.get(name) is not None), names[0]), default=default)

    keys.get("mamba_hidden_act"), keys.get("expand"), keys.get("mamba_expand")
    computed = [key for key in names["head_dim"] if keys.get(key) == "auto"]
    numbers = {field: first(asked) for field, asked in names.items() if field != "head_dim" or not computed}
    if computed:
        numbers["head_dim"] = keys.whole("mamba_expand", 2) * keys.whole("hidden_size") // numbers["num_heads"]
    return Mamba2(
        **numbers,
        conv_bias=flag("use_conv_bias", "mamba_conv_bias", default=True),
        bias=flag("use_bias", "mamba_proj_bias", default=False),
    )


_NEMOTRON: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEMOTRON_WORDS: Final = {"linear_attention": "mamba", "full_attention": "attention"}


def nemotron_h(keys: Keys) -> Fields:
    """Nemotron-H: one sub-layer per layer: Mamba-2, attention, MLP or experts."""
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


def _nemotron_experts(keys: Keys) -> LayerKind:
    keys.refuse("moe_latent_size")
    keys.get("moe_shared_expert_overlap"), keys.get("n_shared_experts")
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
    "mamba": lambda keys: LayerKind(mixer=mamba2_of(keys, MAMBA2)),
    "attention": _nemotron_attention,
    "mlp": _nemotron_mlp,
    "moe": _nemotron_experts,
}


def gpt_neox(keys: Keys) -> Fields:
    """GPT-NeoX and Pythia: LayerNorm with biases, attention and MLP in parallel."""
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
    """GPT-2 and GPTBigCode (where heads may share keys): learned positions, LayerNorm and biases everywhere."""
    hidden, heads = keys.whole("n_embd"), keys.whole("n_head")
    if heads < 1 or hidden % heads:
        raise keys.fail(f"n_embd {hidden} is no multiple of n_head {heads}")
    keys.refuse("add_cross_attention")
    attention = Attention(
        num_heads=heads,
        num_kv_heads=1 if keys.flag("multi_query") else heads,
        head_dim=hidden // heads,
        qkv_bias=True,
        output_bias=True,
        rope="none",
    )
    for key in (
        "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
        "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn",
    ):  # fmt: skip
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
