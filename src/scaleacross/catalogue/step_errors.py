"""The constants of the error of step times: ``configs/standard/step_errors.yaml``, or one that a user has fitted."""

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
    """The constants of the first folder of catalogue entries that has them: the user's, then the bundled ones."""
    return _read(next(path for folder in config_folders() if (path := folder / ERRORS_FILE).is_file()))


def read_step_errors(path: Path) -> StepErrors:
    """The constants of a file. Raises InputError."""
    return validate(StepErrors, read_file(path))


@cache
def _read(path: Path) -> StepErrors:
    return read_step_errors(path)
