"""Figures of a report's first lines that the plan itself lacks: bottlenecks, and cost and energy of tokens."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from scaleacross.spec.base import Spec
from scaleacross.spec.explanation import Sensitivity


class TokenCost(Spec):
    """Cost or energy of a million tokens; of useful tokens if the plan states its goodput."""

    unit: str = Field(description="the topology's currency, or kWh")
    used: float = Field(
        description="the accelerators, buildings and links that the plan uses, and what is paid per byte between buildings"
    )
    owned: float | None = Field(
        default=None,
        description="every accelerator, building and link of the topology, idle ones too; None: energy, of those that run",
    )
    useful: bool = Field(description="per million useful tokens, under failures")


def cost_columns(money: TokenCost | None, energy: TokenCost | None) -> dict[str, Any]:
    """Cost of a million tokens in the topology's currency and energy in kWh, as table columns; None if unknown."""
    return {
        "currency": money.unit if money else None,
        "cost_per_million_tokens": money.used if money else None,
        "owned_cost_per_million_tokens": money.owned if money else None,
        "kwh_per_million_tokens": energy.used if energy else None,
    }


class PlanSummary(Spec):
    """Figures of a plan's first lines that the plan does not carry."""

    bottlenecks: tuple[Sensitivity, ...] = Field(
        description="figures of which more changes the step time, the largest change first"
    )
    money: TokenCost | None = Field(default=None, description="None: the topology states no prices")
    energy: TokenCost | None = Field(default=None, description="None: the topology states no power")
