"""Where a flavor of torchtitan 0.3.0 is another model than the workload says, though every shape is the same.

Values read in torchtitan 0.3.0 (PyPI): models/llama3/__init__.py, qwen3/__init__.py, deepseek_v3/__init__.py; RMSNorm's default
epsilon is in models/common/nn_modules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.identity import Rope
from scaleacross.workloads.layer_kinds import Attention, Latent


@dataclass(frozen=True)
class FlavorIdentity:
    """Rotary base and scaling, norm epsilon, and of experts: score function, groups and factor of the weights."""

    base: float
    scaling: Literal["llama3", "yarn"] | None
    epsilon: float
    score_function: Literal["softmax", "sigmoid"] = "softmax"
    num_groups: int = 1
    route_scale: float = 1.0


_LLAMA3: Final = FlavorIdentity(500_000, "llama3", 1e-5)
_QWEN3: Final = FlavorIdentity(1_000_000, None, 1e-6)
IDENTITIES: Final[Mapping[tuple[str, str], FlavorIdentity]] = {
    **{("llama3", name): _LLAMA3 for name in ("1B", "3B", "8B", "70B", "405B")},
    **{("qwen3", name): _QWEN3 for name in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B")},
    ("qwen3", "235B-A22B"): FlavorIdentity(5_000_000, None, 1e-6),
    ("deepseek_v3", "16B"): FlavorIdentity(10_000, "yarn", 1e-5),
    ("deepseek_v3", "236B"): FlavorIdentity(10_000, "yarn", 1e-5, "softmax", 8, 16.0),
    ("deepseek_v3", "671B"): FlavorIdentity(10_000, "yarn", 1e-5, "sigmoid", 8, 2.5),
}


def identity_notes(decoder: Decoder, package: str, flavor: str) -> list[str]:
    """One sentence per value that the workload states and the flavor has otherwise."""
    found = IDENTITIES.get((package, flavor))
    if found is None:
        return []
    return [
        f"NOT the workload's model: {what} is {stated} there and {built} in {package} {flavor}; change it in the flavor."
        for what, stated, built in _pairs(decoder, found)
        if stated != built
    ]


def _pairs(decoder: Decoder, found: FlavorIdentity) -> Iterator[tuple[str, object, object]]:
    """(what, stated by the workload, built by the flavor) of every value that the workload states."""
    mixers = [kind.mixer for kind in decoder.kinds.values() if isinstance(kind.mixer, Attention | Latent)]
    rope = next((mixer.rope for mixer in mixers if isinstance(mixer.rope, Rope)), None)
    if rope is not None:
        yield "the rotary base", f"{rope.base:.0f}", f"{found.base:.0f}"
        yield "the rotary scaling", rope.scaling.kind if rope.scaling else None, found.scaling
    if decoder.norm_epsilon is not None:
        yield "the norm epsilon", decoder.norm_epsilon, found.epsilon
    router = next((experts.router for experts in decoder.experts() if experts.router), None)
    if router is not None:
        yield "the router's score function", router.score_function, found.score_function
        yield "the number of expert groups", router.num_groups, found.num_groups
        yield "the factor on routed experts", router.scaling, found.route_scale
