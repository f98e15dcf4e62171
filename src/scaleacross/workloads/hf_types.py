"""Model types of Hugging Face transformers and the builders that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from scaleacross.workloads.hf_early import falcon, gptj, olmo, opt
from scaleacross.workloads.hf_experts import bamba, ernie_moe, exaone_moe, glm4v_moe, hunyuan_moe
from scaleacross.workloads.hf_hybrids import (
    gpt2,
    gpt_neox,
    granite_hybrid,
    llama4,
    mamba_model,
    nemotron_h,
    qwen3_next,
)
from scaleacross.workloads.hf_keys import Keys
from scaleacross.workloads.hf_ordinary import Fields, Traits, dense, dots1, experts, glm4_moe, latent, minimax_m2

Builder = Callable[[Keys], Fields]

TYPES: Final[Mapping[str, Builder]] = {
    "llama": partial(dense, traits=Traits()),
    "mistral": partial(dense, traits=Traits(qkv_bias=False, output_bias=False, windows="all")),
    "qwen2": partial(dense, traits=Traits(qkv_bias=True, output_bias=False, windows="later")),
    "qwen3": partial(dense, traits=Traits(qk_norm="head", windows="later")),
    "ministral3": partial(dense, traits=Traits(qkv_bias=False, output_bias=False, windows="all")),
    "qwen3_vl_text": partial(dense, traits=Traits(qk_norm="head", theta=500_000.0)),
    "seed_oss": partial(dense, traits=Traits(output_bias="attention_out_bias", dropouts=("residual_dropout",))),
    "qwen2_5_vl_text": partial(dense, traits=Traits(qkv_bias=True, output_bias=False, windows="later", theta=1_000_000.0)),
    "smollm3": partial(dense, traits=Traits(rotary="stated", theta=2_000_000.0, refused=("use_sliding_window",))),
    "exaone4": partial(dense, traits=Traits(
        qkv_bias=False, output_bias=False, qk_norm="head", norms="after", windows="alternating", full_every=4, rotary="windowed"
    )),
    "ernie4_5": partial(dense, traits=Traits(
        qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", theta=500_000.0, interleaved=True
    )),
    "qwen2_vl_text": partial(dense, traits=Traits(qkv_bias=True, output_bias=False, windows="later", theta=1_000_000.0)),
    "glm4v_text": partial(dense, traits=Traits(
        qkv_bias=True, output_bias=False, norms="both", fraction=0.5, interleaved=True
    )),
    "ernie4_5_moe": ernie_moe,
    "hunyuan_v1_moe": hunyuan_moe,
    "exaone_moe": exaone_moe,
    "glm4v_moe_text": glm4v_moe,
    "bamba": bamba,
    "hunyuan_v1_dense": partial(dense, traits=Traits(qk_norm="head")),
    "arcee": partial(dense, traits=Traits(gated=False, default_activation="relu2")),
    "nemotron": partial(dense, traits=Traits(
        norm="layernorm", offset_norm=True, gated=False, default_activation="relu2", fraction=0.5
    )),
    "starcoder2": partial(dense, traits=Traits(
        qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", norm="layernorm", gated=False, windows="all",
        default_activation="gelu_pytorch_tanh", dropouts=("residual_dropout", "embedding_dropout"),
    )),
    "stablelm": partial(dense, traits=Traits(
        qkv_bias="use_qkv_bias", output_bias=False, mlp_bias=False, norm="layernorm", fraction=0.25,
        parallel="use_parallel_residual", refused=("qk_layernorm",),
    )),
    "cohere": partial(dense, traits=Traits(
        norm="layernorm_unbiased", parallel=True, interleaved=True, theta=500_000.0, refused=("use_qk_norm",)
    )),
    "cohere2": partial(dense, traits=Traits(
        norm="layernorm_unbiased", parallel=True, interleaved=True, windows="alternating", full_every=4, rotary="windowed"
    )),
    "phi": partial(dense, traits=Traits(
        qkv_bias=True, output_bias=True, mlp_bias=True, head_bias=True, norm="layernorm", gated=False, parallel=True,
        fraction=0.5, default_activation="gelu_new", dropouts=("resid_pdrop", "embd_pdrop"), refused=("qk_layernorm",),
    )),
    "glm4": partial(dense, traits=Traits(output_bias=False, norms="both", fraction=0.5, interleaved=True)),
    "phi3": partial(dense, traits=Traits(qkv_bias=False, output_bias=False, windows="all")),
    "gemma": partial(dense, traits=Traits(gemma=True, default_activation="gelu_pytorch_tanh")),
    "gemma2": partial(dense, traits=Traits(
        gemma=True, norms="both", windows="alternating", activation="hidden_activation", default_activation="gelu_pytorch_tanh"
    )),
    "gemma3_text": partial(dense, traits=Traits(
        gemma=True, qk_norm="head", norms="both", windows="alternating", full_every=6, theta=1_000_000.0,
        activation="hidden_activation", default_activation="gelu_pytorch_tanh",
    )),
    "olmo": olmo,
    "olmo2": partial(dense, traits=Traits(qk_norm="full", norms="after")),
    "olmo3": partial(dense, traits=Traits(
        qk_norm="full", norms="after", windows="alternating", full_every=4, sliding_scaled=False
    )),
    "granite": partial(dense, traits=Traits()),
    "mixtral": partial(
        experts, traits=Traits(qkv_bias=False, output_bias=False, windows="all", theta=1_000_000.0),
        number="num_local_experts", width="intermediate_size", normalized=True,
    ),
    "granitemoe": partial(
        experts, traits=Traits(), number="num_local_experts", width="intermediate_size", normalized=True
    ),
    "phimoe": partial(
        experts, traits=Traits(norm="layernorm", head_bias="lm_head_bias", windows="all", theta=1_000_000.0),
        number="num_local_experts", width="intermediate_size", normalized=False,
    ),
    "qwen2_moe": partial(experts, traits=Traits(qkv_bias="qkv_bias", output_bias=False, windows="later")),
    "qwen3_vl_moe_text": partial(experts, traits=Traits(qk_norm="head", theta=500_000.0), normalized=True),
    "qwen3_moe": partial(experts, traits=Traits(qk_norm="head")),
    "olmoe": partial(experts, traits=Traits(qk_norm="full"), width="intermediate_size"),
    "gpt_oss": partial(
        experts, traits=Traits(windows="alternating", theta=150_000.0),
        number="num_local_experts", width="intermediate_size", normalized=True, biased=True, sinks=True,
    ),
    "qwen3_next": qwen3_next,
    "qwen3_5_text": partial(qwen3_next, experts=False),
    "qwen3_5_moe_text": qwen3_next,
    "glm4_moe": glm4_moe,
    "dots1": dots1,
    "minimax_m2": minimax_m2,
    "deepseek_v2": partial(latent, score="softmax", normalized=False),
    "deepseek_v3": partial(latent, score="sigmoid", normalized=True),
    "kimi_k2": partial(latent, score="sigmoid", normalized=True),
    "glm4_moe_lite": partial(latent, score="sigmoid", normalized=True, leading=1),
    "llama4_text": llama4,
    "nemotron_h": nemotron_h,
    "gpt_neox": gpt_neox,
    "granitemoehybrid": granite_hybrid,
    "mamba2": mamba_model,
    "falcon": falcon,
    "gptj": gptj,
    "opt": opt,
    "gpt2": gpt2,
    "gpt_bigcode": gpt2,
}  # fmt: skip
"""Model type -> builder that reads it."""

NESTED: Final[Mapping[str, str]] = {"llama4": "llama4_text", "gemma3": "gemma3_text"}
"""Types whose ``text_config`` may omit its own type -> that type."""

FLAT: Final[Mapping[str, str]] = {"qwen2_vl": "qwen2_5_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Types whose published files mix the language model's keys with those of images -> type of the language model."""

