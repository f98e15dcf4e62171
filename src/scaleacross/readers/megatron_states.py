"""Bytes of gradients and optimizer states under Megatron-LM's precision-aware optimizer.

Source: core, optimizer/optimizer_config.py and distrib_optimizer.py (d98e8a64). The fp32 master of a bf16 parameter is
kept as the 16 bits that the parameter lacks (``store_param_remainders``, Transformer Engine 2.1 or later). It stays
whole where products are in 8 or 4 bit by a recipe other than delayed scaling, and under Megatron-FSDP. Gradients in
bf16 are accumulated and reduced in bf16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from scaleacross.errors import InputError
from scaleacross.targets.megatron_bytes import WHOLE_STATES

SWITCH: Final = "--use-precision-aware-optimizer"
_BYTES: Final = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
_KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "--main-grads-dtype": ("fp32", "bf16"),
    "--main-params-dtype": ("fp32", "fp16"),
    "--exp-avg-dtype": ("fp32", "fp16", "bf16", "fp8"),
    "--exp-avg-sq-dtype": ("fp32", "fp16", "bf16", "fp8"),
}


def state_bytes(found: Mapping[str, Sequence[str]], name: str) -> dict[str, float]:
    """Return the fields of the job's optimizer that the switch and its types state, without it those of fp32.

    An unknown optimizer has none.

    Raises:
        InputError: Megatron-LM does not accept a type, or accepts it only with the switch, or the combination is not
            modelled.
    """
    types = {option: (found.get(option) or ["fp32"])[0] for option in _KNOWN}
    for option, word in types.items():
        if word not in _KNOWN[option]:
            raise InputError(f"{name}: {option} {word}: one of {', '.join(_KNOWN[option])} is needed")
    narrow = [f"{option} {word}" for option, word in types.items() if word != "fp32"]
    optimizer = (found.get("--optimizer") or ["adam"])[0]
    whole = {"optimizer.state_bytes": WHOLE_STATES[optimizer]} if optimizer in WHOLE_STATES else {}
    if SWITCH not in found:
        if narrow:
            raise InputError(f"{name}: {narrow[0]} acts with {SWITCH} only: state both or none")
        return whole
    if "--optimizer-cpu-offload" in found:  # needs the switch, and keeps whole states
        if narrow:
            raise InputError(f"{name}: {narrow[0]} with --optimizer-cpu-offload is not modelled: states of fp32 are")
        return whole
    if optimizer != "adam":
        raise InputError(f"{name}: {SWITCH} works with --optimizer adam only: leave it out")
    moments = _BYTES[types["--exp-avg-dtype"]] + _BYTES[types["--exp-avg-sq-dtype"]]
    out = {"optimizer.state_bytes": _master(found, types, name) + moments}
    if types["--main-grads-dtype"] == "bf16":
        if "--accumulate-allreduce-grads-in-fp32" in found:
            raise InputError(f"{name}: --main-grads-dtype bf16 contradicts --accumulate-allreduce-grads-in-fp32")
        out["optimizer.gradient_bytes"] = 2.0
    return out


def _master(found: Mapping[str, Sequence[str]], types: Mapping[str, str], name: str) -> float:
    """Return bytes of the master weight per parameter."""
    if "--use-megatron-fsdp" in found:
        for option in ("--main-params-dtype", "--main-grads-dtype"):
            if types[option] != "fp32":
                raise InputError(f"{name}: {option} {types[option]} with --use-megatron-fsdp is not modelled: fp32 is")
        return 4.0
    narrow = (
        "--fp8-format" in found and found.get("--fp8-recipe", ["delayed"]) != ["delayed"]
    ) or "--fp4-format" in found
    if types["--main-params-dtype"] == "fp16":
        return 2.0
    return 4.0 if narrow or "--fp16" in found else 2.0
