"""The verbs behind the public door."""

from __future__ import annotations

from scaleacross.api.accuracy import cross_check, score_files, validate
from scaleacross.api.calibration import calibrate
from scaleacross.api.collective import collective
from scaleacross.api.comparison import compare
from scaleacross.api.diagnosing import diagnose
from scaleacross.api.evaluation import evaluate
from scaleacross.api.explaining import explain
from scaleacross.api.files import emit, verify
from scaleacross.api.frontier import Pareto, ParetoPoint, pareto
from scaleacross.api.planning import plan
from scaleacross.api.refining import refine_finalists, refine_schedule
from scaleacross.api.reproducing import Reproduction, reproduce
from scaleacross.api.scheduling import schedule, schedule_of_plan
from scaleacross.api.simulating import execution_trace, simulate
from scaleacross.api.sweeping import SweepResult, sweep
from scaleacross.api.synthesis import Synthesized, synthesize

__all__ = [
    "Pareto",
    "ParetoPoint",
    "Reproduction",
    "SweepResult",
    "Synthesized",
    "calibrate",
    "collective",
    "compare",
    "cross_check",
    "diagnose",
    "emit",
    "evaluate",
    "execution_trace",
    "explain",
    "pareto",
    "plan",
    "refine_finalists",
    "refine_schedule",
    "reproduce",
    "schedule",
    "schedule_of_plan",
    "score_files",
    "simulate",
    "sweep",
    "synthesize",
    "validate",
    "verify",
]
