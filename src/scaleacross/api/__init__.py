"""The public functions of the package, each loaded on first use, so that a simulation imports no solver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scaleacross.lazy import loaded_from

if TYPE_CHECKING:
    from scaleacross.api.accuracy import cross_check as cross_check
    from scaleacross.api.accuracy import leave_sources_out as leave_sources_out
    from scaleacross.api.accuracy import score_files as score_files
    from scaleacross.api.accuracy import validate as validate
    from scaleacross.api.calibration import calibrate as calibrate
    from scaleacross.api.collective_study import collective as collective
    from scaleacross.api.comparison import compare as compare
    from scaleacross.api.diagnosing import diagnose as diagnose
    from scaleacross.api.evaluation import evaluate as evaluate
    from scaleacross.api.explaining import explain as explain
    from scaleacross.api.extending import extensions as extensions
    from scaleacross.api.files import emit as emit
    from scaleacross.api.files import verified_plan as verified_plan
    from scaleacross.api.files import verify as verify
    from scaleacross.api.files import verify_recommendation as verify_recommendation
    from scaleacross.api.frontier import Pareto as Pareto
    from scaleacross.api.frontier import ParetoPoint as ParetoPoint
    from scaleacross.api.frontier import pareto as pareto
    from scaleacross.api.improving import improve_settings as improve_settings
    from scaleacross.api.inference import plan_inference as plan_inference
    from scaleacross.api.planning import plan as plan
    from scaleacross.api.reading import evaluate_settings as evaluate_settings
    from scaleacross.api.recommendation import evaluate_recommendation as evaluate_recommendation
    from scaleacross.api.recommendation import plan_recommendation as plan_recommendation
    from scaleacross.api.recommendation_study import compare_recommendation as compare_recommendation
    from scaleacross.api.recommendation_study import explain_recommendation as explain_recommendation
    from scaleacross.api.recommendation_study import simulate_recommendation as simulate_recommendation
    from scaleacross.api.refining import refine_finalists as refine_finalists
    from scaleacross.api.refining import refine_schedule as refine_schedule
    from scaleacross.api.replica_runs import measured_goodput as measured_goodput
    from scaleacross.api.reproducing import Reproduction as Reproduction
    from scaleacross.api.reproducing import reproduce as reproduce
    from scaleacross.api.scheduling import schedule as schedule
    from scaleacross.api.scheduling import schedule_of_plan as schedule_of_plan
    from scaleacross.api.simulating import execution_trace as execution_trace
    from scaleacross.api.simulating import simulate as simulate
    from scaleacross.api.summarising import summarise as summarise
    from scaleacross.api.sweeping import SweepResult as SweepResult
    from scaleacross.api.sweeping import sweep as sweep
    from scaleacross.api.synthesis import Synthesized as Synthesized
    from scaleacross.api.synthesis import synthesize as synthesize

_HOME: Final = {
    "scaleacross.api.accuracy": ("cross_check", "leave_sources_out", "score_files", "validate"),
    "scaleacross.api.calibration": ("calibrate",),
    "scaleacross.api.collective_study": ("collective",),
    "scaleacross.api.comparison": ("compare",),
    "scaleacross.api.diagnosing": ("diagnose",),
    "scaleacross.api.evaluation": ("evaluate",),
    "scaleacross.api.reading": ("evaluate_settings",),
    "scaleacross.api.explaining": ("explain",),
    "scaleacross.api.extending": ("extensions",),
    "scaleacross.api.improving": ("improve_settings",),
    "scaleacross.api.files": ("emit", "verified_plan", "verify", "verify_recommendation"),
    "scaleacross.api.frontier": ("Pareto", "ParetoPoint", "pareto"),
    "scaleacross.api.planning": ("plan",),
    "scaleacross.api.inference": ("plan_inference",),
    "scaleacross.api.recommendation": ("evaluate_recommendation", "plan_recommendation"),
    "scaleacross.api.recommendation_study": (
        "compare_recommendation",
        "explain_recommendation",
        "simulate_recommendation",
    ),
    "scaleacross.api.refining": ("refine_finalists", "refine_schedule"),
    "scaleacross.api.replica_runs": ("measured_goodput",),
    "scaleacross.api.reproducing": ("Reproduction", "reproduce"),
    "scaleacross.api.scheduling": ("schedule", "schedule_of_plan"),
    "scaleacross.api.simulating": ("execution_trace", "simulate"),
    "scaleacross.api.summarising": ("summarise",),
    "scaleacross.api.sweeping": ("SweepResult", "sweep"),
    "scaleacross.api.synthesis": ("Synthesized", "synthesize"),
}

__all__ = [name for names in _HOME.values() for name in names]
__getattr__ = loaded_from(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
