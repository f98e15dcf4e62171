"""The launch file of a job: ``SCALEACROSS_LAUNCH`` names it, ``scaleacross run`` sets it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from scaleacross.errors import InputError
from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.policy import Policy, from_launch
from scaleacross.spec.launch import LaunchConfig

LAUNCH_VARIABLE: Final = "SCALEACROSS_LAUNCH"


def read_launch(path: str | Path) -> LaunchConfig:
    """The launch file at ``path``. Raises InputError where there is none, or it is none."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"launch file {path}: {error.strerror}. `scaleacross emit PLAN --to launch -o DIR` writes one"
        ) from None
    try:
        return LaunchConfig.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"launch file {path}: {where}: {first['msg']}") from None


def launch_policy(ranks: Sequence[int], settings: LinkSettings) -> Policy:
    """What the job's launch file says about the group of ``ranks``; without a file everything is left to the transport."""
    path = os.environ.get(LAUNCH_VARIABLE)
    if not path:
        return Policy(
            lambda operation, num_bytes: None, lambda rank, peer: settings, f"a plan ({LAUNCH_VARIABLE} is not set)"
        )
    return from_launch(_read_once(path), ranks, settings)


@lru_cache(maxsize=4)
def _read_once(path: str) -> LaunchConfig:
    return read_launch(path)
