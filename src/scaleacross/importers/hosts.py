"""Reads a plain list of hosts: ``HOSTLIST [BUILDING [RACK]]`` per line, with ``#`` for comments.

``slots=8`` or ``HOST:8`` state accelerators, as in MPI's host files, whose ``max_slots`` is ignored. Quotes keep a name
of several words together.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from scaleacross.catalogue.yaml_source import Source
from scaleacross.errors import InputError
from scaleacross.importers.found import Found, FoundHost, required
from scaleacross.spec.hostlist import expand_hosts

MPI_WORDS: Final = frozenset(("max_slots", "max-slots"))
"""Words of MPI's host files that are ignored."""


def read(sources: Sequence[Source]) -> Found:
    """Return the hosts in the order of the file. Raises InputError: an invalid line, or no hosts."""
    hosts: list[FoundHost] = []
    for source in sources:
        for number, line in enumerate(source.data.splitlines(), 1):
            hosts += _hosts(_words(line, place := f"{source.label}:{number}"), place)
    return Found(required(hosts, sources[0], "host"), f"host list {sources[0].label}")


def _words(line: str, place: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        raise InputError(f"{place}: a quotation mark is not closed") from None


def _hosts(words: list[str], place: str) -> list[FoundHost]:
    if not words:
        return []
    hosts, colon, after = words[0].partition(":")
    stated = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    slots = stated.pop("slots", after if colon else None)
    if slots is not None and not re.fullmatch(r"[1-9]\d{0,3}", slots):
        raise InputError(f"{place}: '{slots[:20]}' is no number of accelerators: write slots=8, or HOST:8")
    if unknown := sorted(stated.keys() - MPI_WORDS):
        raise InputError(f"{place}: '{unknown[0]}=' says nothing here; a line is HOSTLIST [BUILDING [RACK]] [slots=N]")
    rest = [word for word in words[1:] if "=" not in word]
    if len(rest) > 2:
        raise InputError(f"{place}: {len(rest) + 1} words; a line is HOSTLIST [BUILDING [RACK]] [slots=N]")
    building, rack = (*rest, "", "")[:2]
    try:
        names = expand_hosts(hosts)
    except ValueError as error:
        raise InputError(f"{place}: {error}") from None
    return [FoundHost(name, building, rack=rack, num_accelerators=int(slots) if slots else None) for name in names]
