"""Read keys of a Hugging Face ``config.json``: class defaults, errors that name the key, a record of keys read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scaleacross.errors import InputError
from scaleacross.workloads.identity import Activation, Rope, RopeScaling

Config = Mapping[str, Any]

NO_MATTER: Final = frozenset((
    "_attn_implementation", "_name_or_path", "architectures", "attention_dropout", "attn_implementation",
    "attn_pdrop", "audio_config", "auto_map", "aux_loss_alpha", "bos_token_id", "cache_implementation",
    "chunk_size_feed_forward", "classifier_dropout", "dtype", "embd_pdrop", "eos_token_id", "ep_size",
    "experts_per_token", "for_llm_compressor", "gradient_checkpointing", "hidden_dropout", "id2label",
    "initial_context_length", "input_jitter_noise", "is_decoder", "is_encoder_decoder",
    "keys_to_ignore_at_inference", "label2id", "layerdrop", "mamba_ssm_cache_dtype", "max_position_embeddings",
    "max_window_layers", "model_type", "n_ctx", "n_positions", "name", "num_labels", "num_logits_to_keep",
    "output_attentions", "output_hidden_states", "output_router_logits", "pad_token_id", "prefix",
    "pretraining_tp", "problem_type", "read_as", "rescale_prenorm_residual", "resid_pdrop", "residual_in_fp32",
    "return_dict", "return_dict_in_generate", "router_aux_loss_coef", "router_jitter_noise",
    "scale_attn_weights", "sep_token_id", "seq_aux", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "swiglu_alpha", "swiglu_limit",
    "task_specific_params", "tf_legacy_loss", "time_step_floor", "time_step_limit", "time_step_max",
    "time_step_min", "time_step_rank", "tokenizer_class", "topk_method", "torch_dtype", "torchscript",
    "transformers_version", "unk_token_id", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache",
    "use_mamba_kernels", "use_mtp", "use_sliding_window", "vision_config",
))  # fmt: skip
NO_MATTER_ENDS: Final = ("_token_id", "_token_ids", "_token_index", "_dropout", "_loss_coef")
"""Endings of further keys that change neither parameters, step time nor the settings written for a target."""

_ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
_SCALINGS: Final = {"su": "longrope"}


@dataclass(frozen=True)
class Keys:
    """The mapping of one file. ``seen``: keys that were read. ``defaults``: values of missing keys."""

    config: Config
    seen: set[str] = field(default_factory=set)
    defaults: Config = field(default_factory=dict)

    @property
    def model_type(self) -> str:
        """The file's ``model_type`` as text."""
        return str(self.config.get("model_type"))

    def fail(self, message: str) -> InputError:
        """Return an InputError whose message names the config's type."""
        return InputError(f"config of model_type '{self.model_type}': {message}")

    def get(self, key: str, default: Any = None) -> Any:
        """Return the file's value of ``key``, or the class's value if the key is missing.

        ``default`` replaces a null, and a missing key without a class value.
        """
        self.seen.add(key)
        value = self.config[key] if key in self.config else self.defaults.get(key)
        return default if value is None else value

    def need(self, key: str) -> Any:
        """Return the value of a required key. Raises InputError if it is missing or null."""
        value = self.get(key)
        if value is None:
            raise self.fail(f"key '{key}' is missing")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number; the key is required unless a default is given."""
        value = self.need(key) if default is None else self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(f"key '{key}' must be a whole number, got {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float | None:
        """Return a number, or None."""
        value = self.get(key, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(f"key '{key}' must be a number, got {value!r}")
        return float(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return true or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(f"key '{key}' must be true or false, got {value!r}")
        return value

    def several(self, key: str, length: int | None = None) -> Sequence[Any] | None:
        """Return a list, with ``length`` entries if that is given; None if the key is missing or null."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self.fail(f"key '{key}' must be a list, got {value!r}")
        if length is not None and len(value) != length:
            raise self.fail(f"key '{key}' has {len(value)} entries for {length} layers")
        return value

    def refuse(self, key: str, *harmless: Any) -> None:
        """Raise InputError for a value that the package cannot describe; null, false and ``harmless`` values pass."""
        value = self.get(key)
        if value not in (None, False, *harmless):
            raise self.fail(
                f"{key} {value!r} is not read; write a workload of family 'decoder' without it, or set it to null"
            )

    def head_dim(self) -> int:
        """Return ``head_dim``, or hidden_size / heads if the config does not state it (the library's rule)."""
        if self.get("head_dim") is not None:
            return self.whole("head_dim")
        hidden, heads = self.whole("hidden_size"), self.whole("num_attention_heads")
        if heads <= 0 or hidden % heads:
            raise self.fail(
                f"hidden_size {hidden} is no multiple of num_attention_heads {heads}, and head_dim is missing"
            )
        return hidden // heads

    def activation(self, key: str = "hidden_act", default: str = "silu") -> Activation:
        """Return the activation function."""
        self.seen.add("hidden_act")  # ignored if the class has a key of its own
        name = self.get(key, default)
        if name not in _ACTIVATIONS:
            raise self.fail(f"{key} {name!r} is not read; known: {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[name]

    def rope(
        self,
        base: float,
        *,
        fraction: float = 1.0,
        layer_type: str | None = None,
        interleaved: bool = False,
        scaled: bool = True,
    ) -> Rope:
        """Return the rotary embedding: ``rope_parameters`` (transformers 5), else ``rope_theta`` and ``rope_scaling``.

        ``base`` and ``fraction`` are the type's defaults. ``layer_type`` selects among parameters stated per layer
        type. ``scaled``: ``rope_scaling`` applies to these layers.
        """
        stated = self._mapping("rope_parameters")
        if layer_type is not None and isinstance(stated.get(layer_type), Mapping):
            stated = dict(stated[layer_type])
        legacy, own = self._mapping("rope_scaling") if scaled else {}, self.number("rope_theta", base)
        local = self.number("rope_local_base_freq")
        if layer_type == "sliding_attention" and local is not None:
            legacy, own = {}, local  # Gemma 3 scales only layers with full attention
        stated = {**legacy, **stated}
        theta = stated.get("rope_theta", stated.get("theta", own))
        part = stated.get("partial_rotary_factor", self.number("partial_rotary_factor", fraction))
        return Rope(base=theta, rotated_fraction=part, interleaved=interleaved, scaling=self._scaling(stated))

    def _mapping(self, key: str) -> dict[str, Any]:
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise self.fail(f"key '{key}' must be a mapping, got {value!r}")
        return dict(value)

    def _scaling(self, stated: Mapping[str, Any]) -> RopeScaling | None:
        own = self.get("original_max_position_embeddings")
        kind = stated.get("rope_type", stated.get("type", "default"))
        kind = _SCALINGS.get(kind, kind)
        if kind in ("default", "mrope"):
            return None
        positions = stated.get("original_max_position_embeddings", own)
        return RopeScaling.model_validate(
            {
                "kind": kind,
                "factor": stated.get("factor"),
                "original_positions": positions,
                "rounded": stated.get("truncate", True),
                **{
                    name: stated.get(name)
                    for name in (
                        "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"
                    )
                },
            }
        )  # fmt: skip

    def unread(self) -> list[str]:
        """Keys that nothing has read and that may matter: their value is neither null, false nor 0."""
        return sorted(
            key
            for key, value in self.config.items()
            if value and key not in self.seen | NO_MATTER and not key.endswith(NO_MATTER_ENDS)
        )
