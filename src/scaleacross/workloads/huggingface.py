"""Turn the ``config.json`` of a published model into a workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from scaleacross.errors import InputError
from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.hf_defaults import CLASS_DEFAULTS
from scaleacross.workloads.hf_keys import Config, Keys
from scaleacross.workloads.hf_types import EPSILON_KEYS, FLAT, NESTED, NOT_DESCRIBED, TIED, TYPES
from scaleacross.workloads.workload import MAX_LAYERS

LAYER_KEYS: Final = ("num_hidden_layers", "n_layer")
LANGUAGE_HEADS: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Substrings of transformers' class names whose models have an output matrix over the vocabulary."""
INHERITED: Final = ("quantization_config", "tie_word_embeddings")
"""Keys outside ``text_config`` that also hold for it unless it states them."""
MAX_SHOWN: Final = 20
"""Largest length of a value that is shown with its key, characters."""
READ_AS: Final = "read_as"
"""Key that names the type whose layers a model of unknown type has."""


def from_hf_config(config: Config, name: str, read_as: str | None = None) -> Decoder:
    """Return the workload that a Hugging Face transformers config describes.

    Args:
        config: mapping of the file; for a multimodal model only the language model is read (``text_config``).
        name: name of the workload.
        read_as: type to read an unknown type as; the mapping's own key ``read_as`` has the same meaning.

    Raises:
        InputError: a model type that is not supported, a missing key, or values that contradict each other.
    """
    chosen: Any = read_as or config.get(READ_AS) or config.get("model_type")
    nested, classes = config.get("text_config"), config.get("architectures")
    if isinstance(chosen, str) and chosen not in TYPES and isinstance(nested, Mapping):
        inner = NESTED.get(chosen) or nested.get("model_type")
        if isinstance(inner, str) and inner in TYPES:
            inherited = {key: config[key] for key in INHERITED if key in config}
            config, chosen = {**inherited, **nested}, inner
    if isinstance(chosen, str) and nested is None:
        chosen = FLAT.get(chosen, chosen)
    if not isinstance(chosen, str) or chosen not in TYPES:
        raise InputError(_unknown(config, chosen))
    if not (read_as or config.get(READ_AS)):
        _require_language_model(classes, chosen)
    keys = Keys(config, defaults=CLASS_DEFAULTS[chosen])
    for key in LAYER_KEYS:  # builders list all layers, so limit their number first
        if keys.get(key) is not None and keys.whole(key) > MAX_LAYERS:
            raise keys.fail(f"{key} {keys.whole(key):,}: at most {MAX_LAYERS:,} layers are planned")
    try:
        fields = {**_shared(keys, name), **TYPES[chosen](keys)}
        tied = keys.flag("tie_word_embeddings", default=chosen in TIED)
        unread = tuple(_shown(key, config[key]) for key in keys.unread())
        return Decoder.model_validate({**fields, "tied_embedding": tied, "unread_keys": unread})
    except ValidationError as error:
        details = "; ".join(
            ": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, "))))
            for one in error.errors()
        )
        raise keys.fail(details) from None


def _read_as_key(chosen: str) -> str:
    """Return how to have a file read as another type, in words that hold for every command."""
    return f"add the key '{READ_AS}: {chosen}' to the file; a look first: scaleacross show workload FILE --as {chosen}"


def _require_language_model(classes: object, chosen: str) -> None:
    """Raise InputError if the file's class has no output matrix over the vocabulary."""
    named = [str(one) for one in classes] if isinstance(classes, list | tuple) else []
    others = [one for one in named if not any(head in one for head in LANGUAGE_HEADS)]
    if others:
        raise InputError(
            f"architectures {', '.join(others)}: models with an output matrix over the vocabulary are read (…ForCausalLM), this "
            f"class has another head or none. To plan it with one, {_read_as_key(chosen)}"
        )


def _shared(keys: Keys, name: str) -> dict[str, Any]:
    """Fields that every type states in the same way."""
    known = [key for key in EPSILON_KEYS if keys.get(key) is not None]
    epsilon = next((keys.number(key) for key in sorted(known, key=lambda key: key not in keys.config)), None)
    hidden = {} if keys.get("n_embd") is not None else {"hidden_size": keys.need("hidden_size")}
    return {
        "name": name,
        **hidden,
        "vocabulary_size": keys.need("vocab_size"),
        "norm_epsilon": epsilon,
        "initializer_range": keys.number("initializer_range"),
        "published_quantization": _quantization(keys.get("quantization_config")),
    }


def _quantization(stated: Any) -> str | None:
    """Short text on ``quantization_config``; None without one."""
    if not isinstance(stated, Mapping):
        return None
    method = str(stated.get("quant_method", "unnamed method"))
    said = [f"{key} {stated[key]}" for key in ("fmt", "bits", "group_size", "weight_block_size") if key in stated]
    return ", ".join([method, *said])


def _shown(key: str, value: object) -> str:
    """A key, with its value if that is short."""
    text = str(value)
    return f"{key} {text}" if len(text) <= MAX_SHOWN else key


def _unknown(config: Config, chosen: object) -> str:
    """Message for a type that is not read.

    It names the supported type with the fewest unread keys, and those keys.
    """
    supported = f"supported: {', '.join(TYPES)}"
    if isinstance(chosen, str) and chosen in NOT_DESCRIBED:
        return f"model_type {chosen!r} is not read: its layers have {NOT_DESCRIBED[chosen]}, which no kind of layer describes"
    if not isinstance(chosen, str):
        return f"model_type {chosen!r} is not read; {supported}"
    readings = {one: found for one in TYPES if (found := _read_as(config, one)) is not None}
    if not readings:
        return f"model_type {chosen!r} is not read; {supported}"
    nearest = min(readings, key=lambda one: len(readings[one].unread_keys))
    read = readings[nearest]
    return (
        f"model_type {chosen!r} is not read; {supported}. Keys do not say all that its class computes (gates, norms, biases). "
        f"Read as {nearest}, it has {read.profile().total_parameters:,} parameters, and its keys leave out: "
        f"{', '.join(read.unread_keys) or 'none'}. If that is the published count and the layers are the same, take it so: "
        f"{_read_as_key(nearest)}"
    )


def _read_as(config: Config, model_type: str) -> Decoder | None:
    """Result of reading ``config`` as ``model_type``; None if that fails."""
    try:
        return from_hf_config(config, "model", read_as=model_type)
    except InputError:
        return None
