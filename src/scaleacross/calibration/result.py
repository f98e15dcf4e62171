"""Result of a calibration: catalogue entries as text, each with its errors in sample and on what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from scaleacross.calibration.file_scores import Skipped
from scaleacross.calibration.kernels import Score
from scaleacross.spec.base import Provenance

EntryKind = Literal["accelerators", "networks", "topologies"]


@dataclass(frozen=True)
class Residual:
    """Errors of one fit.

    Attributes:
        what: the quantity, e.g. ``gemm bf16``, ``collectives < 1 MiB``, ``step time``.
        fitted: names of the free figures.
        base: error of the base's own figures on the same rows; None if it has none.
        in_sample: error on the rows of the fit.
        left_out: what was left out (shapes, sizes, models, sources) -> error of fits that had not seen it.
    """

    what: str
    fitted: tuple[str, ...]
    base: Score | None
    in_sample: Score
    left_out: Mapping[str, Score]


@dataclass(frozen=True)
class FittedEntry:
    """One catalogue entry with fitted figures.

    Attributes:
        kind, name: the entry is read as ``<kind>/<name>.yaml``.
        base: entry that supplied the other figures; its own name if it replaces itself.
        text: the YAML file.
        residuals: one per fit.
        kept: figures of the base that are unchanged.
    """

    kind: EntryKind
    name: str
    base: str
    text: str
    residuals: tuple[Residual, ...]
    kept: tuple[str, ...]

    @property
    def path(self) -> str:
        """Path of the file below a directory of catalogue entries."""
        return str(PurePosixPath(self.kind, f"{self.name}.yaml"))


@dataclass(frozen=True)
class Calibration:
    """Fitted entries, the rows that no fit used, and remarks to read before using them."""

    entries: tuple[FittedEntry, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]

    @property
    def files(self) -> dict[str, str]:
        """Relative path -> text of every entry, for a directory that SCALEACROSS_CONFIGS names."""
        return {entry.path: entry.text for entry in self.entries}


def taken_over(provenance: Mapping[str, Provenance], base: str, name: str) -> dict[str, Provenance]:
    """Provenance of the figures that ``name`` copies from ``base``.

    A figure of another machine is an assumption, whatever its status was there.
    """
    if base == name:
        return dict(provenance)
    return {
        key: Provenance(source=f"taken over from {base}, not measured here: {one.source}", status="assumed")
        for key, one in provenance.items()
    }
