"""Types of Hugging Face transformers from before Llama that state their shape under unusual keys."""

from __future__ import annotations

from typing import Final

from scaleacross.workloads.hf_keys import Keys
from scaleacross.workloads.hf_ordinary import Fields, Traits, assemble, dense
from scaleacross.workloads.layer_kinds import Attention, LayerKind, Mlp

OPT_OFFSET: Final = 2
"""Rows of OPT's position table before the first position."""
FIXED_EPSILON: Final = 1e-5
"""Epsilon of the norms of OPT and OLMo, which no key states (torch.nn.LayerNorm's own)."""


def _head_dim(keys: Keys, hidden: int, heads: int, names: str) -> int:
    if heads < 1 or hidden % heads:
        raise keys.fail(f"{names}: {hidden} is no multiple of {heads}")
    return hidden // heads


def _dropout(keys: Keys, *names: str, default: float = 0.0) -> bool:
    return bool(sum([keys.number(name, default) or 0.0 for name in names]))


def falcon(keys: Keys) -> Fields:
    """Falcon: attention and MLP in parallel, heads that share keys."""
    keys.refuse("alibi")
    hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    head_dim = _head_dim(keys, hidden, heads, "hidden_size and num_attention_heads")
    grouped, parallel = keys.flag("new_decoder_architecture"), keys.flag("parallel_attn", default=True)
    stated, several = keys.whole("num_kv_heads", heads), 1 if keys.flag("multi_query", default=True) else heads
    norms = keys.whole("num_ln_in_parallel_attn", 2) if grouped else 1
    bias = keys.flag("bias")
    mixer = Attention(
        num_heads=heads,
        num_kv_heads=stated if grouped else several,
        head_dim=head_dim,
        qkv_bias=bias,
        output_bias=bias,
        rope=keys.rope(10_000.0),
    )
    feed = Mlp(
        width=keys.whole("ffn_hidden_size", 4 * hidden),
        gated=False,
        activation=keys.activation("activation", "gelu"),
        bias=bias,
    )
    side = parallel or grouped
    kind = LayerKind(mixer=mixer, feed_forward=feed, parallel=side, shared_norm=side and norms == 1)
    layers = assemble([("dense_block", kind)] * keys.whole("num_hidden_layers"))
    return {**layers, "norm": "layernorm", "dropout": _dropout(keys, "hidden_dropout")}


def gptj(keys: Keys) -> Fields:
    """GPT-J: attention without biases in parallel with an MLP with biases, one norm for both, an output bias."""
    hidden, heads = keys.whole("n_embd"), keys.whole("n_head")
    head_dim = _head_dim(keys, hidden, heads, "n_embd and n_head")
    rotated = keys.whole("rotary_dim", head_dim) / head_dim
    mixer = Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        rope=keys.rope(10_000.0, fraction=rotated, interleaved=True),
    )
    activation = keys.activation("activation_function", "gelu_new")
    feed = Mlp(width=keys.whole("n_inner", 4 * hidden), gated=False, activation=activation, bias=True)
    kind = LayerKind(mixer=mixer, feed_forward=feed, parallel=True, shared_norm=True)
    return {
        **assemble([("dense_block", kind)] * keys.whole("n_layer")),
        "hidden_size": hidden,
        "norm": "layernorm",
        "output_bias": True,
        "dropout": _dropout(keys, "resid_pdrop", "embd_pdrop"),
    }


def olmo(keys: Keys) -> Fields:
    """OLMo: Llama's layers between LayerNorms without weights."""
    return {**dense(keys, Traits(norm="layernorm_unweighted", refused=("clip_qkv",))), "norm_epsilon": FIXED_EPSILON}


def opt(keys: Keys) -> Fields:
    """OPT: learned positions, ReLU, biases everywhere."""
    hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    keys.refuse("word_embed_proj_dim", hidden)
    keys.refuse("_remove_final_layer_norm")
    for key in ("do_layer_norm_before", "layer_norm_elementwise_affine"):
        if not keys.flag(key, default=True):
            raise keys.fail(f"{key} false is not read")
    bias = keys.flag("enable_bias", default=True)
    mixer = Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=_head_dim(keys, hidden, heads, "hidden_size and num_attention_heads"),
        qkv_bias=bias,
        output_bias=bias,
        rope="none",
    )
    feed = Mlp(
        width=keys.whole("ffn_dim"), gated=False, activation=keys.activation("activation_function", "relu"), bias=bias
    )
    layers = [("dense_block", LayerKind(mixer=mixer, feed_forward=feed))] * keys.whole("num_hidden_layers")
    return {
        **assemble(layers),
        "norm": "layernorm",
        "norm_epsilon": FIXED_EPSILON,
        "initializer_range": keys.number("init_std"),
        "num_learned_positions": keys.whole("max_position_embeddings") + OPT_OFFSET,
        "dropout": _dropout(keys, "dropout", default=0.1),
    }
