"""Model types of Hugging Face transformers -> what reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from scaleacross.workloads.hf_hybrids import gpt2, gpt_neox, llama4, nemotron_h, qwen3_next
from scaleacross.workloads.hf_keys import Keys
from scaleacross.workloads.hf_ordinary import Fields, Traits, dense, experts, glm4_moe, latent, minimax_m2

Builder = Callable[[Keys], Fields]

TYPES: Final[Mapping[str, Builder]] = {
    "llama": partial(dense, traits=Traits()),
    "mistral": partial(dense, traits=Traits(qkv_bias=False, output_bias=False, windows="all")),
    "qwen2": partial(dense, traits=Traits(qkv_bias=True, output_bias=False, windows="later")),
    "qwen3": partial(dense, traits=Traits(qk_norm="head", windows="later")),
    "ministral3": partial(dense, traits=Traits(qkv_bias=False, output_bias=False, windows="all")),
    "qwen3_vl_text": partial(dense, traits=Traits(qk_norm="head", theta=500_000.0)),
    "seed_oss": partial(dense, traits=Traits(output_bias="attention_out_bias")),
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
    "qwen2_moe": partial(experts, traits=Traits(qkv_bias="qkv_bias", output_bias=False, windows="later")),
    "qwen3_vl_moe_text": partial(experts, traits=Traits(qk_norm="head", theta=500_000.0), normalized=True),
    "qwen3_moe": partial(experts, traits=Traits(qk_norm="head")),
    "olmoe": partial(experts, traits=Traits(qk_norm="full"), width="intermediate_size"),
    "gpt_oss": partial(
        experts, traits=Traits(qkv_bias=True, output_bias=True, windows="alternating", theta=150_000.0),
        number="num_local_experts", width="intermediate_size", normalized=True, biased=True, sinks=True,
    ),
    "qwen3_next": qwen3_next,
    "glm4_moe": glm4_moe,
    "minimax_m2": minimax_m2,
    "deepseek_v2": partial(latent, score="softmax", normalized=False),
    "deepseek_v3": partial(latent, score="sigmoid", normalized=True),
    "kimi_k2": partial(latent, score="sigmoid", normalized=True),
    "glm4_moe_lite": partial(latent, score="sigmoid", normalized=True, leading=1),
    "llama4_text": llama4,
    "nemotron_h": nemotron_h,
    "gpt_neox": gpt_neox,
    "gpt2": gpt2,
}  # fmt: skip
"""Model type -> what reads it."""

NESTED: Final[Mapping[str, str]] = {"llama4": "llama4_text", "gemma3": "gemma3_text"}
"""Types whose ``text_config`` may leave out its type -> that."""

TIED: Final = frozenset({"gemma", "gemma2", "gemma3_text", "gpt2"})
"""Types whose embedding is the output matrix unless the config says otherwise."""

EPSILON_KEYS: Final = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps")
"""Keys of the norm's epsilon, whichever the type uses."""
