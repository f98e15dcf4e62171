"""All measured runs, where the data file is at hand: the errors that docs/accuracy.md states, as limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scaleacross.validation.runs import read_runs
from scaleacross.validation.score import Validation, validate_runs

FOLDER = Path(os.environ.get("SCALEACROSS_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
FILE = FOLDER / "measured_runs.csv"

pytestmark = pytest.mark.skipif(
    not FILE.is_file(), reason=f"no {FILE.name}: set SCALEACROSS_DATA to the folder that holds it"
)


@pytest.fixture(scope="module")
def validation() -> Validation:
    return validate_runs(read_runs(FILE))


def test_few_rows_are_skipped(validation: Validation) -> None:
    meant = [run for run, _ in validation.skipped if not run.exclude_from_fit]
    assert len(meant) <= 0.1 * (len(meant) + len(validation.scored))


def test_errors_stay_within_what_is_stated(validation: Validation) -> None:
    ours, baseline = validation.overall.ours, validation.overall.baseline
    assert ours.median_abs <= 0.06
    assert abs(ours.bias) <= 0.025
    assert ours.median_abs < baseline.median_abs
    assert ours.mean_abs < baseline.mean_abs


def test_configurations_of_one_model_are_ranked(validation: Validation) -> None:
    assert len(validation.rankings) >= 3
    assert validation.overall.kendall >= 0.7
