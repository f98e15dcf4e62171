"""A plain list of hosts: ``HOSTLIST [BUILDING [RACK]]`` per line, ``#`` for comments, ``slots=8`` as in MPI's host files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scaleacross.catalogue.yaml_source import Source
from scaleacross.errors import InputError
from scaleacross.importers.found import Found, FoundHost, required
from scaleacross.spec.hostlist import expand_hosts


def read(sources: Sequence[Source]) -> Found:
    """Hosts in the order of the file. Raises InputError."""
    hosts: list[FoundHost] = []
    for source in sources:
        for number, line in enumerate(source.data.splitlines(), 1):
            hosts += _hosts(line.split("#")[0].split(), f"{source.label}:{number}")
    return Found(required(hosts, sources[0], "host"), f"host list {sources[0].label}")


def _hosts(words: list[str], place: str) -> list[FoundHost]:
    if not words:
        return []
    slots = next((re.fullmatch(r"slots=(\d{1,4})", word) for word in words if word.startswith("slots=")), None)
    rest = [word for word in words[1:] if "=" not in word]
    if len(rest) > 2:
        raise InputError(f"{place}: {len(rest) + 1} words; a line is HOSTLIST [BUILDING [RACK]] [slots=N]")
    building, rack = (*rest, "", "")[:2]
    try:
        names = expand_hosts(words[0])
    except ValueError as error:
        raise InputError(f"{place}: {error}") from None
    return [FoundHost(name, building, rack=rack, num_accelerators=int(slots[1]) if slots else None) for name in names]
