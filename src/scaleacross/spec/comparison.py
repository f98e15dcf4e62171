"""Our plan compared with baselines; the step of each is simulated."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scaleacross.spec.base import Spec
from scaleacross.spec.parallelism import Axis
from scaleacross.spec.plan import Decision, Plan
from scaleacross.spec.step_errors import StepInterval


class BaselineResult(Spec):
    """One baseline: its decision and step time, or the reason why it has none."""

    name: str
    title: str
    source: str = Field(description="the publication or product whose rule it follows")
    decision: Decision | None
    reason: str = Field(default="", description="why there is no decision")
    step_s: float | None = Field(default=None, description="step time of its simulation, as ours")
    objective_value: float | None = Field(
        default=None, description="value of the job's objective, more is better; None where that is step time"
    )
    model_flop_per_s: float | None = Field(default=None, description="model FLOP per accelerator used and second")
    num_accelerators: int | None = Field(default=None, description="accelerators that it uses")
    across: tuple[Axis, ...] = Field(default=(), description="axes that cross buildings or regions")
    interval: StepInterval | None = Field(default=None, description="where its measured step time is expected")
    probability_ours_faster: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="that ours is measured faster: errors of two plans of one model on one cluster are correlated, so this is "
        "surer than the two intervals side by side",
    )
    speed_up: float | None = Field(default=None, description="its step time over ours")
    is_tie: bool = Field(default=False, description="the step times differ by no more than the tolerance")
    complete: bool = Field(default=True, description="no time limit cut its rule short")


class Comparison(Spec):
    """Our plan (``plan``) and the baselines (``rivals``), fastest first; those without a decision come last."""

    schema_version: Literal[1] = 1
    plan: Plan
    across: tuple[Axis, ...] = Field(description="axes of our plan that cross buildings or regions")
    tie_tolerance: float = Field(ge=0, description="relative difference of step times that counts as a tie")
    rivals: tuple[BaselineResult, ...]
    matched: str | None = Field(
        default=None, description="baseline whose decision our plan is: the search found nothing faster than it"
    )
