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
    from scaleacross.api import Pareto as Pareto
    from scaleacross.api import ParetoPoint as ParetoPoint
    from scaleacross.api import Reproduction as Reproduction
    from scaleacross.api import SweepResult as SweepResult
    from scaleacross.api import Synthesized as Synthesized
    from scaleacross.api import calibrate as calibrate
    from scaleacross.api import collective as collective
    from scaleacross.api import compare as compare
    from scaleacross.api import compare_recommendation as compare_recommendation
    from scaleacross.api import cross_check as cross_check
    from scaleacross.api import diagnose as diagnose
    from scaleacross.api import emit as emit
    from scaleacross.api import evaluate as evaluate
    from scaleacross.api import evaluate_recommendation as evaluate_recommendation
    from scaleacross.api import evaluate_settings as evaluate_settings
    from scaleacross.api import execution_trace as execution_trace
    from scaleacross.api import explain as explain
    from scaleacross.api import explain_recommendation as explain_recommendation
    from scaleacross.api import extensions as extensions
    from scaleacross.api import improve_settings as improve_settings
    from scaleacross.api import leave_sources_out as leave_sources_out
    from scaleacross.api import measured_goodput as measured_goodput
    from scaleacross.api import pareto as pareto
    from scaleacross.api import plan as plan
    from scaleacross.api import plan_inference as plan_inference
    from scaleacross.api import plan_recommendation as plan_recommendation
    from scaleacross.api import refine_finalists as refine_finalists
    from scaleacross.api import refine_schedule as refine_schedule
    from scaleacross.api import reproduce as reproduce
    from scaleacross.api import schedule as schedule
    from scaleacross.api import schedule_of_plan as schedule_of_plan
    from scaleacross.api import score_files as score_files
    from scaleacross.api import simulate as simulate
    from scaleacross.api import simulate_recommendation as simulate_recommendation
    from scaleacross.api import summarise as summarise
    from scaleacross.api import sweep as sweep
    from scaleacross.api import synthesize as synthesize
    from scaleacross.api import validate as validate
    from scaleacross.api import verified_plan as verified_plan
    from scaleacross.api import verify as verify
    from scaleacross.api import verify_recommendation as verify_recommendation
    from scaleacross.catalogue import load_accelerator as load_accelerator
    from scaleacross.catalogue import load_graph as load_graph
    from scaleacross.catalogue import load_job as load_job
    from scaleacross.catalogue import load_network as load_network
    from scaleacross.catalogue import load_plan as load_plan
    from scaleacross.catalogue import load_recommendation_plan as load_recommendation_plan
    from scaleacross.catalogue import load_topology as load_topology
    from scaleacross.catalogue import load_workload as load_workload
    from scaleacross.errors import EmitError as EmitError
    from scaleacross.errors import InfeasibleError as InfeasibleError
    from scaleacross.errors import InputError as InputError
    from scaleacross.errors import ScaleAcrossError as ScaleAcrossError
    from scaleacross.errors import TimeLimitError as TimeLimitError
    from scaleacross.errors import VerificationError as VerificationError
    from scaleacross.spec.comparison import Comparison as Comparison
    from scaleacross.spec.job import Job as Job
    from scaleacross.spec.parallelism import Degrees as Degrees
    from scaleacross.spec.parallelism import PipelineChoice as PipelineChoice
    from scaleacross.spec.placement import Placement as Placement
    from scaleacross.spec.plan import Decision as Decision
    from scaleacross.spec.plan import Plan as Plan
    from scaleacross.spec.simulation import SimulatedStep as SimulatedStep
    from scaleacross.spec.topology import Topology as Topology
    from scaleacross.spec.verification import Verification as Verification

__version__: Final = "0.2.0"

_HOME: Final = {
    "scaleacross.api": tuple(api.__all__),
    "scaleacross.catalogue": (
        "load_accelerator",
        "load_graph",
        "load_job",
        "load_network",
        "load_plan",
        "load_recommendation_plan",
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


__all__ = ["__version__", *(name for names in _HOME.values() for name in names)]  # noqa: PLE0604
__getattr__ = loaded_from(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
