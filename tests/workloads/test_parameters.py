"""Parameter counts against the published ones."""

from __future__ import annotations

import pytest

from scaleacross.catalogue import load_workload
from scaleacross.workloads import DenseTransformer, MoeTransformer

# Counts of the released checkpoints (Hugging Face safetensors index); DeepSeek-V3 without its multi-token-prediction layer.
# From qwen3-0.6b on: parameters of the class of transformers 5.23.0 on the meta device (Kimi K2: of deepseek_v3).
TO_THE_DIGIT = {
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "mixtral-8x22b": 140_630_071_296,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-120b": 116_829_156_672,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3.5-397b-a17b": 396_346_350_336,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "llama2-70b": 68_976_648_192,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama4-scout-17b-16e": 107_769_861_120,
    "llama4-maverick-17b-128e": 400_711_848_960,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-small-24b": 23_572_403_200,
    "mistral-large-2407": 122_610_069_504,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "kimi-k2": 1_026_408_209_408,
    "glm-4.5": 352_797_814_784,
    "glm-4.5-air": 106_852_245_504,
    "gpt-oss-20b": 20_914_757_184,
    "minimax-m2": 228_689_748_992,
    "gemma-3-27b": 27_009_346_304,
    "nemotron-4-340b": 341_029_195_776,
    "nemotron-3-nano-30b-a3b": 31_577_937_344,
    "olmo-2-7b": 7_298_617_344,
    "phi-4": 14_659_507_200,
}
# Balancing biases of routers: layers with experts · experts. Buffers in transformers, counted here.
BALANCING = {
    "kimi-k2": 60 * 384,
    "glm-4.5": 89 * 160,
    "glm-4.5-air": 45 * 128,
    "minimax-m2": 62 * 256,
    "nemotron-3-nano-30b-a3b": 23 * 128,
}
# (total, active) in billions as announced: GPT-3 arXiv 2005.14165; Mixtral model card, arXiv 2401.04088; Qwen3 arXiv 2505.09388
# table 2; Qwen3-Coder, DeepSeek-V2-Lite, Kimi K2, Nemotron 3 Nano and Llama 4 model cards; DeepSeek-V2 arXiv 2405.04434; V3
# README_WEIGHTS.md of its repository; gpt-oss arXiv 2508.10925 table 1; Megatron-LM arXiv 2104.04473 table 1.
ANNOUNCED = {
    "gpt3-175b": (174.6, None),
    "mixtral-8x22b": (141, 39),
    "qwen3-235b-a22b": (235, 22),
    "deepseek-v3": (671, 36.6),
    "deepseek-v2-lite": (15.7, 2.4),
    "gpt-oss-120b": (116.83, 5.13),
    "gpt-oss-20b": (20.91, 3.61),
    "kimi-k2": (1026, 32),
    "nemotron-3-nano-30b-a3b": (31.6, 3.2),
    "deepseek-v2": (236, 21),
    "mixtral-8x7b": (46.7, 12.9),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-coder-480b-a35b": (480, 35),
    "llama4-maverick-17b-128e": (400, 17),
    "mt-nlg-530b": (529.6, None),
    "megatron-1t": (1008.0, None),
}
TABLE_COUNTED = ("mixtral-8x7b", "qwen3-30b-a3b", "llama4-maverick-17b-128e")
"""Models whose announced active parameters include the embedding table.

For others they do not, or rounding leaves both possible.
"""


@pytest.mark.parametrize("name", TO_THE_DIGIT)
def test_count_equals_the_checkpoint(name: str) -> None:
    assert load_workload(name).profile().total_parameters == TO_THE_DIGIT[name] + BALANCING.get(name, 0)


@pytest.mark.parametrize("name", ANNOUNCED)
def test_total_and_active_are_the_announced_ones(name: str) -> None:
    profile = load_workload(name).profile()
    total, active = ANNOUNCED[name]
    assert profile.total_parameters / 1e9 == pytest.approx(total, rel=0.003)
    table = profile.embedding.total_parameters if name in TABLE_COUNTED else 0
    if active is not None:
        assert (profile.active_parameters + table) / 1e9 == pytest.approx(active, rel=0.022)


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
    assert profile.active_parameters == by_hand - 58 * (256 - 8) * expert - 129_280 * d


def test_tied_embedding_is_counted_once_but_still_multiplied() -> None:
    untied = load_workload("llama3.1-8b")
    assert isinstance(untied, DenseTransformer)
    tied = untied.model_copy(update={"tied_embedding": True}).profile()
    assert untied.profile().total_parameters - tied.total_parameters == 128_256 * 4096
    assert tied.head.gemms == untied.profile().head.gemms
    assert tied.active_parameters == untied.profile().active_parameters == tied.total_parameters


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
