"""Published ``config.json`` files become the catalogue's workloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scaleacross.catalogue import load_workload
from scaleacross.errors import InputError
from scaleacross.workloads.huggingface import from_hf_config

CONFIGS: dict[str, dict[str, Any]] = {
    "llama3.1-405b": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "hidden_size": 16_384,
        "intermediate_size": 53_248,
        "mlp_bias": False,
        "num_attention_heads": 128,
        "num_hidden_layers": 126,
        "num_key_value_heads": 8,
        "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
        "tie_word_embeddings": False,
        "vocab_size": 128_256,
    },
    "mixtral-8x22b": {
        "model_type": "mixtral",
        "hidden_size": 6144,
        "intermediate_size": 16_384,
        "num_attention_heads": 48,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 56,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 32_768,
    },
    "qwen3-235b-a22b": {
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "mlp_only_layers": [],
        "moe_intermediate_size": 1536,
        "num_attention_heads": 64,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 94,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "vocab_size": 151_936,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "first_k_dense_replace": 3,
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "kv_lora_rank": 512,
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "v_head_dim": 128,
        "vocab_size": 129_280,
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_config_becomes_the_workload_of_the_catalogue(name: str) -> None:
    assert from_hf_config(CONFIGS[name], name) == load_workload(name)


def test_file_is_named_after_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-3.1-405B"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIGS["llama3.1-405b"]))
    workload = load_workload(path)
    assert workload.name == "Llama-3.1-405B"
    assert workload.profile().total_parameters == 405_853_388_800


@pytest.mark.parametrize("model_type", ["bert", None, 3])
def test_unknown_model_type_lists_the_supported_ones(model_type: object) -> None:
    with pytest.raises(InputError, match="supported: llama, mixtral, qwen3_moe, deepseek_v3"):
        from_hf_config({"model_type": model_type}, "x")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("llama3.1-405b", "intermediate_size"),
        ("mixtral-8x22b", "num_local_experts"),
        ("qwen3-235b-a22b", "moe_intermediate_size"),
        ("deepseek-v3", "first_k_dense_replace"),
    ],
)
def test_missing_key_is_named(name: str, key: str) -> None:
    config = {k: v for k, v in CONFIGS[name].items() if k != key}
    with pytest.raises(InputError, match=f"key '{key}' is missing"):
        from_hf_config(config, name)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("llama3.1-405b", {"attention_bias": True}, "attention_bias"),
        ("llama3.1-405b", {"num_attention_heads": 127}, "no multiple of num_attention_heads 127"),
        ("llama3.1-405b", {"hidden_size": "wide"}, "'hidden_size' must be a whole number, got 'wide'"),
        ("llama3.1-405b", {"vocab_size": -1}, "vocabulary_size: Input should be greater than 0"),
        ("qwen3-235b-a22b", {"mlp_only_layers": [0]}, "mlp_only_layers"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("deepseek-v3", {"num_experts_per_tok": 300}, "top_k 300 exceeds num_experts 256"),
    ],
)
def test_what_cannot_be_expressed_is_refused(name: str, change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_hf_config({**CONFIGS[name], **change}, name)


def test_head_dim_and_kv_heads_default_as_in_transformers() -> None:
    config = {k: v for k, v in CONFIGS["llama3.1-405b"].items() if k != "num_key_value_heads"}
    workload = from_hf_config(config, "mha")
    assert workload.model_dump()["num_kv_heads"] == 128
    assert workload.model_dump()["head_dim"] == 128
