"""Result of verifying a plan: the checks that it passed, and its simulated step time."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scaleacross.spec.base import Spec


class PassedCheck(Spec):
    """One check that a plan passed."""

    name: str = Field(description="V1 to V11, or deep")
    how: Literal["counted", "recomputed", "simulated"] = Field(
        description="counted: without the cost model; recomputed: by the cost model on counted groups; simulated: event by event"
    )
    what: str


class Verification(Spec):
    """Result for a plan that passed. A plan that fails raises ``VerificationError`` instead."""

    plan_name: str
    checks: tuple[PassedCheck, ...]
    step_s: float = Field(description="step time that the plan states")
    bound_s: float | None = Field(
        default=None,
        description="lower bound on the step time that any plan of its space states; None: nothing was searched",
    )
    simulated_step_s: float | None = Field(default=None, description="step time of the simulation; None: not simulated")

    @property
    def difference(self) -> float | None:
        """(stated − simulated) / simulated step time."""
        if self.simulated_step_s is None:
            return None
        return (self.step_s - self.simulated_step_s) / self.simulated_step_s
