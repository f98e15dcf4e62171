"""The verbs behind the public door."""

from __future__ import annotations

from scaleacross.api.accuracy import cross_check, validate
from scaleacross.api.collective import collective
from scaleacross.api.comparison import compare
from scaleacross.api.evaluation import evaluate
from scaleacross.api.files import emit, verify
from scaleacross.api.planning import plan

__all__ = ["collective", "compare", "cross_check", "emit", "evaluate", "plan", "validate", "verify"]
