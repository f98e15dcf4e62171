"""The environment that every launcher gives the processes of a plan."""

from __future__ import annotations

from scaleacross.emitters import nccl, recovery
from scaleacross.spec.launch import EnvVariable
from scaleacross.spec.plan import Plan


def process_settings(plan: Plan) -> tuple[EnvVariable, ...]:
    """Return the plan's NCCL variables and, where it states failure rates, those of recovery, each with its reason."""
    return (*nccl.environment(plan), *recovery.environment(plan))