NOT_DESCRIBED: Final[Mapping[str, str]] = {
    "bloom": "positions by ALiBi and a norm after the embedding",
    "mpt": "positions by ALiBi",
    "dbrx": "clipped q, k and v",
    "apertus": "an activation with learned parameters (xIELU)",
    "mamba": "Mamba-1 layers",
    "falcon_mamba": "Mamba-1 layers",
    "jamba": "Mamba-1 layers",
    "falcon_h1": "attention and Mamba-2 side by side in one layer",
    "zamba2": "an attention block whose weights several layers share",
    "lfm2": "gated short convolutions",
    "gemma4": "a vector of every token for each layer, heads of two sizes, and layers that share the keys of others",
    "gemma4_text": "a vector of every token for each layer, heads of two sizes, and layers that share the keys of others",
    "minimax": "lightning attention",
    "kimi_linear": "Kimi delta attention",
    "deepseek_v32": "an indexer that picks the keys of every query (sparse attention)",
    "glm_moe_dsa": "an indexer that picks the keys of every query (sparse attention)",
}
"""Types that are not read -> the part of their layers that no layer kind describes."""

TIED: Final = frozenset((
    "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode", "starcoder2", "smollm3", "ernie4_5", "ernie4_5_moe",
    "cohere", "cohere2", "falcon", "opt",
))  # fmt: skip
"""Types whose output matrix is the embedding unless the config states otherwise."""

EPSILON_KEYS: Final = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps", "norm_epsilon")
"""Keys of the norm's epsilon in all types."""
