"""Types of Hugging Face transformers with ordinary attention; the differences between them are data (``Traits``).

Each builder returns the fields of a ``Decoder`` that define its layers. Defaults are those of the configuration classes
of transformers 5.23.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from scaleacross.workloads.hf_keys import Keys
from scaleacross.workloads.identity import Multipliers, Router
from scaleacross.workloads.layer_kinds import Attention, Experts, FeedForward, Latent, LayerKind, Mixer, Mlp
from scaleacross.workloads.transformer_parts import Norm, QkNorm

Fields = dict[str, Any]
FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"


@dataclass(frozen=True)
class Traits:
    """Properties of a type with ordinary attention.

    Attributes:
        qkv_bias, output_bias: True, False, or the key that states it.
        qk_norm: norm of q and k; ``stated``: per head if ``use_qk_norm`` is true.
        norms: where sub-layers are normalised.
        theta, fraction: rotary base and rotated share if the config states none.
        interleaved: neighbouring features are rotated together.
        windows: layers with a sliding window: none, all, every layer except each ``full_every``-th, or from
            ``max_window_layers`` on (``later``: if ``use_sliding_window`` is set; ``from_layer``: always).
        sliding_scaled: ``rope_scaling`` also stretches the layers with a window.
        activation: key of the activation function.
        gemma: embedding vectors are scaled by √hidden_size, and norm weights are stored minus one.
        offset_norm: norm weights are stored minus one.
        norm: the norm between sub-layers.
        gated, mlp_bias: the MLP has a gate; its biases, as ``qkv_bias``.
        rotary: layers that rotate q and k: all, those with a window if there is one (``windowed``), or those of
            ``no_rope_layers`` (``stated``).
        parallel: True, False, or the key that states it: attention and MLP run in parallel and share a norm.
        head_bias: bias of the output matrix over the vocabulary, as ``qkv_bias``.
        dropouts: keys of the dropout between sub-layers.
        refused: keys whose layers are not described.
    """

    qkv_bias: bool | str = "attention_bias"
    output_bias: bool | str = "attention_bias"
    qk_norm: QkNorm | Literal["stated"] = "none"
    norms: Literal["before", "after", "both"] = "before"
    theta: float = 10_000.0
    fraction: float = 1.0
    interleaved: bool = False
    windows: Literal["none", "all", "alternating", "later", "from_layer"] = "none"
    full_every: int = 2
    sliding_scaled: bool = True
    activation: str = "hidden_act"
    default_activation: str = "silu"
    gemma: bool = False
    offset_norm: bool = False
    norm: Norm = "rmsnorm"
    gated: bool = True
    mlp_bias: bool | str = "mlp_bias"
    rotary: Literal["all", "windowed", "stated"] = "all"
    parallel: bool | str = False
    head_bias: bool | str = False
    dropouts: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def _said(keys: Keys, stated: bool | str) -> bool:
    return keys.flag(stated) if isinstance(stated, str) else stated


def attention_of(keys: Keys, traits: Traits, layer_type: str, **more: Any) -> Attention:
    """Attention of one layer type."""

    qk_norm: QkNorm = "none"
    if traits.qk_norm != "stated":
        qk_norm = traits.qk_norm
    elif keys.flag("use_qk_norm"):
        qk_norm = "head"
    scalar = keys.number("query_pre_attn_scalar")
    rotated = keys.number("rotary_dim")
    fraction = traits.fraction if rotated is None else rotated / keys.head_dim()
    scaled = traits.sliding_scaled or layer_type != SLIDING
    fields: Fields = {
        "num_heads": keys.need("num_attention_heads"),
        "num_kv_heads": keys.get("num_key_value_heads", keys.need("num_attention_heads")),
        "head_dim": keys.head_dim(),
        "window": keys.whole("sliding_window") if layer_type == SLIDING else None,
        "qk_norm": qk_norm,
        "qkv_bias": _said(keys, traits.qkv_bias),
        "output_bias": _said(keys, traits.output_bias),
        "rope": keys.rope(
            traits.theta, fraction=fraction, layer_type=layer_type, scaled=scaled, interleaved=traits.interleaved
        ),
        "softmax_scale": scalar**-0.5 if scalar else keys.number("attention_multiplier"),
        "score_cap": keys.number("attn_logit_softcapping"),
    }
    return Attention.model_validate({**fields, **more})


def _layer_types(keys: Keys, traits: Traits) -> list[str]:
    """full_attention or sliding_attention for every layer, from ``layer_types`` or by the type's rule."""
    count = keys.whole("num_hidden_layers")
    window = keys.get("sliding_window")
    if traits.windows == "none":
        keys.refuse("use_sliding_window")
    stated = keys.several("layer_types", count)
    keys.get("sliding_window_pattern")
    if stated is not None and traits.windows != "none":
        return [str(each) for each in stated]
    if window is None or traits.windows == "none":
        return [FULL] * count
    if traits.windows == "all":
        return [SLIDING] * count
    if traits.windows in ("later", "from_layer"):
        sliding = traits.windows == "from_layer" or keys.flag("use_sliding_window")
        first = keys.whole("max_window_layers", 28) if sliding else count
        return [SLIDING if layer >= first else FULL for layer in range(count)]
    every = keys.whole("sliding_window_pattern", traits.full_every)
    if every < 1:
        raise keys.fail(f"sliding_window_pattern {every} must be at least 1")
    return [FULL if (layer + 1) % every == 0 else SLIDING for layer in range(count)]


