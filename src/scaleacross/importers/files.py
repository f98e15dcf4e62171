"""Reads the files of a source as text or as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scaleacross.catalogue.yaml_source import Source, read_file, read_text

TEXT_KINDS: Final = ("slurm", "hosts")


def read_source(kind: str, path: Path) -> Source:
    """Return the file's text (``TEXT_KINDS``) or its YAML or JSON data. Raises InputError: unreadable or malformed."""
    return Source(str(path.name), read_text(path), folder=path.parent) if kind in TEXT_KINDS else read_file(path)
