"""Model figures from config.json become Megatron-LM's options, and its own parser reads them back."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from plans import make_plan

from interpreters import python_with
from published import CONFIGS, COUNTED
from readers import unpacked
from scaleacross.catalogue import load_workload
from scaleacross.emitters import EMITTERS, emit
from scaleacross.emitters.megatron import megatron_arguments
from scaleacross.emitters.megatron_model import model_notes
from scaleacross.emitters.torchtitan_identity import identity
from scaleacross.errors import EmitError
from scaleacross.spec.parallelism import Degrees
from scaleacross.workloads.hf_types import EPSILON_KEYS
from scaleacross.workloads.huggingface import from_hf_config

REFUSED = {
    "gemma-2-9b": "normalise what sub-layers return",
    "gemma-3-1b": "normalise what sub-layers return",
    "OLMo-2-7B": "normalise what sub-layers return",
    "OLMoE-1B-7B": "over all heads at once",
    "granite-3.1-8b": "multiplier embedding 12",
    "Llama-4-Scout-17B-16E": "chunks of 8192 positions",
    "small-llama4-interleaved": "chunks of 8192 positions",
    "Nemotron-H-8B": "'mamba' are not attention",
    "Nemotron-3-Nano-30B": "'mamba' are not attention",
    "gpt-neox-20b": "attention and feed-forward in parallel",
    "gemma-7b": "multiplier embedding 55",
    "OLMo-3-32B": "normalise what sub-layers return",
    "GLM-4-32B": "normalise what sub-layers return",
    "granite-3.0-3b-a800m": "multiplier embedding 12",
    "MiniMax-M2": "over all heads at once",
    "EXAONE-4.0-32B": "normalise what sub-layers return",
    "granite-4.0-h-tiny": "'mamba_block' are not attention",
    "small-granite-hybrid-dense": "'mamba_block' are not attention",
    "Mamba-Codestral-7B": "'mamba' are not attention",
    "c4ai-command-r-v01": "LayerNorm unbiased",
    "c4ai-command-r7b-12-2024": "attention and feed-forward in parallel",
    "phi-2": "attention and feed-forward in parallel",
    "Phi-3.5-MoE": "a bias of the output projection over the vocabulary",
    "falcon-7b": "attention and feed-forward in parallel",
    "falcon-40b": "attention and feed-forward in parallel",
    "gpt-j-6b": "attention and feed-forward in parallel",
    "opt-6.7b": "plain feed-forward with relu",
    "small-stablelm-parallel": "attention and feed-forward in parallel",
    "OLMo-7B": "LayerNorm unweighted",
    "small-arcee": "biases of some projections only",
    "ERNIE-4.5-21B-A3B": "a balancing bias on softmax scores",
    "small-glm4v-text": "normalise what sub-layers return",
    "small-bamba": "'mamba_block' are not attention",
}
EXPRESSED = [name for name in CONFIGS if name not in REFUSED]


def options(name: str, **changes: Any) -> list[str]:
    workload = from_hf_config({**CONFIGS[name], **changes}, name)
    length = 1024 if name == "gpt2" else 4096
    return megatron_arguments(make_plan(Degrees(dp_shard=2), workload=workload, sequence_length=length), [])


def value(words: list[str], option: str) -> str | None:
    return words[words.index(option) + 1] if option in words else None


def test_deepseek_v3_keeps_its_router_norms_and_rope() -> None:
    words = options("DeepSeek-V3")
    assert {"--qk-layernorm", "--moe-router-enable-expert-bias", "--multi-latent-attention"} <= set(words)
    stated = {
        "--moe-router-num-groups": "8", "--moe-router-group-topk": "4", "--moe-router-topk-scaling-factor": "2.5",
        "--moe-router-score-function": "sigmoid", "--moe-layer-freq": "([0]*3+[1]*58)", "--rotary-scaling-factor": "40",
        "--mscale": "1", "--mscale-all-dim": "1", "--norm-epsilon": "1e-06", "--rotary-base": "10000",
        "--moe-shared-expert-intermediate-size": "2048", "--padded-vocab-size": "129280",
    }  # fmt: skip
    assert {option: value(words, option) for option in stated} == stated


@pytest.mark.parametrize(("model", "base"), [("llama3.1-8b", "500000"), ("mixtral-8x22b", "1000000")])
def test_catalogue_models_state_their_rotary_base(model: str, base: str) -> None:
    words = megatron_arguments(make_plan(Degrees(dp_shard=2), workload=load_workload(model)), [])
    assert value(words, "--rotary-base") == base


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Llama-3.1-8B", ["--use-rope-scaling", "--rope-scaling-factor", "8"]),
        ("Qwen2.5-7B", ["--disable-bias-linear", "--add-qkv-bias"]),
        ("Mistral-7B-v0.1", ["--window-size", "4095,0"]),
        ("gpt-oss-120b", ["--window-size", "127,0", "--window-attn-skip-freq", "([1]*1+[0]*1)*18"]),
        ("gpt-oss-120b", ["--softmax-type", "learnable"]),
        ("gpt-oss-120b", ["--position-embedding-type", "yarn"]),
        ("gpt-oss-120b", ["--no-yarn-correction-range-round-to-int"]),
        ("Qwen3-Next-80B-A3B", ["--linear-attention-freq", "([1]*3+[0]*1)*12"]),
        ("Qwen3-Next-80B-A3B", ["--rotary-percent", "0.25"]),
        ("DeepSeek-V2-Lite", ["--moe-router-pre-softmax"]),
        ("GLM-4.7-Flash", ["--qk-layernorm", "--kv-channels", "256", "--q-lora-rank", "768"]),  # 2,048 over 20 heads
        ("small-qwen3-moe-dense-layers", ["--moe-layer-freq", "([0]*1+[1]*1+[0]*3+[1]*1)"]),
        ("gpt2", ["--position-embedding-type", "learned_absolute", "--max-position-embeddings", "1024"]),
    ],
)
def test_identity_by_type(name: str, expected: list[str]) -> None:
    words = options(name)
    at = words.index(expected[0])
    assert words[at : at + len(expected)] == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_option_is_refused_by_name(name: str) -> None:
    with pytest.raises(EmitError, match=REFUSED[name]):
        options(name)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("Llama-3.1-8B", {"mlp_bias": True}, "biases of some projections only"),
        ("Llama-3.1-8B", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rotary scaling dynamic"),
        ("Phi-3-mini-4k", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "rotary scaling longrope"),
        ("DeepSeek-V3", {"norm_topk_prob": False}, "sigmoid weights of several experts"),
    ],
)
def test_values_without_an_option_are_refused(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(EmitError, match=message):
        options(name, **change)


def test_what_is_left_open_is_said() -> None:
    notes = " ".join(model_notes(from_hf_config(CONFIGS["DeepSeek-V3"], "x")))
    assert "1 prediction layer(s), of which the plan trains 0" in notes
    assert "prediction" not in " ".join(model_notes(from_hf_config(CONFIGS["DeepSeek-V3"], "x"), 1))
    assert "quantised (fp8" in notes
    assert "beta_fast" in " ".join(model_notes(from_hf_config(CONFIGS["Kimi-K2"], "x")))
    silent = load_workload("llama3.1-8b").decoder().model_dump()
    silent["kinds"]["dense_block"]["mixer"]["rope"] = None
    assert "no rotary base" in " ".join(
        model_notes(type(load_workload("llama3.1-8b").decoder()).model_validate(silent))
    )


YARN = {"rope_factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_seq_len": 4096, "truncate": True}
GROUPS = {"num_expert_groups": 8, "num_limited_groups": 4}
STATED = {
    "Llama-3.1-8B": {
        "RMSNorm": {"eps": 1e-5},
        "ComplexRoPE": {
            "theta": 500_000.0, "scaling": "llama", "scaling_factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "Qwen3-235B-A22B": {
        "RMSNorm": {"eps": 1e-6},
        "CosSinRoPE": {"theta": 1e6, "scaling": "none"},
        "TokenChoiceTopKRouter": {"score_func": "softmax", "route_norm": True, "route_scale": 1.0},
    },
    "DeepSeek-V3": {
        "RMSNorm": {"eps": 1e-6},
        "ComplexRoPE": {"theta": 1e4, "scaling": "yarn", **YARN},
        "TokenChoiceTopKRouter": {"score_func": "sigmoid", "route_norm": True, "route_scale": 2.5, **GROUPS},
    },
    "DeepSeek-V2-Lite": {
        "Attention": {"mscale": 0.707},
        "TokenChoiceTopKRouter": {"score_func": "softmax", "route_norm": False, "route_scale": 1.0},
    },
}  # fmt: skip
READ_IDENTITY = """
import dataclasses, json
from torchtitan.config import ConfigManager
found = {}
def look(part):
    if isinstance(part, (list, tuple)):
        for one in part: look(one)
    elif dataclasses.is_dataclass(part):
        kind = type(part).__qualname__.split(".")[0]
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            look(value)
            if isinstance(value, (int, float, str, type(None))):
                found.setdefault(kind, {}).setdefault(field.name, set()).add(value)
