"""Frozen parts and adapters: trained parameters, their costs, and the source of the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scaleacross.catalogue import load_accelerator, load_workload
from scaleacross.cost_models.compute import Shards, layer_times
from scaleacross.cost_models.runtime import Runtime
from scaleacross.spec.fine_tuning import FineTuning
from scaleacross.workloads.fine_tuning import with_fine_tuning
from scaleacross.workloads.layer_profile import ModelProfile

EVERYTHING = ["embedding", "mixer", "feed_forward", "experts", "head"]


def tuned(model: str, **request: Any) -> ModelProfile:
    return with_fine_tuning(load_workload(model).profile(), FineTuning.model_validate(request))


def test_full_fine_tuning_changes_nothing() -> None:
    assert tuned("llama3.1-8b", checkpoint="/x") == load_workload("llama3.1-8b").profile()


def test_lora_parameters_by_hand() -> None:
    # Llama 3.1 8B, rank 16, every projection: fused q-k-v 4096 → 6144, output 4096 → 4096, gate and up 4096 → 28672, down
    per_layer = 16 * (4096 + 6144 + 4096 + 4096 + 4096 + 28_672 + 14_336 + 4096)
    profile = tuned("llama3.1-8b", lora={"rank": 16})
    assert profile.trainable_parameters == 32 * per_layer
    assert profile.total_parameters == 8_030_261_248 + 32 * per_layer


def test_adapters_of_attention_alone() -> None:
    profile = tuned("llama3.1-8b", lora={"rank": 8, "targets": ["mixer"]})
    assert profile.trainable_parameters == 32 * 8 * (4096 + 6144 + 4096 + 4096)


def test_adapters_follow_the_shards_of_their_product() -> None:
    layer = tuned("llama3.1-8b", lora={"rank": 16}).blocks[0][0]
    shards = {gemm.name: gemm.shard for gemm in layer.gemms if gemm.trained}
    assert shards["lora_a_qkv"] == "none"
    assert shards["lora_b_qkv"] == "column"
    assert shards["lora_a_mlp_down"] == "row"
    assert shards["lora_b_mlp_down"] == "none"
    assert layer.num_replicated_parameters - layer.num_frozen_replicated_parameters == 16 * (4096 * 4)


def test_frozen_experts_leave_the_rest() -> None:
    profile = tuned("deepseek-v3", frozen=["experts"])
    experts = 58 * (256 * 3 * 7168 * 2048 + 256 * 7168)
    assert profile.total_parameters - profile.trainable_parameters == experts
    assert profile.total_parameters == load_workload("deepseek-v3").profile().total_parameters


def test_tied_matrix_is_frozen_with_the_embedding_only() -> None:
    tied = load_workload("llama3.1-8b").model_copy(update={"tied_embedding": True}).profile()
    head = with_fine_tuning(tied, FineTuning(frozen=("head",)))
    both = with_fine_tuning(tied, FineTuning(frozen=("head", "embedding")))
    assert head == tied
    assert tied.trainable_parameters - both.trainable_parameters == 128_256 * 4096 + 4096


def test_flop_without_the_gradients_of_frozen_weights() -> None:
    # forward and the gradient of the input of every product, and three passes of attention
    plain, lora = load_workload("llama3.1-8b").profile(), tuned("llama3.1-8b", lora={"rank": 1})
    products = sum(g.flop_per_token for layer, n in plain.blocks for g in layer.gemms for _ in range(n))
    products += sum(g.flop_per_token for g in plain.head.gemms)
    expected = plain.model_flop_per_token(8192) - products
    assert lora.model_flop_per_token(8192) == pytest.approx(expected, rel=1e-3)


def test_frozen_products_take_no_time_for_weight_gradients() -> None:
    one = np.array([1])

    def times(profile: ModelProfile) -> Any:
        accelerator = load_accelerator("h100-sxm")
        return layer_times(
            profile.blocks[0][0],
            0,
            accelerator,
            "bf16",
            Shards(one, one, one, one, 0 * one, 0 * one, one, one),
            8192,
            Runtime(),
        )

    plain = times(load_workload("llama3.1-8b").profile())
    frozen = times(tuned("llama3.1-8b", frozen=["mixer", "feed_forward"]))
    assert frozen.weight_s == 0
    assert frozen.backward_s == pytest.approx(plain.backward_s - plain.weight_s)
    assert frozen.forward_s == plain.forward_s


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"frozen": EVERYTHING}, "nothing is left to train"),
        ({"frozen": ["mixer"], "lora": {"rank": 8}}, "leave frozen out"),
        ({"lora": {"rank": 0}}, "greater than 0"),
        ({"lora": {"rank": 8, "targets": []}}, "at least 1 item"),
        ({"lora": {"rank": 8, "targets": ["experts"]}}, "Input should be 'mixer' or 'feed_forward'"),
        ({"checkpoint": ""}, "at least 1 character"),
    ],
)
def test_contradictions_are_refused(request_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FineTuning.model_validate(request_)
