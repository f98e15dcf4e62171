"""The model in a user's Megatron-LM arguments equals the job's, or the message names the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

import scaleacross as sa
from published import CONFIGS
from scaleacross.api.reading import evaluate_settings
from scaleacross.catalogue import load_workload
from scaleacross.emitters.megatron_model import decoder_arguments
from scaleacross.readers.megatron_model import check_model, model_options
from scaleacross.targets.megatron_models import inexpressible
from scaleacross.workloads.huggingface import from_hf_config

MODELS = ("llama3.1-8b", "mixtral-8x22b", "qwen3-235b-a22b", "deepseek-v3", "gpt3-175b")
LENGTH, TP = 2048, 8
SAME = {
    "--num-attention-heads", "--kv-channels", "--num-query-groups", "--ffn-hidden-size", "--num-experts",
    "--moe-ffn-hidden-size", "--moe-router-topk", "--moe-shared-expert-intermediate-size", "--kv-lora-rank", "--q-lora-rank",
    "--qk-head-dim", "--qk-pos-emb-head-dim", "--v-head-dim",
}  # fmt: skip
NEEDED = {"--swiglu", "--group-query-attention", "--multi-latent-attention", "--moe-grouped-gemm"}
NEEDED |= {"--untie-embeddings-and-output-weights"}


def options_of(words: list[str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            out[word] = []
        else:
            out[list(out)[-1]].append(word)
    return out


def check(model: str, found: dict[str, list[str]]) -> list[str]:
    return check_model(model_options(found), load_workload(model).decoder(), LENGTH, TP, "x")


@pytest.mark.parametrize("model", MODELS)
def test_figures_of_another_model_are_refused_and_the_models_own_are_not(model: str) -> None:
    decoder = load_workload(model).decoder()
    own = options_of(decoder_arguments(decoder, LENGTH, TP))
    assert check(model, own) == []
    without_dense = all(kind.feed_forward in tuple(decoder.experts()) for kind in decoder.kinds.values())
    for option in SAME & own.keys() - ({"--ffn-hidden-size"} if without_dense else set()):
        other = own | {option: [str(int(own[option][0]) * 2)]}
        alone = [] if option == "--num-attention-heads" else [{option: other[option]}]
        for stated in (other, *alone):  # the whole model, and that option alone
            with pytest.raises(sa.InputError, match=f"x: {option} .* is another model than the job's '{model}'"):
                check(model, stated)
    for option in NEEDED & own.keys():
        with pytest.raises(sa.InputError, match="is another model than the job's"):
            check(model, {name: values for name, values in own.items() if name != option})


def test_defaults_of_megatron_are_what_is_not_stated() -> None:
    """Omitted figures take Megatron-LM's defaults.

    Public scripts for Mixtral leave the width of experts and the head size to the parser.
    """
    own = options_of(decoder_arguments(load_workload("mixtral-8x22b").decoder(), LENGTH, TP))
    short = {k: v for k, v in own.items() if k not in ("--moe-ffn-hidden-size", "--kv-channels", "--moe-router-topk")}
    assert check("mixtral-8x22b", short) == []
    assert check("mixtral-8x22b", {"--num-layers": ["56"], "--moe-router-topk": ["2"]}) == []
    dense = options_of(decoder_arguments(load_workload("llama3.1-8b").decoder(), LENGTH, TP))
    without = {name: values for name, values in dense.items() if name != "--ffn-hidden-size"}
    with pytest.raises(
        sa.InputError, match="--ffn-hidden-size 10880 is another model"
    ):  # 2/3 of 4 hidden, in steps of 64
        check("llama3.1-8b", without)


OTHERWISE = (
    ("gpt-oss-120b", "--window-size", ["1023,0"], r"--window-size 1023,0 .* with --window-size 127,0"),
    ("gpt-oss-120b", "--window-size", None, r"no --window-size .* with --window-size 127,0"),
    ("gpt-oss-120b", "--window-attn-skip-freq", ["4"], r"--window-attn-skip-freq of 27 layers .* of 18 layers"),
    ("gpt-oss-120b", "--softmax-type", None, r"--softmax-type vanilla .* with --softmax-type learnable"),
    ("gpt-oss-120b", "--quick-geglu", None, r"no --quick-geglu "),
    ("llama3.1-8b", "--window-size", ["4095,0"], r"--window-size 4095,0 .* with no --window-size"),
    (
        "llama3.1-8b",
        "--experimental-attention-variant",
        ["gated_delta_net"],
        r"-variant gated_delta_net .* with no --exp",
    ),
    ("llama3.1-8b", "--normalization", None, r"--normalization LayerNorm .* with --normalization RMSNorm"),
    ("llama3.1-8b", "--disable-bias-linear", None, r"no --disable-bias-linear "),
    ("llama3.1-8b", "--add-qkv-bias", [], r"--add-qkv-bias .* with no --add-qkv-bias"),
    (
        "llama3.1-8b",
        "--position-embedding-type",
        None,
        r"learned_absolute .* with --position-embedding-type rope or none",
    ),
    ("qwen3-235b-a22b", "--qk-layernorm", None, r"no --qk-layernorm "),
    ("deepseek-v3", "--moe-router-num-groups", ["16"], r"--moe-router-num-groups 16 .* with --moe-router-num-groups 8"),
    ("deepseek-v3", "--moe-router-group-topk", None, r"--moe-router-group-topk 0 .* with --moe-router-group-topk 4"),
)


@pytest.mark.parametrize(("model", "option", "values", "message"), OTHERWISE)
def test_windows_sinks_norms_biases_and_groups_are_the_models(
    model: str, option: str, values: list[str] | None, message: str
) -> None:
    own = options_of(decoder_arguments(load_workload(model).decoder(), LENGTH, TP))
    assert check(model, own) == []
    other = {name: words for name, words in own.items() if name != option}
    with pytest.raises(sa.InputError, match=f"x: .*{message}"):
        check(model, other if values is None else other | {option: values})


def test_every_published_model_is_its_own_and_linear_layers_are_compared() -> None:
    for name, config in CONFIGS.items():
        decoder = from_hf_config(config, name).decoder()
        if any(inexpressible(decoder)):
            continue
        length = 1024 if name == "gpt2" else LENGTH
        own = options_of(decoder_arguments(decoder, length, 1))
        assert check_model(model_options(own), decoder, length, 1, "x") == [], name
    decoder = from_hf_config(CONFIGS["Qwen3-Next-80B-A3B"], "next").decoder()
    own = options_of(decoder_arguments(decoder, LENGTH, 1))
    assert check_model(own | {"--linear-attention-freq": ["4"]}, decoder, LENGTH, 1, "x") == []
    with pytest.raises(sa.InputError, match=r"--linear-attention-freq of 42 layers is another model .* of 36 layers"):
        check_model(own | {"--linear-attention-freq": ["8"]}, decoder, LENGTH, 1, "x")


def test_windows_are_the_same_however_they_are_written() -> None:
    own = options_of(decoder_arguments(load_workload("gpt-oss-120b").decoder(), LENGTH, TP))
    for window in ("127,0", "(127,0)", "127,-1"):
        assert check("gpt-oss-120b", own | {"--window-size": [window], "--window-attn-skip-freq": ["2"]}) == []
    dense = options_of(decoder_arguments(load_workload("llama3.1-8b").decoder(), LENGTH, TP))
    assert check("llama3.1-8b", dense | {"--window-size": ["-1,-1"], "--window-attn-skip-freq": ["4"]}) == []


@pytest.mark.parametrize(
    ("text", "dense"), [("([0]*3+[1]*58)", 3), ("[0,0,0]+[1]*58", 3), ("1", 0), ("[0]*4+[1]*57", 4)]
)
def test_which_layers_have_experts_is_compared_however_it_is_written(text: str, dense: int) -> None:
    own = options_of(decoder_arguments(load_workload("deepseek-v3").decoder(), LENGTH, TP))
    stated = own | {"--moe-layer-freq": [text]}
    if dense == 3:
        assert check("deepseek-v3", stated) == []
        return
    with pytest.raises(
        sa.InputError, match=f"--moe-layer-freq of {61 - dense} layers is another model .* of 58 layers"
    ):
        check("deepseek-v3", stated)


def test_what_cannot_be_compared_and_dropout_are_named() -> None:
    own = options_of(decoder_arguments(load_workload("llama3.1-8b").decoder(), LENGTH, TP))
    stated = own | {"--ffn-hidden-size": ["$((HIDDEN * 4))"]}
    del stated["--hidden-dropout"]
    assert check("llama3.1-8b", stated) == [
        "not compared with the job's model, as a shell would tell its value: --ffn-hidden-size",
        "masks of dropout are not modelled, as the job's model has none: --hidden-dropout 0.1",
    ]


def test_kernels_that_are_not_fused_are_named() -> None:
    own = options_of(decoder_arguments(load_workload("llama3.1-8b").decoder(), LENGTH, TP))
    assert check("llama3.1-8b", own | {"--no-rope-fusion": []}) == [
        "kernels that are not fused are not modelled: --no-rope-fusion"
    ]


@pytest.mark.parametrize(
    ("option", "value", "same"), [("--padded-vocab-size", "128512", True), ("--vocab-size", "32000", False)]
)
def test_vocabularies_may_differ_by_padding_only(option: str, value: str, same: bool) -> None:
    if same:
        assert check("llama3.1-8b", {option: [value]}) == []
        return
    with pytest.raises(
        sa.InputError, match=r"--vocab-size 32000 is another model than the job's 'llama3.1-8b' with 128256"
    ):
        check("llama3.1-8b", {option: [value]})


def test_evaluate_refuses_the_script_of_another_model(tmp_path: Path) -> None:
    words = decoder_arguments(load_workload("llama3.1-8b").decoder(), LENGTH, 1)
    batch = "--micro-batch-size 1 --global-batch-size 128 --seq-length 2048 --bf16 --use-distributed-optimizer"
    script = tmp_path / "args.sh"
    script.write_text(" ".join([*words, batch]))
    assert evaluate_settings("megatron", script, "llama3_8b_one_building", world=16).degrees.dp_shard == 16
    script.write_text(" ".join([*words, batch]).replace("--ffn-hidden-size 14336", "--ffn-hidden-size 28672"))
    with pytest.raises(sa.InputError, match="--ffn-hidden-size 28672 is another model than the job's"):
        evaluate_settings("megatron", script, "llama3_8b_one_building", world=16)
