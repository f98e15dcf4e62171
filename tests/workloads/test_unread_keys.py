"""Input that no reader knows: types, keys, and layers without a kind."""

from __future__ import annotations

import pytest

from published import CONFIGS
from scaleacross.errors import InputError
from scaleacross.workloads.hf_types import NOT_DESCRIBED
from scaleacross.workloads.huggingface import from_hf_config


def test_unknown_type_names_its_unknown_keys_and_the_nearest_type() -> None:
    config = {**CONFIGS["Llama-3.1-8B"], "model_type": "lumen", "flux_gate_rank": 7}
    said = r"Read as (llama|granite), it has 8,030,261,248 parameters, and its keys leave out: flux_gate_rank 7\..*read_as: "
    with pytest.raises(InputError, match=said):
        from_hf_config(config, "x")
    assert from_hf_config(config, "x", read_as="llama").profile().total_parameters == 8_030_261_248
    assert from_hf_config({**config, "read_as": "llama"}, "x") == from_hf_config(config, "x", read_as="llama")


@pytest.mark.parametrize("kind", NOT_DESCRIBED)
def test_a_type_that_no_kind_of_layer_describes_is_refused_for_that(kind: str) -> None:
    with pytest.raises(InputError) as refused:
        from_hf_config({**CONFIGS["Llama-3.1-8B"], "model_type": kind}, "x")
    assert f"its layers have {NOT_DESCRIBED[kind]}" in str(refused.value)
    assert "read_as" not in str(refused.value)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_key_of_a_published_file_is_read_or_does_not_matter(name: str) -> None:
    assert from_hf_config(CONFIGS[name], name).unread_keys == ()


def test_keys_that_no_reader_asked_for_are_named() -> None:
    more = {
        "num_local_experts": 8,
        "flux": list(range(99)),
        "image_token_id": 7,
        "latent_size": 0,
        "gated": False,
        "rank": None,
    }
    workload = from_hf_config(CONFIGS["Llama-3.1-8B"] | more, "x")
    assert workload.unread_keys == ("flux", "num_local_experts 8")
    assert dict(workload.remarks())["keys not read"].startswith("flux, num_local_experts 8: ")


def test_heads_that_do_not_divide_are_said_without_the_words_of_a_library() -> None:
    config = {**CONFIGS["Llama-3.1-8B"], "num_key_value_heads": 7}
    with pytest.raises(InputError, match=r"of model_type 'llama': num_heads 32 is no multiple of num_kv_heads 7$"):
        from_hf_config(config, "x")
