"""Published ``config.json`` files become the catalogue's workloads."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from interpreters import python_with
from published import CONFIGS, COUNTED
from scaleacross.catalogue import load_workload
from scaleacross.errors import InputError
from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.hf_defaults import CLASS_DEFAULTS
from scaleacross.workloads.hf_types import EPSILON_KEYS, TYPES
from scaleacross.workloads.huggingface import from_hf_config
from scaleacross.workloads.layer_kinds import Attention, Experts, LayerKind

CATALOGUE = {
    "llama3.1-8b": "Llama-3.1-8B",
    "mixtral-8x22b": "Mixtral-8x22B",
    "qwen3-235b-a22b": "Qwen3-235B-A22B",
    "deepseek-v3": "DeepSeek-V3",
    "gpt-oss-120b": "gpt-oss-120b",
    "qwen3-8b": "Qwen3-8B",
    "qwen3-next-80b-a3b": "Qwen3-Next-80B-A3B",
    "qwen2.5-7b": "Qwen2.5-7B",
    "llama4-scout-17b-16e": "Llama-4-Scout-17B-16E",
    "deepseek-v2-lite": "DeepSeek-V2-Lite",
    "kimi-k2": "Kimi-K2",
    "glm-4.5-air": "GLM-4.5-Air",
    "minimax-m2": "MiniMax-M2",
    "nemotron-3-nano-30b-a3b": "Nemotron-3-Nano-30B",
    "olmo-2-7b": "OLMo-2-7B",
}
PUBLISHED_TYPES = """
    llama mistral qwen2 qwen3 qwen3_moe qwen3_next mixtral phi3 gemma2 gemma3_text olmo2 olmoe granite gpt_oss glm4_moe
    deepseek_v2 deepseek_v3 kimi_k2 llama4_text nemotron_h gpt_neox gpt2 ministral3 qwen3_vl_text qwen3_vl_moe_text qwen2_moe
    seed_oss glm4 glm4_moe_lite gemma olmo3 granitemoe minimax_m2 starcoder2 nemotron
    stablelm smollm3 exaone4 ernie4_5 dots1 gpt_bigcode granitemoehybrid mamba2 hunyuan_v1_dense qwen2_5_vl_text arcee
    cohere cohere2 phi phimoe falcon gptj opt qwen3_5_text qwen3_5_moe_text olmo
    qwen2_vl_text glm4v_text ernie4_5_moe hunyuan_v1_moe exaone_moe glm4v_moe_text bamba
"""


def balancing_biases(workload: Decoder) -> int:
    """Entries of the routers' balancing biases.

    They are buffers in transformers, but parameters here and for their authors.
    """
    count = Counter(workload.layers)
    return sum(
        count[name] * kind.feed_forward.num_experts
        for name, kind in workload.kinds.items()
        if isinstance(kind.feed_forward, Experts) and kind.feed_forward.router_bias == "balancing"
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_transformers_class(name: str) -> None:
    workload = from_hf_config(CONFIGS[name], name)
    assert workload.profile().total_parameters == COUNTED[name] + balancing_biases(workload)


def test_every_type_has_a_published_config() -> None:
    assert {str(config["model_type"]) for config in CONFIGS.values()} == set(PUBLISHED_TYPES.split()) == set(TYPES)
    assert set(CLASS_DEFAULTS) == set(TYPES)


RECOUNT = """
import json, os, torch, transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
transformers.logging.set_verbosity_error()
found = {}
for name, config in json.loads(os.environ["CONFIGS"]).items():
    same = {
        "kimi_k2": "deepseek_v3", "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe", "qwen2_5_vl_text": "qwen2",
        "qwen2_vl_text": "qwen2", "glm4v_text": "glm4", "glm4v_moe_text": "glm4_moe",
    }
    kind = same.get(config["model_type"], config["model_type"])
    fields = {key: value for key, value in config.items() if key not in ("model_type", "quantization_config")}
    if (fields.get("rope_scaling") or {}).get("type") == "mrope":  # the rotary embedding of images, which has no weights
        del fields["rope_scaling"]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**fields))
    found[name] = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(json.dumps(found))
