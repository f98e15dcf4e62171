"""Hosts that an importer finds (``Found``), and helpers that read records of a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scaleacross.catalogue.yaml_source import Source
from scaleacross.errors import InputError


@dataclass(frozen=True)
class FoundHost:
    """A host and its place; "" where the source is silent. ``unusable``: why the host takes no jobs now, or ""."""

    name: str
    building: str = ""
    zone: str = ""
    rack: str = ""
    region: str = ""
    num_accelerators: int | None = None
    accelerator: str = ""
    unusable: str = ""


@dataclass(frozen=True)
class Found:
    """All hosts of a source, in its order. ``origin``: file and kind; ``notes``: how the source was read."""

    hosts: tuple[FoundHost, ...]
    origin: str
    notes: tuple[str, ...] = ()


def records(source: Source, *keys: str) -> Iterator[dict[str, Any]]:
    """Yield the mappings of a JSON list, or of the list under the first of ``keys`` that exists.

    Raises:
        InputError: there is no such list, or it contains other values than mappings.
    """
    data = source.data
    if isinstance(data, dict):
        data = next((data[key] for key in keys if isinstance(data.get(key), list)), None)
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        raise InputError(
            f"{source.label}: a list of objects is expected" + (f" under {' or '.join(keys)}" if keys else "")
        )
    yield from data


def text_at(record: dict[str, Any], *path: str) -> str:
    """Return the text or number at ``path`` below ``record``, or "" if there is none."""
    here: Any = record
    for key in path:
        here = here.get(key) if isinstance(here, dict) else None
    return str(here) if isinstance(here, str | int) and not isinstance(here, bool) else ""


def required(hosts: Sequence[FoundHost], source: Source, what: str) -> tuple[FoundHost, ...]:
    """Return ``hosts``; raise InputError if there are none."""
    if not hosts:
        raise InputError(f"{source.label}: no {what} found")
    return tuple(hosts)