def assemble(layers: Sequence[tuple[str, LayerKind]]) -> Fields:
    """``kinds`` and ``layers`` from (name, kind) of every layer."""
    return {"kinds": dict(layers), "layers": tuple(name for name, _ in layers)}


def compose(mixers: Sequence[tuple[str, Mixer]], feeds: Sequence[tuple[str, FeedForward]], **more: Any) -> Fields:
    """Layers of one named mixer and one named feed-forward each; name parts that all layers share are left out."""
    many_mixers, many_feeds = len({name for name, _ in mixers}) > 1, len({name for name, _ in feeds}) > 1
    layers = []
    for (mixer_name, mixer), (feed_name, feed) in zip(mixers, feeds, strict=True):
        words = [mixer_name] * many_mixers + [feed_name] * (many_feeds or not many_mixers)
        layers.append(("_".join([*words, "block"]), LayerKind(mixer=mixer, feed_forward=feed, **more)))
    return assemble(layers)


def mixers_of(keys: Keys, traits: Traits, **more: Any) -> list[tuple[str, Mixer]]:
    """(name, attention) of every layer; equal layers share one object."""
    types = _layer_types(keys, traits)
    unknown = sorted(set(types) - {FULL, SLIDING})
    if unknown:
        raise keys.fail(f"layer_types {', '.join(unknown)} are not read; known: {FULL}, {SLIDING}")
    rotated = _rotated(keys, traits, types)
    each: dict[tuple[str, bool], Mixer] = {
        (kind, rotates): attention_of(keys, traits, kind, **({} if rotates else {"rope": "none"}), **more)
        for kind, rotates in set(zip(types, rotated, strict=True))
    }
    return [
        (kind.removesuffix("_attention") + "_unrotated" * (not rotates), each[kind, rotates])
        for kind, rotates in zip(types, rotated, strict=True)
    ]


def _rotated(keys: Keys, traits: Traits, types: Sequence[str]) -> list[bool]:
    """Whether each layer rotates q and k."""
    if traits.rotary == "stated":
        return rotary_layers(keys, len(types))
    everywhere = traits.rotary == "all" or keys.get("sliding_window") is None
    return [everywhere or kind == SLIDING for kind in types]


def rotary_layers(keys: Keys, count: int) -> list[bool]:
    """Whether each layer rotates q and k: 1 in ``no_rope_layers``, else all but each ``no_rope_layer_interval``-th."""
    interval = keys.whole("no_rope_layer_interval", 4)
    stated = keys.several("no_rope_layers") or [int((layer + 1) % interval != 0) for layer in range(count)]
    if len(stated) != count:
        raise keys.fail(f"key 'no_rope_layers' has {len(stated)} entries for {count} layers")
    return [bool(each) for each in stated]


def mlp_of(keys: Keys, traits: Traits = Traits(), width: str = "intermediate_size") -> Mlp:
    activation = keys.activation(traits.activation, traits.default_activation)
    return Mlp(width=keys.need(width), gated=traits.gated, activation=activation, bias=_said(keys, traits.mlp_bias))


def dense(keys: Keys, traits: Traits) -> Fields:
    """Attention and an MLP in every layer."""
    for key in traits.refused:
        keys.refuse(key)
    mixers = mixers_of(keys, traits)
    feed = ("dense", mlp_of(keys, traits))
    parallel = _said(keys, traits.parallel)
    out = compose(mixers, [feed] * len(mixers), norms=traits.norms, parallel=parallel, shared_norm=parallel)
    return {**out, **_around_layers(keys, traits)}


