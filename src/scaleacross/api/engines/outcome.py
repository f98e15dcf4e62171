"""Records that engines return, and version checks before they send points to workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, Final

from scaleacross.errors import InputError

Record = dict[str, Any]
Task = Callable[[Any], Record]
OnDone = Callable[[int, Record], None]
FAILED: Final = "failed"
"""Status of a point that met an unexpected error; it is run again when the study is resumed."""


def failed(reason: str) -> Record:
    """The record of a point whose worker died or broke."""
    text = " ".join(reason.split())
    return {"status": FAILED, "reason": text, "figures": {}, "decision": None, "seconds": None}


def package_version() -> str:
    """Version of this package where it is called."""
    return version("scaleacross")


def check_versions(found: Mapping[str, str]) -> None:
    """Raise InputError when a worker (name -> version) runs another version, because its figures could differ."""
    here = package_version()
    other = {worker: theirs for worker, theirs in found.items() if theirs != here}
    if other:
        shown = ", ".join(f"{worker} has {theirs}" for worker, theirs in list(other.items())[:3])
        raise InputError(f"{len(other)} of {len(found)} workers run another scaleacross than {here}: {shown}")
