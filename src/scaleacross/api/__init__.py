"""The verbs behind the public door."""

from __future__ import annotations

from scaleacross.api.accuracy import cross_check, validate
from scaleacross.api.collective import collective
from scaleacross.api.evaluation import evaluate
from scaleacross.api.files import emit, verify
from scaleacross.api.planning import plan
from scaleacross.api.scheduling import schedule, schedule_of_plan

__all__ = [
    "collective",
    "cross_check",
    "emit",
    "evaluate",
    "plan",
    "schedule",
    "schedule_of_plan",
    "validate",
    "verify",
]
