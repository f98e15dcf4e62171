"""The model's identity that the workload states, as values of torchtitan 0.3.0's configurations.

A flavor has its own values. For example, Qwen3 235B-A22B has a rotary base of 5 million, all of DeepSeek-V3 a norm
epsilon of 1e-5, its 236B a softmax scale of mscale 1 (DeepSeek-V2: 0.707). The emitted module replaces them by the
workload's. Names: torchtitan/models/common (nn_modules.py, rope.py, moe.py), deepseek_v3/model.py.
"""

from __future__ import annotations

from typing import Any

from scaleacross.errors import EmitError
from scaleacross.targets.torchtitan_models import ROPES, refused_scaling, rope_of
from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.identity import RopeScaling


def identity(decoder: Decoder, package: str) -> dict[str, dict[str, Any]]:
    """Return torchtitan class -> field of its Config -> the workload's value; unstated values are left out.

    Raises:
        EmitError: a rotary scaling that torchtitan 0.3.0 lacks.
    """
    out: dict[str, dict[str, Any]] = {}
    if decoder.norm_epsilon is not None:
        out["RMSNorm"] = {"eps": decoder.norm_epsilon}
    rope = rope_of(decoder)
    if rope is not None:
        if refused := refused_scaling(rope.scaling, package):
            raise EmitError(refused)
        out[ROPES[package]] = {"theta": rope.base, **_scaling(rope.scaling)}
        if package == "deepseek_v3" and rope.scaling is not None and rope.scaling.mscale_all_dim is not None:
            out["Attention"] = {"mscale": rope.scaling.mscale_all_dim}
    router = next((experts.router for experts in decoder.experts() if experts.router), None)
    if router is not None:
        grouped = router.num_groups > 1
        out["TokenChoiceTopKRouter"] = {
            "score_func": router.score_function,
            "route_norm": router.normalized,
            "route_scale": router.scaling,
            "num_expert_groups": router.num_groups if grouped else None,
            "num_limited_groups": router.group_top_k if grouped else None,
        }
    return out


def _scaling(scaling: RopeScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"scaling": "none"}
    stated: dict[str, Any]
    if scaling.kind == "llama3":
        stated = {
            "scaling_factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_positions,
        }
    else:
        stated = {
            "rope_factor": scaling.factor,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "original_seq_len": scaling.original_positions,
            "truncate": scaling.rounded,
        }
    name = "llama" if scaling.kind == "llama3" else "yarn"
    return {"scaling": name, **{field: value for field, value in stated.items() if value is not None}}
