"""Step time of the settings that are run today, and the gain of each change to them."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from scaleacross.spec.base import Spec
from scaleacross.spec.plan import Plan

OF_SETTINGS: Final = "of the settings: "
"""Prefix of notes about framework settings that the plan does not express."""


class Change(Spec):
    """One difference between settings and plan, applied alone; all other settings stay as they are today."""

    what: str = Field(
        description="what is changed: degrees, schedule, micro-batch, recompute, shard, layers, placement, …"
    )
    before: str
    after: str
    step_s: float | None = Field(description="step time with this change alone; None: it cannot be made alone")
    saved_s: float | None = Field(description="of the step, against the present settings; None as above")
    fits: bool = Field(default=True, description="whether memory holds it")
    reason: str = Field(default="", description="why it cannot be made alone, or what does not fit")


class Improvement(Spec):
    """Result of ``plan --improve``: present settings, plan, and the changes that lead from one to the other."""

    framework: str
    present: Plan = Field(description="the settings as they are run, evaluated")
    planned: Plan = Field(description="all changes together")
    changes: tuple[Change, ...] = Field(
        description="each alone, largest gain first; those that cannot be made alone last"
    )

    @property
    def saved_s(self) -> float:
        """Seconds per step that all changes save together."""
        return self.present.cost.step_s - self.planned.cost.step_s