def _around_layers(keys: Keys, traits: Traits) -> Fields:
    return {
        "norm": traits.norm,
        "output_bias": _said(keys, traits.head_bias),
        "dropout": bool(sum([keys.number(key) or 0.0 for key in traits.dropouts])),
        "multipliers": multipliers_of(keys, traits),
        "unit_offset_norm": traits.gemma or traits.offset_norm,
    }


def multipliers_of(keys: Keys, traits: Traits = Traits()) -> Multipliers:
    logits, scale = keys.number("logits_scaling"), keys.number("logit_scale")
    embedding = keys.number("embedding_multiplier")
    if traits.gemma:
        embedding = float(keys.whole("hidden_size")) ** 0.5
    return Multipliers(
        embedding=embedding,
        residual=keys.number("residual_multiplier"),
        logits=1.0 / logits if logits else scale,
        logit_cap=keys.number("final_logit_softcapping"),
    )


def router_of(keys: Keys, score: Literal["softmax", "sigmoid"], *, normalized: bool, grouped: bool = False) -> Router:
    groups, chosen = keys.whole("n_group", 1), keys.whole("topk_group", 1)
    return Router(
        score_function=score,
        normalized=normalized,
        scaling=keys.number("routed_scaling_factor", 1.0) or 1.0,
        num_groups=groups if grouped else 1,
        group_top_k=chosen if grouped else 1,
    )


def experts(
    keys: Keys,
    traits: Traits,
    *,
    number: str = "num_experts",
    width: str = "moe_intermediate_size",
    normalized: bool | None = None,
    biased: bool = False,
    score: Literal["softmax", "sigmoid"] = "softmax",
    **more: Any,
) -> Fields:
    """Attention and routed experts; some layers are dense if ``mlp_only_layers`` or ``decoder_sparse_step`` say so.

    ``normalized``: whether routing weights add up to one; None: the key ``norm_topk_prob`` decides.
    """
    mixers = mixers_of(keys, traits, **more)
    keys.refuse("clip_qkv")
    stated = keys.flag("norm_topk_prob")
    whole = stated if normalized is None else normalized
    routed = routed_of(keys, number=number, width=width, normalized=whole, biased=biased, score=score)
    return {**compose(mixers, sparse_feeds(keys, routed, len(mixers))), **_around_layers(keys, traits)}


def minimax_m2(keys: Keys) -> Fields:
    """MiniMax M2: grouped-query attention in every layer, experts chosen by a sigmoid."""
    keys.refuse("shared_intermediate_size", 0)
    for key in ("mtp_transformer_layers", "qk_norm_type", "scoring_func", "use_qk_norm", "use_routing_bias"):
        keys.get(key)  # fixed by the class, so only marked as read
    if set(keys.several("attn_type_list") or (1,)) != {1}:
        raise keys.fail("attn_type_list has layers of linear attention, which are not read")
    traits = Traits(qkv_bias=False, output_bias=False, qk_norm="full", theta=5_000_000.0)
    predicted = keys.whole("num_mtp_modules", 0) if keys.flag("use_mtp") else 0
    made = experts(
        keys, traits, number="num_local_experts", width="intermediate_size", normalized=True, score="sigmoid"
    )
    return {**made, "num_prediction_layers": predicted}


def routed_of(
    keys: Keys,
    *,
    normalized: bool,
    number: str = "num_experts",
    width: str = "moe_intermediate_size",
    biased: bool = False,
    score: Literal["softmax", "sigmoid"] = "softmax",
) -> Experts:
    """Experts, with a gated shared one if its width is stated (Qwen); a sigmoid router has a balancing bias."""
    unbiased: Literal["none", "balancing"] = "balancing" if score == "sigmoid" else "none"
    shared, activation = keys.whole("shared_expert_intermediate_size", 0), keys.activation()
    return Experts(
        num_experts=keys.need(number),
        top_k=keys.need("num_experts_per_tok"),
        width=keys.need(width),
        activation="clamped_silu" if biased else activation,
        bias=biased,
        router_bias="learned" if biased else unbiased,
        shared_width=shared,
        shared_gate=shared > 0,
        router=router_of(keys, score, normalized=normalized),
    )