look(ConfigManager().parse_args(["--module", "scaleacross_plan", "--config", "train"]).model_spec.model)
print(json.dumps({kind: {f: list(v) for f, v in fields.items()} for kind, fields in found.items()}))
"""


@pytest.mark.consumer
@pytest.mark.parametrize("name", STATED)
def test_torchtitan_holds_the_values_that_the_workload_states(name: str, tmp_path: Path) -> None:
    """The module sets the workload's values over those of torchtitan's flavor.

    Qwen3's flavor has another rotary base, and DeepSeek-V3's another epsilon.
    """
    emit(make_plan(Degrees(pp=2), workload=from_hf_config(CONFIGS[name], name)), "torchtitan", tmp_path)
    done = subprocess.run(
        [python_with("torchtitan"), "-c", READ_IDENTITY],
        cwd=tmp_path / "torchtitan",
        env={"PATH": os.environ.get("PATH", ""), "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path / "torchtitan")},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for kind, fields in STATED[name].items():
        assert {field: found[kind][field] for field in fields} == {field: [value] for field, value in fields.items()}


def test_torchtitan_s_softmax_scale_of_latent_attention_is_the_workload_s() -> None:
    """The flavor 236B has mscale 1; DeepSeek-V2 states 0.707."""
    workload = load_workload("deepseek-v2").decoder()
    assert identity(workload, "deepseek_v3")["Attention"] == {"mscale": 0.707}
    config = {**CONFIGS["DeepSeek-V2-Lite"]}
    config["rope_scaling"] = {**config["rope_scaling"], "mscale": 1.0}
    with pytest.raises(EmitError, match=r"mscale 1\.0 differs from mscale_all_dim 0\.707"):
        identity(from_hf_config(config, "x"), "deepseek_v3")


def test_a_rotary_scaling_that_torchtitan_has_not_is_refused() -> None:
    config = {**CONFIGS["Qwen3-8B"], "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    with pytest.raises(EmitError, match=r"rotary scaling linear: torchtitan 0.3.0's CosSinRoPE has yarn"):
        EMITTERS["torchtitan"](make_plan(Degrees(pp=2), workload=from_hf_config(config, "x")))


LOCAL = [
    "--transformer-impl",
    "local",
    "--no-persist-layer-norm",
    "--no-gradient-accumulation-fusion",
    "--no-rope-fusion",
    "--moe-token-dispatcher-type",
    "allgather",
    "--lr",
    "1e-4",
    "--train-iters",
    "10",
    "--tokenizer-type",
    "NullTokenizer",
]  # also needed without a GPU and Transformer Engine
FIELDS = [
    "rotary_base",
    "rotary_percent",
    "layernorm_epsilon",
    "qk_layernorm",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "add_qkv_bias",
    "moe_router_topk_scaling_factor",
    "moe_router_score_function",
    "moe_router_pre_softmax",
    "rotary_scaling_factor",
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "add_bias_linear",
    "gated_linear_unit",
]


BUILT = ("Llama-3.1-8B", "Qwen3-235B-A22B", "Mixtral-8x22B", "DeepSeek-V3")
PREDICTING = ("Llama-3.1-8B", "DeepSeek-V3")
"""The parameters of these models with --mtp-num-layers 1."""


def predicting(name: str) -> str:
    return f"{name} with a prediction layer"


def predicted_parameters(name: str) -> int:
    """Of a prediction layer; balancing biases are buffers there."""
    decoder = from_hf_config(CONFIGS[name], "x").decoder()
    biases = sum(experts.num_experts for experts in decoder.experts() if experts.router_bias == "balancing")
    return decoder.profile(1).total_parameters - decoder.profile().total_parameters - biases


def read_back(lists: dict[str, list[str]], megatron: Path) -> dict[str, dict[str, Any]]:
    """What Megatron-LM's parser and TransformerConfig make of argument lists."""
    python = python_with("torch", "SCALEACROSS_MEGATRON_PYTHON")
    question = {
        "lists": {name: words + LOCAL for name, words in lists.items()},
        "fields": FIELDS,
        "count": [*BUILT, *map(predicting, PREDICTING)],
        "worlds": {},
    }
    env = {**os.environ, "MEGATRON_LM": str(megatron), "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    done = subprocess.run(
        [python, str(Path(__file__).parent / "megatron_reader.py")],
        input=json.dumps(question), env=env, capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.consumer
def test_megatrons_parser_carries_every_identity(tmp_path: Path) -> None:
    unpacked("megatron-lm-*.tar.xz", tmp_path)
    words = {name: options(name) for name in EXPRESSED}
    words |= {predicting(name): [*words[name], "--mtp-num-layers", "1"] for name in PREDICTING}
    found = read_back(words, tmp_path)
    assert {name: told["error"] for name, told in found.items() if "error" in told} == {}
    for name in EXPRESSED:
        config, told = CONFIGS[name], found[name]
        assert told["num_layers"] == config.get("num_hidden_layers", config.get("n_layer"))
        assert told["hidden_size"] == config.get("hidden_size", config.get("n_embd"))
        assert told["layernorm_epsilon"] == next(config[key] for key in EPSILON_KEYS if key in config)
        rope = {**config, **config.get("rope_parameters", {})}
        # its option takes whole numbers: StarCoder 2 states 999999.442
        assert told["rotary_base"] == round(rope.get("rope_theta", 10_000))
        assert told["rotary_percent"] == rope.get("partial_rotary_factor", 1.0)
        assert told["moe_router_num_groups"] == (config["n_group"] if config.get("n_group", 1) > 1 else None)
        scaling = config.get("routed_scaling_factor", 1.0)
        assert told["moe_router_topk_scaling_factor"] == (scaling if scaling != 1.0 else None)
        qk_norm = (
            name.startswith(("Qwen3", "small-qwen3", "dots", "Hunyuan", "small-hunyuan", "small-exaone"))
            or "kv_lora_rank" in config
            or config.get("use_qk_norm", False)
        )
        assert told["qk_layernorm"] == qk_norm
    counted = {name: found[name]["parameters"] for name in BUILT}
    assert counted == {name: COUNTED[name] for name in BUILT}
    more = {name: found[predicting(name)]["parameters"] - counted[name] for name in PREDICTING}
    assert more == {name: predicted_parameters(name) for name in PREDICTING}
