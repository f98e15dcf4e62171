"""Recomputation policies: nothing, element-wise results, whole layers, some of the layers, or named modules.

The modules are those of Megatron-Core's selective recomputation (megatron/core/transformer/transformer_config.py). A
policy of several modules is written with plus signs, in the order of MODULES. ``full:n/d`` reruns n of d layers of
every model chunk like ``full`` and keeps everything of the others. It is Megatron-LM's method block, and every d-th
layer where n is 1. Under ``per_stage`` every pipeline stage has one of these policies, chosen by its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import gcd
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, WithJsonSchema

from scaleacross.spec.framework import KeptBy

Module = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]
MODULES: Final[tuple[Module, ...]] = get_args(Module)
INSIDE_MOE: Final[frozenset[Module]] = frozenset({"moe_act", "shared_experts"})
"""Modules inside ``moe``, which recomputes them anyway."""

PLAIN: Final = ("none", "selective", "full")
"""Policies that every model has: nothing, norms and activation products, whole layers."""


def _sets() -> tuple[tuple[Module, ...], ...]:
    every = (chosen for size in range(1, len(MODULES) + 1) for chosen in combinations(MODULES, size))
    return tuple(chosen for chosen in every if "moe" not in chosen or not INSIDE_MOE & set(chosen))


MODULE_SETS: Final[tuple[tuple[Module, ...], ...]] = _sets()
"""Sets of modules that a policy may name together."""
MOST_LAYERS: Final = 16
"""Largest d of ``full:n/d``."""
PARTS: Final[dict[str, Fraction]] = {
    f"full:{n}/{d}": Fraction(n, d) for d in range(2, MOST_LAYERS + 1) for n in range(1, d) if gcd(n, d) == 1
}
"""Policies that rerun some of the layers -> share of every chunk's layers that they rerun."""
BY_STAGE: Final = "per_stage"
"""Every pipeline stage reruns as few of its layers whole as its memory allows.

A decision states the resulting policy of each stage.
"""
OF_STAGES: Final = frozenset({"none", "full", *PARTS})
"""Policies that a single stage may have under BY_STAGE."""
RECOMPUTES: Final[tuple[str, ...]] = (*PLAIN, *("+".join(chosen) for chosen in MODULE_SETS), *PARTS, BY_STAGE)
MASKS: Final[tuple[int, ...]] = (
    *(0 for _ in PLAIN),
    *(sum(1 << MODULES.index(module) for module in chosen) for chosen in MODULE_SETS),
    *(0 for _ in PARTS),
    0,
)
"""Modules of every policy as a bit mask, in the order of RECOMPUTES; bit i is MODULES[i]."""


def modules_of(policy: str) -> tuple[Module, ...]:
    """Modules that ``policy`` names; empty for policies of PLAIN, PARTS and BY_STAGE."""
    return (
        ()
        if policy in PLAIN or policy in PARTS or policy == BY_STAGE
        else MODULE_SETS[RECOMPUTES.index(policy) - len(PLAIN)]
    )


def rerun_share(policy: str) -> float:
    """Share of every chunk's layers that ``policy`` reruns whole; 0 for BY_STAGE, the least that a stage may rerun."""
    return 1.0 if policy == "full" else float(PARTS.get(policy, 0))


def rerun_period(policy: str) -> int:
    """Least number of layers of which ``policy`` reruns a whole number: d of ``full:n/d``, else 1."""
    return PARTS[policy].denominator if policy in PARTS else 1


def of_rerun_layer(policy: str) -> str:
    """Policy of a layer that is not kept whole; ``none`` for BY_STAGE, where the layers are not chosen yet."""
    return {BY_STAGE: "none"}.get(policy, "full" if policy in PARTS else policy)


def policy_on(rank: int, policy: str, of_stages: Sequence[str] | None) -> str:
    """Policy of one pipeline rank: its own from ``of_stages`` if given, else the decision's ``policy``."""
    return policy if of_stages is None else of_stages[rank]


def policy_of_share(rerun: int, layers: int) -> str | None:
    """Policy of OF_STAGES that reruns ``rerun`` of a chunk's ``layers``.

    The result is None if d of the reduced fraction exceeds MOST_LAYERS.
    """
    if rerun in (0, layers):
        return "full" if rerun else "none"
    share = Fraction(rerun, layers)
    return f"full:{share.numerator}/{share.denominator}" if share.denominator <= MOST_LAYERS else None


def tokens_again(policy: str) -> float:
    """Extra runs of experts' dispatch and combine in the backward pass, mean over layers (0 to 1)."""
    return 1.0 if "moe" in modules_of(policy) else rerun_share(policy)


def regathers_keys(policy: str, by: KeptBy) -> bool:
    """Whether a backward pass gathers the keys and values of its attention again.

    Transformer Engine always does. Autograd does if checkpointing by operator keeps the result of attention but not its
    inputs.
    """
    return by == "megatron" or policy == "selective"


def repeats_tokens(policy: str) -> bool:
    """Whether experts' dispatch and combine run again in any layer's backward pass."""
    return tokens_again(policy) > 0


def spelled(value: str) -> str:
    """Return a policy in the spelling of RECOMPUTES.

    Raises:
        ValueError: no such policy.
    """
    if value in RECOMPUTES:
        return value
    words = [word.strip() for word in value.split("+")]
    if value.startswith("full:"):
        raise ValueError(
            f"'{value}' is no share of a chunk's layers: full:n/d, n below d, d up to {MOST_LAYERS}, no common divisor"
        )
    known = ", ".join((*PLAIN, "full:n/d", BY_STAGE, *MODULES))
    if unknown := [word for word in words if word not in MODULES]:
        if len(words) > 1 and unknown[0] in PLAIN:
            raise ValueError(f"'{unknown[0]}' stands alone; modules are joined by +: {', '.join(MODULES)}")
        raise ValueError(f"'{unknown[0]}' is no recompute policy: {known}, or modules joined by +")
    inside = sorted(INSIDE_MOE & set(words))
    if "moe" in words and inside:
        raise ValueError(f"moe computes {' and '.join(inside)} again already: name moe alone, or without it")
    return "+".join(module for module in MODULES if module in words)


_NAMES: Final = "|".join(MODULES)
_PATTERN: Final = rf"full:[0-9]+/[0-9]+|({_NAMES})( *\+ *({_NAMES}))*"

Recompute = Annotated[
    str,
    AfterValidator(spelled),
    WithJsonSchema({"type": "string", "pattern": f"^({'|'.join((*PLAIN, BY_STAGE))}|{_PATTERN})$"}),
]
"""One of RECOMPUTES."""

EVERY: Final = "modules"
"""Value of a job's ``recompute`` that allows every set of modules that its model has."""

AllowedRecompute = Annotated[
    str,
    AfterValidator(lambda value: value if value == EVERY else spelled(value)),
    WithJsonSchema({"type": "string", "pattern": f"^({'|'.join((*PLAIN, EVERY, BY_STAGE))}|{_PATTERN})$"}),
]
"""One of RECOMPUTES, or EVERY."""