def sparse_feeds(keys: Keys, routed: Experts, count: int) -> list[tuple[str, FeedForward]]:
    """Experts in every ``decoder_sparse_step``-th layer, except in layers that ``mlp_only_layers`` names."""
    dense_layers = set(keys.several("mlp_only_layers") or ())
    step = keys.whole("decoder_sparse_step", 1)
    if step < 1:
        raise keys.fail(f"decoder_sparse_step {step} must be at least 1")
    keys.get("intermediate_size")  # marked as read, even without dense layers
    sparse = [layer not in dense_layers and (layer + 1) % step == 0 for layer in range(count)]
    feeds: dict[bool, tuple[str, FeedForward]] = {True: ("moe", routed)}
    if not all(sparse):
        feeds[False] = ("dense", mlp_of(keys))
    return [feeds[each] for each in sparse]


def only_types(keys: Keys, types: Sequence[Any], known: Mapping[str, Any]) -> None:
    unknown = sorted({str(each) for each in types} - set(known))
    if unknown:
        raise keys.fail(f"layer types {', '.join(unknown)} are not read; known: {', '.join(known)}")


def shared_experts(
    keys: Keys,
    mixer: Mixer | Sequence[tuple[str, Mixer]],
    *,
    score: Literal["softmax", "sigmoid"],
    normalized: bool,
    leading: int = 0,
    names: tuple[str, str] = ("n_routed_experts", "n_shared_experts"),
) -> Fields:
    """Leading dense layers, then layers with routed and shared experts; ``mlp_layer_types`` replaces this rule.

    Args:
        mixer: one for all layers, or a named one for each.
        leading: number of dense layers if the file states none.
        names: keys of the numbers of routed and of shared experts.
    """
    count = keys.whole("num_hidden_layers")
    leading = min(count, keys.whole("first_k_dense_replace", leading))
    types = keys.several("mlp_layer_types", count) or ["dense"] * leading + ["sparse"] * (count - leading)
    keys.refuse("moe_layer_freq", 1)
    width = keys.whole("moe_intermediate_size")
    balancing = score == "sigmoid"
    routed = Experts(
        num_experts=keys.need(names[0]),
        top_k=keys.need("num_experts_per_tok"),
        width=width,
        activation=keys.activation(),
        router_bias="balancing" if balancing else "none",
        shared_width=width * keys.whole(names[1], 0),
        router=router_of(
            keys, score, normalized=normalized,
            grouped=balancing or keys.get("topk_method") == "group_limited_greedy",
        ),
    )  # fmt: skip
    feeds: dict[str, tuple[str, FeedForward]] = {"dense": ("dense", mlp_of(keys)), "sparse": ("moe", routed)}
    only_types(keys, types, feeds)
    mixers = mixer if isinstance(mixer, Sequence) else [("", mixer)] * count
    out = compose(mixers, [feeds[str(each)] for each in types])
    predicted = keys.whole("num_nextn_predict_layers", 0)
    return {**out, "num_prediction_layers": predicted}


def latent(keys: Keys, *, score: Literal["softmax", "sigmoid"], normalized: bool, leading: int = 0) -> Fields:
    """Multi-head latent attention with shared experts: DeepSeek-V2, DeepSeek-V3, Kimi K2, GLM-4.7-Flash."""
    keys.refuse("attention_bias")
    mixer = Latent(
        num_heads=keys.need("num_attention_heads"),
        q_lora_rank=keys.get("q_lora_rank"),
        kv_lora_rank=keys.need("kv_lora_rank"),
        qk_nope_head_dim=keys.need("qk_nope_head_dim"),
        qk_rope_head_dim=keys.need("qk_rope_head_dim"),
        v_head_dim=keys.need("v_head_dim"),
        rope=keys.rope(10_000.0, interleaved=True),
    )
    for key in ("num_key_value_heads", "head_dim", "qk_head_dim", "scoring_func", "rope_interleave"):
        keys.get(key)  # follow from other keys or the type, so only marked as read
    whole = keys.flag("norm_topk_prob", default=normalized)
    return shared_experts(keys, mixer, score=score, normalized=whole, leading=leading)


def dots1(keys: Keys) -> Fields:
    """dots.llm1: grouped-query attention with norms of q and k, windows in later layers, the experts of DeepSeek-V3."""
    mixers = mixers_of(keys, Traits(qk_norm="head", windows="from_layer"))
    return shared_experts(keys, mixers, score="sigmoid", normalized=keys.flag("norm_topk_prob"))


def glm4_moe(keys: Keys) -> Fields:
    """GLM-4.5: grouped-query attention with the experts of DeepSeek-V3."""
    traits = Traits(output_bias=False, qk_norm="stated", fraction=0.5)
    mixer = attention_of(keys, traits, FULL)
    return shared_experts(keys, mixer, score="sigmoid", normalized=keys.flag("norm_topk_prob", default=True))
