"""What a plan's accelerators run collectives on, which decides whether settings of NCCL mean anything to them."""

from __future__ import annotations

from scaleacross.emitters.rank_order import plan_topology
from scaleacross.errors import EmitError
from scaleacross.spec.accelerator import DEVICE_RESOURCES, Accelerator
from scaleacross.spec.plan import Plan


def reads_nccl(plan: Plan) -> bool:
    """Return whether the plan's accelerators run NCCL, or RCCL, which reads the same variables."""
    return _accelerator(plan).collective_library != "hccl"


def require_nccl(plan: Plan, target: str) -> None:
    """Raise EmitError where a target writes settings of NCCL and the plan's accelerators read none."""
    if not reads_nccl(plan):
        own = _accelerator(plan)
        raise EmitError(
            f"target {target} is written for NCCL and RCCL, and {own.name} runs {own.collective_library.upper()}: write launch, "
            "torchrun, kubernetes or hostfiles, and start a program that numbers its ranks so"
        )


def device_resource(plan: Plan) -> str:
    """Return the resource by which Kubernetes counts the plan's accelerators."""
    return DEVICE_RESOURCES[_accelerator(plan).collective_library]


def _accelerator(plan: Plan) -> Accelerator:
    """Return the accelerator of the first building used: all of a plan have one library (``solvers.pools``, V1)."""
    return plan_topology(plan).building(plan.placement.fill[0].building).accelerator
