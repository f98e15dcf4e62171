"""Load the constants of step-time errors: ``configs/standard/step_errors.yaml``, or a user's own fit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from scaleacross.catalogue.find import config_folders
from scaleacross.catalogue.validation import validate
from scaleacross.catalogue.yaml_source import read_file
from scaleacross.spec.step_errors import StepErrors

ERRORS_FILE: Final = Path("standard") / "step_errors.yaml"


def step_errors() -> StepErrors:
    """Return the constants from the first catalogue folder that has them: the user's, then the bundled one."""
    return _read(next(path for folder in config_folders() if (path := folder / ERRORS_FILE).is_file()))


def read_step_errors(path: Path) -> StepErrors:
    """Return the constants in a file. Raises InputError."""
    return validate(StepErrors, read_file(path))


@cache
def _read(path: Path) -> StepErrors:
    return read_step_errors(path)
