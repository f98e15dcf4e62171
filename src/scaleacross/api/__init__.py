"""The verbs behind the public door, each loaded on first use: a replay needs no solver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scaleacross.lazy import loaded_from

if TYPE_CHECKING:
    from scaleacross.api.accuracy import (
        cross_check,
        leave_sources_out,
        score_files,
        validate,
    )
    from scaleacross.api.calibration import calibrate
    from scaleacross.api.collective_study import collective
    from scaleacross.api.comparison import compare
    from scaleacross.api.diagnosing import diagnose
    from scaleacross.api.evaluation import evaluate
    from scaleacross.api.explaining import explain
    from scaleacross.api.extending import extensions
    from scaleacross.api.files import emit, verified_plan, verify
    from scaleacross.api.frontier import Pareto, ParetoPoint, pareto
    from scaleacross.api.improving import improve_settings
    from scaleacross.api.inference import plan_inference
    from scaleacross.api.planning import plan
    from scaleacross.api.reading import evaluate_settings
    from scaleacross.api.recommendation import evaluate_recommendation, plan_recommendation
    from scaleacross.api.recommendation_study import (
        compare_recommendation,
        explain_recommendation,
        simulate_recommendation,
    )
    from scaleacross.api.refining import refine_finalists, refine_schedule
    from scaleacross.api.replica_runs import measured_goodput
    from scaleacross.api.reproducing import Reproduction, reproduce
    from scaleacross.api.scheduling import schedule, schedule_of_plan
    from scaleacross.api.simulating import execution_trace, simulate
    from scaleacross.api.summarising import summarise
    from scaleacross.api.sweeping import SweepResult, sweep
    from scaleacross.api.synthesis import Synthesized, synthesize
    from scaleacross.verification.embeddings import verify_recommendation

__all__ = [
    "Pareto",
    "ParetoPoint",
    "Reproduction",
    "SweepResult",
    "Synthesized",
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
    "scaleacross.api.files": ("emit", "verified_plan", "verify"),
    "scaleacross.api.frontier": ("Pareto", "ParetoPoint", "pareto"),
    "scaleacross.api.planning": ("plan",),
    "scaleacross.api.inference": ("plan_inference",),
    "scaleacross.verification.embeddings": ("verify_recommendation",),
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

__getattr__ = loaded_from(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
