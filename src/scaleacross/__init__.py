"""Placement and scheduling optimizer for AI training across buildings and regions.

    >>> import scaleacross as sa
    >>> plan = sa.plan("configs/jobs/llama3_405b_two_buildings.yaml")
    >>> sa.emit(plan, "torchrun", "build/")

Names are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scaleacross import api
from scaleacross.lazy import loaded_from

if TYPE_CHECKING:
    from scaleacross.api import (
        Pareto,
        ParetoPoint,
        Reproduction,
        SweepResult,
        Synthesized,
        calibrate,
        collective,
        compare,
        compare_recommendation,
        cross_check,
        diagnose,
        emit,
        evaluate,
        evaluate_recommendation,
        evaluate_settings,
        execution_trace,
        explain,
        explain_recommendation,
        extensions,
        improve_settings,
        leave_sources_out,
        measured_goodput,
        pareto,
        plan,
        plan_inference,
        plan_recommendation,
        refine_finalists,
        refine_schedule,
        reproduce,
        schedule,
        schedule_of_plan,
        score_files,
        simulate,
        simulate_recommendation,
        summarise,
        sweep,
        synthesize,
        validate,
        verified_plan,
        verify,
        verify_recommendation,
    )
    from scaleacross.catalogue import (
        load_accelerator,
        load_graph,
        load_job,
        load_network,
        load_plan,
        load_topology,
        load_workload,
    )
    from scaleacross.errors import (
        EmitError,
        InfeasibleError,
        InputError,
        ScaleAcrossError,
        TimeLimitError,
        VerificationError,
    )
    from scaleacross.spec.comparison import Comparison
    from scaleacross.spec.job import Job
    from scaleacross.spec.parallelism import Degrees, PipelineChoice
    from scaleacross.spec.placement import Placement
    from scaleacross.spec.plan import Decision, Plan
    from scaleacross.spec.simulation import SimulatedStep
    from scaleacross.spec.topology import Topology
    from scaleacross.spec.verification import Verification

__version__: Final = "0.2.0"

__all__ = [
    "Comparison",
    "Decision",
    "Degrees",
    "EmitError",
    "InfeasibleError",
    "InputError",
    "Job",
    "Pareto",
    "ParetoPoint",
    "PipelineChoice",
    "Placement",
    "Plan",
    "Reproduction",
    "ScaleAcrossError",
    "SimulatedStep",
    "SweepResult",
    "Synthesized",
    "TimeLimitError",
    "Topology",
    "Verification",
    "VerificationError",
    "__version__",
    "calibrate",
    "collective",
    "compare",
    "compare_recommendation",
    "cross_check",
    "diagnose",
    "emit",
    "evaluate",
    "evaluate_recommendation",
    "evaluate_settings",
    "execution_trace",
    "explain",
    "explain_recommendation",
    "extensions",
    "improve_settings",
    "leave_sources_out",
    "load_accelerator",
    "load_graph",
    "load_job",
    "load_network",
    "load_plan",
    "load_topology",
    "load_workload",
    "measured_goodput",
    "pareto",
    "plan",
    "plan_inference",
    "plan_recommendation",
    "refine_finalists",
    "refine_schedule",
    "reproduce",
    "schedule",
    "schedule_of_plan",
    "score_files",
    "simulate",
    "simulate_recommendation",
    "summarise",
    "sweep",
    "synthesize",
    "validate",
    "verified_plan",
    "verify",
    "verify_recommendation",
]

_HOME: Final = {
    "scaleacross.api": tuple(api.__all__),
    "scaleacross.catalogue": (
        "load_accelerator",
        "load_graph",
        "load_job",
        "load_network",
        "load_plan",
        "load_topology",
        "load_workload",
    ),
    "scaleacross.errors": (
        "EmitError",
        "InfeasibleError",
        "InputError",
        "ScaleAcrossError",
        "TimeLimitError",
        "VerificationError",
    ),
    "scaleacross.spec.comparison": ("Comparison",),
    "scaleacross.spec.job": ("Job",),
    "scaleacross.spec.parallelism": ("Degrees", "PipelineChoice"),
    "scaleacross.spec.placement": ("Placement",),
    "scaleacross.spec.plan": ("Decision", "Plan"),
    "scaleacross.spec.simulation": ("SimulatedStep",),
    "scaleacross.spec.topology": ("Topology",),
    "scaleacross.spec.verification": ("Verification",),
}


__getattr__ = loaded_from(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
