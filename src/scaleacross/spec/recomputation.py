"""What a backward pass computes again instead of keeping it: nothing, element-wise results, whole layers, or named modules.

The modules are those of Megatron-Core's selective recomputation (megatron/core/transformer/transformer_config.py). A policy of
several is written with plus signs, in the order of MODULES.
"""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, WithJsonSchema

Module = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]
MODULES: Final[tuple[Module, ...]] = get_args(Module)
INSIDE_MOE: Final[frozenset[Module]] = frozenset({"moe_act", "shared_experts"})
"""Modules that ``moe`` computes again anyway."""

PLAIN: Final = ("none", "selective", "full")
"""Policies that every model has: nothing, norms and activation products, whole layers."""


def _sets() -> tuple[tuple[Module, ...], ...]:
    every = (chosen for size in range(1, len(MODULES) + 1) for chosen in combinations(MODULES, size))
    return tuple(chosen for chosen in every if "moe" not in chosen or not INSIDE_MOE & set(chosen))


MODULE_SETS: Final[tuple[tuple[Module, ...], ...]] = _sets()
"""Modules that a policy may name together."""
RECOMPUTES: Final[tuple[str, ...]] = (*PLAIN, *("+".join(chosen) for chosen in MODULE_SETS))
MASKS: Final[tuple[int, ...]] = (0,) * len(PLAIN) + tuple(
    sum(1 << MODULES.index(module) for module in chosen) for chosen in MODULE_SETS
)
"""Modules of every policy as bits, in the order of RECOMPUTES and of MODULES."""


def modules_of(policy: str) -> tuple[Module, ...]:
    """Modules that ``policy`` names; none for those of PLAIN."""
    return () if policy in PLAIN else MODULE_SETS[RECOMPUTES.index(policy) - len(PLAIN)]


def repeats_tokens(policy: str) -> bool:
    """Whether experts' dispatch and combine run once more in the backward pass."""
    return policy == "full" or "moe" in modules_of(policy)


def spelled(value: str) -> str:
    """A policy as RECOMPUTES spells it. Raises ValueError for what it has not."""
    if value in RECOMPUTES:
        return value
    words = [word.strip() for word in value.split("+")]
    known = ", ".join((*PLAIN, *MODULES))
    if unknown := [word for word in words if word not in MODULES]:
        if len(words) > 1 and unknown[0] in PLAIN:
            raise ValueError(f"'{unknown[0]}' stands alone; modules are joined by +: {', '.join(MODULES)}")
        raise ValueError(f"'{unknown[0]}' is no recompute policy: {known}, or modules joined by +")
    inside = sorted(INSIDE_MOE & set(words))
    if "moe" in words and inside:
        raise ValueError(f"moe computes {' and '.join(inside)} again already: name moe alone, or without it")
    return "+".join(module for module in MODULES if module in words)


_NAMES: Final = "|".join(MODULES)
_PATTERN: Final = rf"({_NAMES})( *\+ *({_NAMES}))*"

Recompute = Annotated[
    str,
    AfterValidator(spelled),
    WithJsonSchema({"type": "string", "pattern": f"^({'|'.join(PLAIN)}|{_PATTERN})$"}),
]
"""One of RECOMPUTES."""

EVERY: Final = "modules"
"""In a job: every set of modules that its model has."""

AllowedRecompute = Annotated[
    str,
    AfterValidator(lambda value: value if value == EVERY else spelled(value)),
    WithJsonSchema({"type": "string", "pattern": f"^({'|'.join((*PLAIN, EVERY))}|{_PATTERN})$"}),
]
"""One of RECOMPUTES, or EVERY."""
