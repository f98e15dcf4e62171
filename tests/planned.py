"""Plans that several tests use, searched once per process."""

from __future__ import annotations

from functools import cache
from typing import Any

import scaleacross as sa
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan


def planned(job: Job, **limits: Any) -> Plan:
    """``sa.plan`` without alternatives."""
    return _planned(job.model_dump_json(exclude_none=True), **limits)


@cache
def _planned(job: str, **limits: Any) -> Plan:
    return sa.plan(Job.model_validate_json(job), alternatives=False, **limits)
