"""Run by an interpreter with torch: parse argument lists with Megatron-LM's own parser, and count what it would build.

stdin: {"lists": {name: [arguments]}, "fields": [names], "count": [names], "env": {name: {variable: value}}}, where a value of
null takes the variable away; stdout: {name: {field: value, ..., "parameters": n}}.
CUDA is stubbed: nothing runs on a device, models are built on the meta device.
"""

from __future__ import annotations

import json
import os
import sys
import typing
from types import SimpleNamespace
from typing import Any

if not hasattr(typing, "override"):
    typing.override = lambda function: function  # type: ignore[attr-defined]
sys.path.insert(0, os.environ["MEGATRON_LM"])

import torch

SEEN = SimpleNamespace(major=9, minor=0, name="H100", total_memory=80 << 30, multi_processor_count=132)
torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
torch.cuda.device_count = lambda: 8
torch.cuda.is_available = lambda: True
torch.cuda.get_device_properties = lambda *_, **__: SEEN
torch.cuda.current_device = lambda: 0


def with_fused_permutation() -> None:
    """Report the kernels of Transformer Engine that --moe-permute-fusion asks for as present.

    None of them runs here.
    """
    from megatron.core.transformer.moe import moe_utils

    for name in (
        "permute",
        "permute_with_probs",
        "sort_chunks_by_index",
        "sort_chunks_by_index_with_probs",
        "unpermute",
    ):
        if getattr(moe_utils, f"fused_{name}") is None:
            setattr(moe_utils, f"fused_{name}", object())


def parse(words: list[str]) -> Any:
    from megatron.training import arguments

    sys.argv = ["pretrain_gpt.py", *words]
    parsed = arguments.parse_args()
    arguments.validate_args(parsed)
    return parsed


def config_of(parsed: Any) -> Any:
    try:
        from megatron.training.arguments import core_transformer_config_from_args
    except ImportError:
        from megatron.training.argument_utils import core_transformer_config_from_args
    return core_transformer_config_from_args(parsed)


def count(parsed: Any, config: Any) -> int:
    """Parameters of the GPTModel that pretrain_gpt.py builds, with layers of plain torch, on the meta device."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
        without_devices()
    config.perform_initialization, config.use_cpu_initialization = False, True
    if parsed.num_experts:
        spec = specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization=parsed.normalization
        )
    else:
        spec = specs.get_gpt_layer_local_spec(qk_layernorm=parsed.qk_layernorm, normalization=parsed.normalization)
    predicting = None
    if parsed.mtp_num_layers:  # of the last layer's kind, as gpt_builders.py has it
        last = spec.layer_specs[-1] if parsed.num_experts else spec
        predicting = specs.get_gpt_mtp_block_spec(config, last, use_transformer_engine=False)
    with torch.device("meta"):
        model = GPTModel(
            config=config,
            transformer_layer_spec=spec,
            mtp_block_spec=predicting,
            vocab_size=parsed.padded_vocab_size,
            max_sequence_length=parsed.max_position_embeddings,
            share_embeddings_and_output_weights=not parsed.untie_embeddings_and_output_weights,
            position_embedding_type=parsed.position_embedding_type,
            rotary_percent=parsed.rotary_percent,
            rotary_base=parsed.rotary_base,
        )
    return sum(parameter.numel() for parameter in model.parameters())


def without_devices() -> None:
    """No streams, no device and no layers for inference, which Transformer Engine has; attention of plain torch takes (and
    ignores) the head sizes of latent attention."""
    from megatron.core.transformer import multi_token_prediction
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    multi_token_prediction.is_inference_column_parallel_linear = lambda _: False  # type: ignore[assignment]
    torch.cuda.Stream = lambda *_, **__: None  # type: ignore[assignment, misc]
    torch.cuda.current_device = lambda: "meta"  # type: ignore[assignment, return-value]
    made = DotProductAttention.__init__

    def build(self: Any, *words: Any, k_channels: Any = None, v_channels: Any = None, **named: Any) -> None:
        made(self, *words, **named)

    DotProductAttention.__init__ = build


def plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool | type(None)) else str(value)


def main() -> None:
    question = json.load(sys.stdin)
    with_fused_permutation()
    out = {}
    for name, words in question["lists"].items():
        try:
            for variable, value in question.get("env", {}).get(name, {}).items():
                os.environ.pop(variable, None)
                os.environ |= {} if value is None else {variable: value}
            parsed = parse(words)
            config = config_of(parsed)
            out[name] = {f: plain(getattr(config, f, getattr(parsed, f, None))) for f in question["fields"]}
            if name in question["count"]:
                out[name]["parameters"] = count(parsed, config)
        except (Exception, SystemExit) as error:  # a parser error is the test's finding
            out[name] = {"error": f"{type(error).__name__}: {error}"}
    print("\n" + json.dumps(out))


main()
