"""Defaults of the configuration classes of transformers 5.23.0, for keys that a ``config.json`` omits.

Files omit values that equal the class's default. The text model of a multimodal file (Gemma 3, Llama 4) may omit even
its shape. Published files of other types always state the shape, so a missing one is an error there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_GEMMA2: Final[Mapping[str, Any]] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}

CLASS_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": {"rms_norm_eps": 1e-6},
    "mistral": {"rms_norm_eps": 1e-6, "num_key_value_heads": 8, "sliding_window": 4096},
    "ministral3": {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128},
    "qwen2": {"rms_norm_eps": 1e-6, "num_key_value_heads": 32, "sliding_window": 4096},
    "qwen3": {"rms_norm_eps": 1e-6, "num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096},
    "qwen2_5_vl_text": {"rms_norm_eps": 1e-5, "num_key_value_heads": 8},
    "smollm3": {"rms_norm_eps": 1e-6, "num_key_value_heads": 4},
    "exaone4": {"rms_norm_eps": 1e-5, "num_key_value_heads": 32, "sliding_window": 4096},
    "ernie4_5": {"rms_norm_eps": 1e-5, "num_key_value_heads": 2, "head_dim": 128},
    "qwen2_vl_text": {"rms_norm_eps": 1e-5, "num_key_value_heads": 8},
    "glm4v_text": {"rms_norm_eps": 1e-5, "num_key_value_heads": 2},
    "ernie4_5_moe": {
        "rms_norm_eps": 1e-5, "num_key_value_heads": 4, "moe_num_experts": 64, "moe_k": 6,
        "moe_intermediate_size": 1536, "moe_num_shared_experts": 2,
    },
    "hunyuan_v1_moe": {"rms_norm_eps": 1e-5},
    "exaone_moe": {
        "rms_norm_eps": 1e-5, "num_key_value_heads": 32, "sliding_window": 4096, "num_experts": 64,
        "num_experts_per_tok": 8, "moe_intermediate_size": 1024, "num_shared_experts": 1, "routed_scaling_factor": 2.5,
    },
    "glm4v_moe_text": {
        "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "attention_bias": True, "n_routed_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_shared_experts": 1,
    },
    "bamba": {
        "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "mamba_n_heads": 128, "mamba_d_head": "auto",
        "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_chunk_size": 256,
    },
    "hunyuan_v1_dense": {"rms_norm_eps": 1e-5},
    "arcee": {"rms_norm_eps": 1e-5},
    "nemotron": {"norm_eps": 1e-5},
    "starcoder2": {"norm_epsilon": 1e-5, "num_key_value_heads": 2, "use_bias": True},
    "stablelm": {"layer_norm_eps": 1e-5, "num_key_value_heads": 32},
    "cohere": {"layer_norm_eps": 1e-5, "logit_scale": 0.0625},
    "cohere2": {"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "sliding_window": 4096},
    "phi": {"layer_norm_eps": 1e-5},
    "phimoe": {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "num_local_experts": 16, "num_experts_per_tok": 2},
    "falcon": {"layer_norm_epsilon": 1e-5, "multi_query": True, "parallel_attn": True},
    "gptj": {"layer_norm_epsilon": 1e-5, "rotary_dim": 64},
    "opt": {"enable_bias": True, "layer_norm_elementwise_affine": True, "max_position_embeddings": 2048},
    "dots1": {"rms_norm_eps": 1e-6, "num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 62},
    "qwen3_vl_text": {"rms_norm_eps": 1e-6, "num_key_value_heads": 32, "head_dim": 128},
    "seed_oss": {"rms_norm_eps": 1e-6, "num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
    "glm4": {"rms_norm_eps": 1.5625e-7, "num_key_value_heads": 2, "head_dim": 128, "attention_bias": True},
    "gemma": {"rms_norm_eps": 1e-6, "num_key_value_heads": 16, "head_dim": 256},
    "phi3": {"rms_norm_eps": 1e-5},
    "gemma2": {**_GEMMA2, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {
        **_GEMMA2, "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "rope_local_base_freq": 10_000.0,
    },
    "olmo": {"attention_bias": False},
    "olmo2": {"rms_norm_eps": 1e-5},
    "olmo3": {"rms_norm_eps": 1e-5, "sliding_window": 4096},
    "granite": {"rms_norm_eps": 1e-6},
    "mixtral": {"rms_norm_eps": 1e-5, "num_key_value_heads": 8},
    "granitemoe": {"rms_norm_eps": 1e-6, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "rms_norm_eps": 1e-6, "num_key_value_heads": 16, "sliding_window": 4096,
        "shared_expert_intermediate_size": 5632, "qkv_bias": True,
    },
    "qwen3_vl_moe_text": {"rms_norm_eps": 1e-6, "num_key_value_heads": 16},
    "qwen3_moe": {"rms_norm_eps": 1e-6, "num_key_value_heads": 4},
    "olmoe": {"rms_norm_eps": 1e-5},
    "gpt_oss": {
        "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "attention_bias": True,
    },
    "qwen3_next": {"rms_norm_eps": 1e-6, "num_key_value_heads": 2, "head_dim": 256},
    "qwen3_5_text": {"rms_norm_eps": 1e-6, "num_key_value_heads": 4, "head_dim": 256},
    "qwen3_5_moe_text": {
        "rms_norm_eps": 1e-6, "num_key_value_heads": 2, "head_dim": 256, "num_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    },
    "glm4_moe": {"rms_norm_eps": 1e-5, "num_key_value_heads": 8},
    "glm4_moe_lite": {"rms_norm_eps": 1e-5},
    "minimax_m2": {"rms_norm_eps": 1e-6, "num_key_value_heads": 8, "head_dim": 128},
    "deepseek_v2": {"rms_norm_eps": 1e-6},
    "deepseek_v3": {"rms_norm_eps": 1e-6},
    "kimi_k2": {"rms_norm_eps": 1e-6},
    "llama4_text": {
        "rms_norm_eps": 1e-5, "vocab_size": 202_048, "hidden_size": 5120, "intermediate_size": 8192,
        "intermediate_size_mlp": 16_384, "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "num_local_experts": 16, "num_experts_per_tok": 1,
    },
    "nemotron_h": {
        "layer_norm_epsilon": 1e-5, "num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 128,
        "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "chunk_size": 128,
    },
    "granitemoehybrid": {
        "rms_norm_eps": 1e-6, "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024,
        "mamba_n_heads": 128, "mamba_d_state": 256, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_chunk_size": 256,
    },
    "mamba2": {
        "layer_norm_epsilon": 1e-5, "num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8,
        "conv_kernel": 4, "chunk_size": 256,
    },
    "gpt_neox": {"layer_norm_eps": 1e-5},
    "gpt_bigcode": {"layer_norm_epsilon": 1e-5, "multi_query": True, "activation_function": "gelu_pytorch_tanh"},
    "gpt2": {"layer_norm_epsilon": 1e-5},
}  # fmt: skip
"""Model type -> key -> default of its class. A key that the file states as null is not missing."""