"""


@pytest.mark.consumer
def test_transformers_counts_what_is_typed_in(tmp_path: Path) -> None:
    python = python_with("transformers", "SCALEACROSS_TRANSFORMERS_PYTHON")
    env = {"HOME": str(tmp_path), "PATH": "", "CONFIGS": json.dumps(CONFIGS)}
    done = subprocess.run(
        [python, "-c", RECOUNT], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == COUNTED


@pytest.mark.parametrize("name", CATALOGUE)
def test_config_becomes_the_workload_of_the_catalogue(name: str) -> None:
    ours, theirs = load_workload(name).decoder(), from_hf_config(CONFIGS[CATALOGUE[name]], name)
    assert ours.profile() == theirs.profile()


def test_file_is_named_after_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIGS["Llama-3.1-8B"]))
    workload = load_workload(path)
    assert workload.name == "Llama-3.1-8B"
    assert workload.profile().total_parameters == 8_030_261_248


@pytest.mark.parametrize("model_type", ["bert", None, 3])
def test_unknown_model_type_lists_the_supported_ones(model_type: object) -> None:
    with pytest.raises(InputError, match="supported: llama, mistral, qwen2"):
        from_hf_config({"model_type": model_type}, "x")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Llama-3.1-8B", "intermediate_size"),
        ("Mixtral-8x22B", "num_local_experts"),
        ("Qwen3-235B-A22B", "moe_intermediate_size"),
        ("DeepSeek-V3", "kv_lora_rank"),
        ("gpt2", "n_head"),
        ("Nemotron-H-8B", "vocab_size"),
    ],
)
def test_missing_key_is_named(name: str, key: str) -> None:
    config = {k: v for k, v in CONFIGS[name].items() if k != key}
    with pytest.raises(InputError, match=f"key '{key}' is missing"):
        from_hf_config(config, name)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("Llama-3.1-8B", {"attention_bias": "yes"}, "'attention_bias' must be true or false, got 'yes'"),
        ("Llama-3.1-8B", {"num_attention_heads": 31, "head_dim": None}, "no multiple of num_attention_heads 31"),
        ("Llama-3.1-8B", {"hidden_size": "wide", "head_dim": None}, "'hidden_size' must be a whole number, got 'wide'"),
        ("Llama-3.1-8B", {"vocab_size": -1}, "vocabulary_size: Input should be greater than 0"),
        ("Llama-3.1-8B", {"rope_scaling": 8}, "'rope_scaling' must be a mapping"),
        ("Llama-3.1-8B", {"rope_scaling": {"rope_type": "spiral"}}, "spiral|linear"),
        ("Llama-3.1-8B", {"hidden_act": "tanh"}, "hidden_act 'tanh' is not read"),
        ("Qwen3-235B-A22B", {"use_sliding_window": True}, "use_sliding_window"),
        ("Qwen3-235B-A22B", {"decoder_sparse_step": 0}, "decoder_sparse_step 0 must be at least 1"),
        ("OLMoE-1B-7B", {"clip_qkv": 8.0}, "clip_qkv 8.0 is not read"),
        ("DeepSeek-V3", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("DeepSeek-V3", {"num_experts_per_tok": 300}, "top_k 300 exceeds num_experts 256"),
        ("DeepSeek-V3", {"n_group": 7}, "do not divide into 7 groups"),
        ("gpt-oss-120b", {"layer_types": ["full_attention"]}, "has 1 entries for 36 layers"),
        ("gpt-oss-120b", {"layer_types": ["odd"] * 36}, "layer_types odd are not read"),
        ("Nemotron-H-8B", {"hybrid_override_pattern": "M-X"}, "letters X; known"),
        ("Nemotron-H-8B", {"num_hidden_layers": 118}, "num_hidden_layers is 118, but the layers' own list has 52"),
        ("Nemotron-3-Nano-30B", {"moe_latent_size": 1024}, "moe_latent_size 1024 is not read"),
        ("stablelm-2-1_6b", {"qk_layernorm": True}, "qk_layernorm True is not read"),
        ("c4ai-command-r-v01", {"use_qk_norm": True}, "use_qk_norm True is not read"),
        ("falcon-7b", {"alibi": True}, "alibi True is not read"),
        ("OLMo-7B", {"clip_qkv": 8.0}, "clip_qkv 8.0 is not read"),
        ("opt-6.7b", {"do_layer_norm_before": False}, "do_layer_norm_before false is not read"),
        ("opt-6.7b", {"word_embed_proj_dim": 512}, "word_embed_proj_dim 512 is not read"),
        ("SmolLM3-3B", {"no_rope_layers": [1]}, "1 entries for 36 layers"),
        ("Llama-4-Scout-17B-16E", {"no_rope_layers": [1]}, "1 entries for 48 layers"),
    ],
)
def test_what_cannot_be_expressed_is_refused(name: str, change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_hf_config({**CONFIGS[name], **change}, name)


@pytest.mark.parametrize(
    "architecture",
    ["LlamaForSequenceClassification", "LlamaForTokenClassification", "LlamaForQuestionAnswering", "LlamaModel"],
)
def test_a_class_with_another_head_is_refused_unless_it_is_to_be_read_so(architecture: str) -> None:
    config = CONFIGS["Llama-3.1-8B"] | {"architectures": [architecture]}
    with pytest.raises(
        InputError, match=f"architectures {architecture}: .* key 'read_as: llama' to the file; .* show workload"
    ):
        from_hf_config(config, "x")
    assert from_hf_config(config, "x", read_as="llama") == from_hf_config(CONFIGS["Llama-3.1-8B"], "x")


def test_classes_that_predict_tokens_are_read() -> None:
    for architecture in ("LlamaForCausalLM", "GPT2LMHeadModel", "Llama4ForConditionalGeneration"):
        assert (
            from_hf_config(CONFIGS["Llama-3.1-8B"] | {"architectures": [architecture]}, "x").vocabulary_size == 128_256
        )


def test_head_dim_and_kv_heads_default_as_in_transformers() -> None:
    config = {k: v for k, v in CONFIGS["Llama-3.1-8B"].items() if k != "num_key_value_heads"}
    mixer = from_hf_config(config, "mha").kinds["dense_block"].mixer
    assert isinstance(mixer, Attention)
    assert (mixer.num_kv_heads, mixer.head_dim) == (32, 128)


def test_a_workload_may_name_a_config_and_how_to_read_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIGS["Llama-3.1-8B"], "model_type": "lumen"}))
    loaded = load_workload({"config_json": str(path), "read_as": "llama", "name": "mine"})
    assert (loaded.name, loaded.profile().total_parameters) == ("mine", 8_030_261_248)
    with pytest.raises(InputError, match="keys reed_as are unknown"):
        load_workload({"config_json": str(path), "reed_as": "llama"})
    with pytest.raises(InputError, match="config_json must be a path, got 3"):
        load_workload({"config_json": 3})


def test_language_model_of_a_multimodal_config_is_read() -> None:
    config = {"model_type": "gemma3", "vision_config": {"hidden_size": 9}, "text_config": CONFIGS["gemma-3-1b"]}
    assert from_hf_config(config, "x") == from_hf_config(CONFIGS["gemma-3-1b"], "x")


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("mistral3", "Mistral-7B-v0.1"),
        ("mistral3", "Ministral-3-8B"),
        ("kimi_k25", "Kimi-K2"),
        ("qwen3_vl_moe", "Qwen3-VL-235B-A22B"),
        ("qwen3_5", "Qwen3.5-9B"),
        ("qwen3_5_moe", "Qwen3.5-35B-A3B"),
    ],
)
def test_any_file_whose_language_model_is_read_is_read(outer: str, inner: str) -> None:
    config = {"model_type": outer, "text_config": CONFIGS[inner], "vision_config": {"hidden_size": 9}}
    assert from_hf_config(config, "x") == from_hf_config(CONFIGS[inner], "x")
    text = {key: value for key, value in CONFIGS[inner].items() if key != "tie_word_embeddings"}
    tied = from_hf_config({**config, "text_config": text, "tie_word_embeddings": True}, "x")
    assert tied.profile().total_parameters < COUNTED[inner]


def test_gemma_scales_embeddings_and_stores_norms_less_one() -> None:
    for name in ("gemma-7b", "gemma-2-9b", "gemma-3-1b"):
        one = from_hf_config(CONFIGS[name], "x")
        assert (one.unit_offset_norm, one.multipliers.embedding) == (True, one.hidden_size**0.5)


def test_olmo3_stretches_only_layers_that_see_everything() -> None:
    kinds = from_hf_config(CONFIGS["OLMo-3-32B"], "x").kinds
    mixers = {name: kind.mixer for name, kind in kinds.items()}
    scaled = {one.window: one.rope.scaling is not None for one in mixers.values() if isinstance(one, Attention)}  # type: ignore[union-attr]
    assert scaled == {4096: False, None: True}


GEMMA3_27B = {
    "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
    "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168,
    "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
}  # fmt: skip
GEMMA3_4B = {
    "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
    "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        (GEMMA3_27B, GEMMA3_27B),
        (GEMMA3_4B, {**GEMMA3_4B, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}),
    ],
)
def test_a_text_model_leaves_out_what_its_class_says(text: dict[str, Any], stated: dict[str, Any]) -> None:
    """A text model omits what its class states.

    For the published files of Gemma 3 parameters are counted by hand, from their shapes and the class's 262,208 tokens.
    """
    found = from_hf_config({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}, "x")
    h, heads, kv, d = (stated[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    layer = 2 * h * d * (heads + kv) + 2 * d + 3 * h * stated["intermediate_size"] + 4 * h
    assert found.profile().total_parameters == layer * stated["num_hidden_layers"] + 262_208 * h + h
    full = {**stated, "vocab_size": 262_208, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    scalar = {"query_pre_attn_scalar": 256, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh"}
    assert found == from_hf_config({**scalar, **full}, "x")


def test_layers_without_rotary_embedding_are_told_apart() -> None:
    stated = from_hf_config(CONFIGS["SmolLM3-3B"], "x")
    ruled = from_hf_config({**CONFIGS["SmolLM3-3B"], "no_rope_layers": None}, "x")
    assert stated == ruled
    assert Counter(stated.layers) == {"full_block": 27, "full_unrotated_block": 9}
    exaone = from_hf_config(CONFIGS["EXAONE-4.0-32B"], "x")
    assert Counter(exaone.layers) == {"sliding_block": 48, "full_unrotated_block": 16}
    unrotated = exaone.kinds["full_unrotated_block"].mixer
    assert isinstance(unrotated, Attention)
    assert (unrotated.rope, unrotated.window) == ("none", None)
    whole = {**CONFIGS["EXAONE-4.0-32B"], "sliding_window": None, "layer_types": ["full_attention"] * 64}
    assert set(from_hf_config(whole, "x").layers) == {"dense_block"}  # all rotate if none has a window


def test_flop_of_a_plain_squared_relu_layer_by_hand() -> None:
    workload = from_hf_config(CONFIGS["Minitron-4B-Base"], "x")
    ((layer, count),) = workload.profile().blocks
    products = sum(2 * gemm.in_features * gemm.out_features * gemm.tokens_per_token for gemm in layer.gemms)
    attention = 2 * 3072 * (24 + 2 * 8) * 128 + 2 * 24 * 128 * 3072
    assert products == attention + 2 * 2 * 3072 * 9216  # up and down, no gate
    assert (count, workload.norm, workload.unit_offset_norm) == (32, "layernorm", True)


@pytest.mark.parametrize(("name", "norms"), [("phi-2", 1), ("falcon-7b", 1), ("falcon-40b", 2), ("gpt-neox-20b", 2)])
def test_parallel_halves_share_a_norm_or_have_their_own(name: str, norms: int) -> None:
    workload = from_hf_config(CONFIGS[name], "x")
    (kind,) = workload.kinds.values()
    alone = kind.model_copy(update={"shared_norm": False}).lower(
        "x", workload.hidden_size, workload.norm, dropout=False
    )
    layer, d = kind.lower("x", workload.hidden_size, workload.norm, dropout=False), workload.hidden_size
    assert kind.parallel
    assert alone.num_parameters - layer.num_parameters == 2 * d * (2 - norms)  # weight and bias
    assert alone.elementwise_bytes - layer.elementwise_bytes == 4 * d * (2 - norms)
    held = [one.activations["none"].sharded for one in (alone, layer)]
    assert held[0] - held[1] == 4 * d * (2 - norms)  # its input and output
    with pytest.raises(ValidationError, match="shared_norm needs a mixer and a feed_forward in parallel"):
        LayerKind(mixer=kind.mixer, feed_forward=kind.feed_forward, shared_norm=True)


def test_a_flat_file_with_images_is_its_language_model() -> None:
    flat = {**CONFIGS["Qwen2.5-VL-7B"], "model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 9}}
    assert from_hf_config(flat, "x") == from_hf_config(CONFIGS["Qwen2.5-VL-7B"], "x")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_norm_without_epsilon_has_the_class_s(name: str) -> None:
    config = {key: value for key, value in CONFIGS[name].items() if key not in EPSILON_KEYS}
    kind = str(config["model_type"])
    if kind in ("olmo", "opt"):  # none of their keys states one
        assert from_hf_config(config, name).norm_epsilon == 1e-5
        return
    (epsilon,) = (value for key, value in CLASS_DEFAULTS[kind].items() if key in EPSILON_KEYS)
    assert from_hf_config(config, name).norm_epsilon == epsilon
    assert from_hf_config({**config, "norm_eps": 1e-3}, name).norm_epsilon == 1e-3


def test_a_null_is_stated_and_a_missing_key_is_the_class_s() -> None:
    config = {key: value for key, value in CONFIGS["Mistral-7B-v0.1"].items() if key != "sliding_window"}
    windows = [
        {kind.mixer.window for kind in from_hf_config(one, "x").kinds.values() if isinstance(kind.mixer, Attention)}
        for one in (config, {**config, "sliding_window": None})
    ]
    assert windows == [{4096}, {None}]


DEFAULTS = """
import json, os
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
classes = {**dict(CONFIG_MAPPING.items()), "kimi_k2": CONFIG_MAPPING["deepseek_v3"]}
found = {}
for kind, keys in json.loads(os.environ["ASKED"]).items():
    theta = getattr(classes[kind], "default_theta", None)
    local = {"rope_local_base_freq": theta["local"]} if isinstance(theta, dict) else {}
    found[kind] = {key: local[key] if key in local else getattr(classes[kind], key) for key in keys}
