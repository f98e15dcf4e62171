"""The verbs behind the public door."""

from __future__ import annotations

from scaleacross.api.accuracy import cross_check, score_files, validate
from scaleacross.api.calibration import calibrate
from scaleacross.api.collective import collective
from scaleacross.api.comparison import compare
from scaleacross.api.evaluation import evaluate
from scaleacross.api.explaining import explain
from scaleacross.api.files import emit, verify
from scaleacross.api.frontier import Pareto, ParetoPoint, pareto
from scaleacross.api.planning import plan
    "validate",
    "verify",
]

__all__ = [
    "calibrate",
    "collective",
    "compare",
    "cross_check",
    "emit",
    "evaluate",
    "explain",
    "pareto",
    "Pareto",
    "ParetoPoint",
    "plan",
    "score_files",
    "validate",
    "verify",
]
