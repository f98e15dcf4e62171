"""The environment that every launcher gives the processes of a plan: one list, whatever starts them."""

from __future__ import annotations

from scaleacross.emitters import nccl, recovery
from scaleacross.spec.launch import EnvVariable
from scaleacross.spec.plan import Plan


def process_settings(plan: Plan) -> tuple[EnvVariable, ...]:
    """NCCL's variables of the plan and, where it knows how often what fails, those of recovery, each with its reason."""
    return (*nccl.environment(plan), *recovery.environment(plan))
