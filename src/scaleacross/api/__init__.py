"""The verbs behind the public door."""

from __future__ import annotations

from scaleacross.api.accuracy import cross_check, score_files, validate
from scaleacross.api.calibration import calibrate
from scaleacross.api.collective import collective
from scaleacross.api.evaluation import evaluate
from scaleacross.api.files import emit, verify
from scaleacross.api.planning import plan

__all__ = ["calibrate", "collective", "cross_check", "emit", "evaluate", "plan", "score_files", "validate", "verify"]