print(json.dumps(found))
"""


@pytest.mark.consumer
def test_defaults_are_those_of_the_transformers_classes(tmp_path: Path) -> None:
    python = python_with("transformers", "SCALEACROSS_TRANSFORMERS_PYTHON")
    asked = json.dumps({kind: list(values) for kind, values in CLASS_DEFAULTS.items()})
    env = {"HOME": str(tmp_path), "PATH": "", "ASKED": asked}
    done = subprocess.run(
        [python, "-c", DEFAULTS], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == CLASS_DEFAULTS


def test_quantization_is_said() -> None:
    assert (
        from_hf_config(CONFIGS["DeepSeek-V3"], "x").published_quantization
        == "fp8, fmt e4m3, weight_block_size [128, 128]"
    )
    assert from_hf_config(CONFIGS["gpt-oss-120b"], "x").published_quantization == "mxfp4"
    assert from_hf_config(CONFIGS["Llama-3.1-8B"], "x").published_quantization is None


def test_rope_is_read_in_both_spellings() -> None:
    old = CONFIGS["Llama-3.1-8B"]
    scaling = old["rope_scaling"]
    new = {k: v for k, v in old.items() if k not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {**scaling, "rope_theta": 500_000.0}
    assert from_hf_config(new, "x") == from_hf_config(old, "x")


def test_rope_of_sliding_layers_is_their_own() -> None:
    kinds = from_hf_config(CONFIGS["gemma-3-1b"], "x").kinds
    bases = {name: kind.mixer.rope.base for name, kind in kinds.items()}  # type: ignore[union-attr]
    assert bases == {"sliding_block": 10_000, "full_block": 1_000_000}
