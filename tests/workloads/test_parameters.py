"""Parameter counts against the published ones."""

from __future__ import annotations

import pytest

from scaleacross.catalogue import load_workload
from scaleacross.workloads import DenseTransformer, MoeTransformer

# Counts of the released checkpoints (Hugging Face safetensors index); DeepSeek-V3 without its multi-token-prediction layer.
TO_THE_DIGIT = {
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "mixtral-8x22b": 140_630_071_296,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-120b": 116_829_156_672,
}
# (total, active) in billions as announced: GPT-3 arXiv 2005.14165; Mixtral model card; Qwen3 arXiv 2505.09388 table 2;
# DeepSeek-V3 arXiv 2412.19437 abstract.
ANNOUNCED = {
    "gpt3-175b": (174.6, 174.6),
    "mixtral-8x22b": (141, 39),
    "qwen3-235b-a22b": (235, 22),
    "deepseek-v3": (671, 37),
}


@pytest.mark.parametrize("name", TO_THE_DIGIT)
def test_count_equals_the_checkpoint(name: str) -> None:
    assert load_workload(name).profile().total_parameters == TO_THE_DIGIT[name]


@pytest.mark.parametrize("name", ANNOUNCED)
def test_total_and_active_are_the_announced_ones(name: str) -> None:
    profile = load_workload(name).profile()
    total, active = ANNOUNCED[name]
    assert profile.total_parameters / 1e9 == pytest.approx(total, rel=0.003)
    assert profile.active_parameters / 1e9 == pytest.approx(active, rel=0.02)


def test_gpt3_by_hand() -> None:
    # 96 · (12 d² + 13 d) blocks with biases + (50,257 + 2,048) d tables + 2 d final norm, d = 12,288
    d = 12_288
    by_hand = 96 * (12 * d * d + 13 * d) + (50_257 + 2_048) * d + 2 * d
    assert load_workload("gpt3-175b").profile().total_parameters == by_hand == 174_604_259_328


def test_deepseek_v3_by_hand() -> None:
    d, heads = 7168, 128
    attention = (
        d * 1536 + 1536 + 1536 * heads * 192 + d * (512 + 64) + 512 + 512 * heads * (128 + 128) + heads * 128 * d
    )
    dense = 3 * d * 18432
    expert = 3 * d * 2048
    moe = 256 * expert + expert + 256 * d + 256  # routed, shared, router, its balancing bias
    by_hand = 2 * 129_280 * d + d + 61 * (attention + 2 * d) + 3 * dense + 58 * moe
    profile = load_workload("deepseek-v3").profile()
    assert profile.total_parameters == by_hand == 671_026_419_200
    assert profile.active_parameters == by_hand - 58 * (256 - 8) * expert


def test_tied_embedding_is_counted_once_but_still_multiplied() -> None:
    untied = load_workload("llama3.1-8b")
    assert isinstance(untied, DenseTransformer)
    tied = untied.model_copy(update={"tied_embedding": True}).profile()
    assert untied.profile().total_parameters - tied.total_parameters == 128_256 * 4096
    assert tied.head.gemms == untied.profile().head.gemms


def test_replicated_parameters_are_norms_router_and_latent_projections() -> None:
    dense = load_workload("llama3.1-8b").profile().blocks[0][0]
    assert dense.num_replicated_parameters == 2 * 4096
    leading, expert_block = (layer for layer, _ in load_workload("deepseek-v3").profile().blocks)
    latent = 7168 * 1536 + 1536 + 7168 * 576 + 512
    assert leading.num_replicated_parameters == latent + 2 * 7168
    assert expert_block.num_replicated_parameters == latent + 2 * 7168 + 256 * 7168 + 256


def test_blocks_follow_the_order_of_the_model() -> None:
    workload = load_workload("deepseek-v3")
    assert isinstance(workload, MoeTransformer)
    assert [(layer.name, count) for layer, count in workload.profile().blocks] == [
        ("dense_block", 3),
        ("moe_block", 58),
    ]
    assert workload.profile().num_layers == 61


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 5}, "num_heads 32 is no multiple of num_kv_heads 5"),
        ({"num_layers": 0}, "greater than 0"),
    ],
)
def test_dense_refuses(change: dict[str, int], message: str) -> None:
    fields = load_workload("llama3.1-8b").model_dump()
    with pytest.raises(ValueError, match=message):
        DenseTransformer(**{**fields, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": 257}, "top_k 257 exceeds num_experts 256"),
        ({"num_dense_layers": 61}, "leaves no expert block of num_layers 61"),
        ({"num_dense_layers": 0}, "exactly when num_dense_layers"),
    ],
)
def test_moe_refuses(change: dict[str, int], message: str) -> None:
    fields = load_workload("deepseek-v3").model_dump()
    with pytest.raises(ValueError, match=message):
        MoeTransformer(**{**fields, **change})
