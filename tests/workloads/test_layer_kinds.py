"""Layer kinds against independent counts: sliding windows, gated delta nets, Mamba-2, experts of every sort."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from published import CONFIGS
from scaleacross.catalogue import load_accelerator, load_workload
from scaleacross.cost_models.compute import Shards, layer_times
from scaleacross.cost_models.runtime import Runtime
from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.huggingface import from_hf_config
from scaleacross.workloads.layer_profile import Attention, LayerProfile


def layers(name: str, **changes: Any) -> dict[str, LayerProfile]:
    profile = from_hf_config({**CONFIGS[name], **changes}, name).profile()
    return {layer.name: layer for layer, _ in profile.blocks}


@pytest.mark.parametrize("sequence", [96, 128, 160])
@pytest.mark.parametrize(("window", "chunk"), [(None, None), (32, None), (500, None), (None, 32)])
def test_attention_counts_the_scores_that_a_mask_leaves(sequence: int, window: int | None, chunk: int | None) -> None:
    query, key = np.meshgrid(np.arange(sequence), np.arange(sequence), indexing="ij")
    mask = (
        (key <= query)
        & (query - key < (window or sequence))
        & (query // (chunk or sequence) == key // (chunk or sequence))
    )
    attention = Attention(4, 4, 16, 16, window=window, chunk=chunk)
    shortest = min(window or sequence, chunk or sequence, sequence)
    counted = 2 * (16 + 16) * 4 * mask.sum() / sequence
    assert attention.flop_per_token(sequence) == pytest.approx(counted, rel=1.5 / shortest)


def test_sliding_layers_cost_less_and_hold_as_much() -> None:
    made = layers("gemma-2-9b")
    sliding, full = made["sliding_block"], made["full_block"]
    assert sliding.forward_flop_per_token(4096) == full.forward_flop_per_token(4096)
    assert sliding.forward_flop_per_token(65_536) < full.forward_flop_per_token(65_536)
    assert sliding.activations == full.activations


@pytest.mark.parametrize(("model", "layer"), [("Qwen3-Next-80B-A3B", "linear_block"), ("Nemotron-H-8B", "mamba")])
def test_time_of_recurrences_grows_with_the_tokens_alone(model: str, layer: str) -> None:
    profile, accelerator = layers(model)[layer], load_accelerator("h100-sxm")
    one = np.array([1])

    def forward(sequence: int) -> float:
        shards = Shards(one, one, one, one, 0 * one, 0 * one, one, one)
        return float(layer_times(profile, 512, accelerator, "bf16", shards, sequence, Runtime()).forward_s[0])

    assert profile.attention is None
    assert profile.forward_flop_per_token(8192) == profile.forward_flop_per_token(1_048_576)
    assert forward(131_072) / forward(65_536) == pytest.approx(2, rel=0.03)


def test_mamba_core_by_hand() -> None:
    # 128 heads of 64, 8 groups, state 128, chunks of 128 (Mamba-2, section 6)
    core = layers("Nemotron-H-8B")["mamba"].recurrence
    assert core is not None
    assert core.flop_per_token == 2 * 128 * 128 * 8 + 128 * (2 * 128 * 64 + 2 * 2 * 128 * 64)
    assert core.heads == (128, 8)


def test_delta_net_core_by_hand() -> None:
    # 16 key and 32 value heads of 128, chunks of 64: six products with d_k or d_v columns of a chunk and three with the state
    core = layers("Qwen3-Next-80B-A3B")["linear_block"].recurrence
    assert core is not None
    assert core.flop_per_token == 32 * (3 * 2 * 64 * 128 + 2 * 2 * 64 * 128 + 3 * 2 * 128 * 128)
    assert core.heads == (16, 32)


def test_layers_of_one_half_gather_once() -> None:
    made = layers("Nemotron-3-Nano-30B")  # its experts have shared ones
    assert {name: layer.tp_gathers for name, layer in made.items()} == {"mamba": 1, "moe": 1, "attention": 1}
    assert [name for name, layer in made.items() if layer.exchanges_over_cp] == ["mamba", "attention"]
    assert made["moe"].routed_tokens == 6


def test_output_norms_hold_their_input_only() -> None:
    plain, both = layers("Llama-3.1-8B")["dense_block"], None
    fields = from_hf_config(CONFIGS["Llama-3.1-8B"], "x").model_dump()
    fields["kinds"]["dense_block"]["norms"] = "both"
    both = Decoder.model_validate(fields).profile().blocks[0][0]
    assert both.num_parameters - plain.num_parameters == 2 * 4096
    assert both.activations["none"].sharded - plain.activations["none"].sharded == 2 * 2 * 4096
    assert both.activations["selective"].sharded - plain.activations["selective"].sharded == 2 * 2 * 4096


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": ["dense_block", "other"]}, "layers name kinds that are not stated: other"),
        ({"layers": []}, "at least 1 item"),
        ({"kinds": {"dense_block": {}}, "layers": ["dense_block"]}, "needs a mixer, a feed_forward, or both"),
    ],
)
def test_decoder_refuses(change: dict[str, Any], message: str) -> None:
    fields = from_hf_config(CONFIGS["Llama-3.1-8B"], "x").model_dump()
    with pytest.raises(ValueError, match=message):
        Decoder.model_validate({**fields, **change})


def test_a_kind_without_layers_and_two_numbers_of_experts_are_refused() -> None:
    fields = from_hf_config(CONFIGS["small-qwen3-moe-dense-layers"], "x").model_dump()
    with pytest.raises(ValueError, match="kinds that no layer is of: dense_block"):
        Decoder.model_validate({**fields, "layers": ["moe_block"] * 6})
    other = {
        **fields["kinds"]["moe_block"],
        "feed_forward": {**fields["kinds"]["moe_block"]["feed_forward"], "top_k": 1},
    }
    with pytest.raises(ValueError, match="differ in num_experts, top_k or groups"):
        Decoder.model_validate(
            {**fields, "kinds": {**fields["kinds"], "second": other}, "layers": [*fields["layers"], "second"]}
        )


def test_the_decoder_of_the_documents_loads() -> None:
    text = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
    shown = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    assert [(layer.name, number) for layer, number in load_workload(shown).profile().blocks] == [
        ("linear", 1), ("sliding", 1), ("linear", 1), ("sliding", 1)
    ]  # fmt: skip
