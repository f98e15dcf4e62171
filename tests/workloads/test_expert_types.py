"""Types that describe experts with keys of their own, and types refused because of their layers."""

from __future__ import annotations

from collections import Counter

import pytest

from published import CONFIGS
from scaleacross.errors import InputError
from scaleacross.targets.megatron_models import inexpressible
from scaleacross.workloads.huggingface import from_hf_config
from scaleacross.workloads.layer_kinds import Attention, Experts, Mamba2


def layers(name: str, **change: object) -> list[tuple[type, bool]]:
    """Mixer of every layer, and whether it has experts."""
    read = from_hf_config({**CONFIGS[name], **change}, name)
    kinds = [read.kinds[each] for each in read.layers]
    return [(type(kind.mixer), isinstance(kind.feed_forward, Experts)) for kind in kinds]


def test_ernie_has_experts_between_its_first_and_last_layer_of_them() -> None:
    assert [sparse for _, sparse in layers("ERNIE-4.5-21B-A3B")] == [False] + [True] * 27
    some = layers("ERNIE-4.5-21B-A3B", moe_layer_start_index=2, moe_layer_end_index=9, moe_layer_interval=2)
    assert [at for at, (_, sparse) in enumerate(some) if sparse] == [3, 5, 7, 9]


def test_exaone_rotates_only_layers_with_a_window() -> None:
    read = from_hf_config(CONFIGS["small-exaone-moe"], "x")
    mixers = [read.kinds[each].mixer for each in read.layers]
    assert all(isinstance(mixer, Attention) for mixer in mixers)
    assert [getattr(mixer, "rope", None) == "none" for mixer in mixers] == ([False] * 3 + [True]) * 2
    assert [getattr(mixer, "window", None) for mixer in mixers] == ([128] * 3 + [None]) * 2


def test_bamba_attends_where_it_says() -> None:
    assert [mixer for mixer, _ in layers("small-bamba")] == [Mamba2, Mamba2, Attention, Mamba2]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ERNIE-4.5-21B-A3B", {"use_bias": True}, "use_bias true is not read"),
        ("ERNIE-4.5-21B-A3B", {"moe_layer_interval": 0}, "moe_layer_interval 0 must be at least 1"),
        ("small-hunyuan-moe", {"moe_topk": [1, 2, 2]}, "moe_topk differs from layer to layer"),
        ("small-hunyuan-moe", {"use_cla": True}, "use_cla True is not read"),
        ("small-hunyuan-moe", {"num_shared_expert": [2, 2, 2]}, "only one shared MLP"),
        ("small-bamba", {"attn_layer_indices": [4]}, "layer types 4 are not read"),
        ("gpt2", {"model_type": "gemma4_text"}, "its layers have a vector of every token for each layer"),
        ("gpt2", {"model_type": "gemma4"}, "layers that share the keys of others"),
    ],
)
def test_what_is_not_read_is_refused_for_what_it_is(name: str, change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_hf_config({**CONFIGS[name], **change}, name)


def test_megatron_balances_sigmoid_scores_alone() -> None:
    said = "a balancing bias on softmax scores"
    assert said in list(inexpressible(from_hf_config(CONFIGS["ERNIE-4.5-21B-A3B"], "x")))
    assert said not in list(inexpressible(from_hf_config(CONFIGS["small-exaone-moe"], "x")))


def test_dots1_has_windows_where_its_config_says() -> None:
    types = ["sliding_attention", "full_attention"] * 31
    listed, from_30 = (
        from_hf_config({**CONFIGS["dots.llm1"], "sliding_window": 4096, **more}, "dots")
        for more in ({"layer_types": types}, {"max_window_layers": 30})
    )
    assert Counter(listed.layers) == {"sliding_dense_block": 1, "sliding_moe_block": 30, "full_moe_block": 31}
    assert Counter(from_30.layers) == {"full_dense_block": 1, "full_moe_block": 29, "sliding_moe_block": 32}
