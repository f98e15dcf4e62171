"""The verbs validate and cross_check: predictions held against what others measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scaleacross.validation.crosscheck import CrossCheck
from scaleacross.validation.crosscheck import cross_check as validation_cross_check
from scaleacross.validation.runs import Run, read_runs
from scaleacross.validation.score import Validation, validate_runs


def validate(runs: str | Path | Sequence[Run]) -> Validation:
    """Predict measured training runs without looking at what was measured, then compare.

    Args:
        runs: a CSV file (columns as in ``validation.runs.Run``), or its rows.

    Raises:
        InputError: the file cannot be read, or none of its rows can be expressed.
    """
    return validate_runs(read_runs(runs) if isinstance(runs, str | Path) else runs)


def cross_check(validation: Validation) -> CrossCheck:
    """Errors with parameters refitted without each row's model, and without its source (about a minute per 400 rows)."""
    return validation_cross_check(validation)
