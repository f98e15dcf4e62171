"""What the first lines of a report say beyond the plan itself: what the step answers to, and what tokens cost."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from scaleacross.spec.base import Spec
from scaleacross.spec.explanation import Sensitivity


class TokenCost(Spec):
    """What a million tokens spend; useful tokens where the plan states its goodput."""

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
    """What a million tokens cost, in the topology's currency and in kWh, as columns of a table; None where it is not known."""
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
