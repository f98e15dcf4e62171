"""``config.json`` of a published model -> workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import ValidationError

from scaleacross.errors import InputError
from scaleacross.workloads.dense_transformer import DenseTransformer
from scaleacross.workloads.layer_profile import Workload
from scaleacross.workloads.moe_transformer import GroupedQueryAttention, LatentAttention, MoeTransformer

Config = Mapping[str, Any]


def from_hf_config(config: Config, name: str) -> Workload:
    """The workload that a Hugging Face transformers config describes.

    Keys that do not change parameters, FLOP or activations (rotary scaling, token ids, ...) are not read.

    Raises:
        InputError: a model type that is not supported, a missing key, or values that contradict each other.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise InputError(f"model_type {model_type!r} is not read; supported: {', '.join(MODEL_TYPES)}")
    try:
        return MODEL_TYPES[model_type](config, name)
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InputError(f"config of model_type '{model_type}': {details}") from None


def _get(config: Config, key: str) -> Any:
    """A key that the family cannot do without."""
    if config.get(key) is None:
        raise InputError(f"config of model_type '{config['model_type']}': key '{key}' is missing")
    return config[key]


def _whole(config: Config, key: str) -> int:
    """A key that must be a whole number because something is computed from it here."""
    value = _get(config, key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(
            f"config of model_type '{config['model_type']}': key '{key}' must be a whole number, got {value!r}"
        )
    return value


def _flag(config: Config, key: str) -> bool:
    """A switch that is off where the config is silent (the transformers library's default for these model types)."""
    return bool(config.get(key))


def _head_dim(config: Config) -> int:
    """``head_dim``, or hidden_size / heads where the config does not state it (the library's rule)."""
    if config.get("head_dim") is not None:
        return _whole(config, "head_dim")
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
    if heads <= 0 or hidden % heads:
        raise InputError(f"hidden_size {hidden} is no multiple of num_attention_heads {heads}, and head_dim is missing")
    return hidden // heads


def _common(config: Config, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "num_layers": _get(config, "num_hidden_layers"),
        "hidden_size": _get(config, "hidden_size"),
        "num_heads": _get(config, "num_attention_heads"),
        "vocabulary_size": _get(config, "vocab_size"),
        "tied_embedding": _flag(config, "tie_word_embeddings"),
    }


def _llama(config: Config, name: str) -> Workload:
    if _flag(config, "attention_bias") or _flag(config, "mlp_bias"):
        raise InputError(
            "config of model_type 'llama': attention_bias and mlp_bias are not read; write a dense_transformer YAML"
        )
    return DenseTransformer(
        **_common(config, name),
        num_kv_heads=config.get("num_key_value_heads") or _get(config, "num_attention_heads"),
        head_dim=_head_dim(config),
        intermediate_size=_get(config, "intermediate_size"),
        gated_mlp=True,
    )


def _mixtral(config: Config, name: str) -> Workload:
    return MoeTransformer(
        **_common(config, name),
        attention=GroupedQueryAttention(num_kv_heads=_get(config, "num_key_value_heads"), head_dim=_head_dim(config)),
        num_experts=_get(config, "num_local_experts"),
        top_k=_get(config, "num_experts_per_tok"),
        expert_intermediate_size=_get(config, "intermediate_size"),
    )


def _qwen3_moe(config: Config, name: str) -> Workload:
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise InputError(
            "config of model_type 'qwen3_moe': dense layers among the experts (mlp_only_layers, decoder_sparse_step) are not read"
        )
    return MoeTransformer(
        **_common(config, name),
        attention=GroupedQueryAttention(
            num_kv_heads=_get(config, "num_key_value_heads"), head_dim=_head_dim(config), qk_norm=True
        ),
        num_experts=_get(config, "num_experts"),
        top_k=_get(config, "num_experts_per_tok"),
        expert_intermediate_size=_get(config, "moe_intermediate_size"),
    )


def _deepseek_v3(config: Config, name: str) -> Workload:
    if config.get("moe_layer_freq", 1) != 1:
        raise InputError("config of model_type 'deepseek_v3': moe_layer_freq other than 1 is not read")
    num_dense = _whole(config, "first_k_dense_replace")
    return MoeTransformer(
        **_common(config, name),
        attention=LatentAttention(
            q_lora_rank=config.get("q_lora_rank"),
            kv_lora_rank=_get(config, "kv_lora_rank"),
            qk_nope_head_dim=_get(config, "qk_nope_head_dim"),
            qk_rope_head_dim=_get(config, "qk_rope_head_dim"),
            v_head_dim=_get(config, "v_head_dim"),
        ),
        num_dense_layers=num_dense,
        dense_intermediate_size=_get(config, "intermediate_size") if num_dense else None,
        num_experts=_get(config, "n_routed_experts"),
        top_k=_get(config, "num_experts_per_tok"),
        expert_intermediate_size=_get(config, "moe_intermediate_size"),
        num_shared_experts=config.get("n_shared_experts") or 0,
        router_bias=True,  # e_score_correction_bias, part of every model of this type
    )


MODEL_TYPES: Final[Mapping[str, Callable[[Config, str], Workload]]] = {
    "llama": _llama,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek_v3,
}
