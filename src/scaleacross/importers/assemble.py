"""Assembles found hosts into a topology: buildings of equal racks and zones, standard links within, stated between.

``cli.imports`` calls ``topology_of``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import Any, Final

from scaleacross.catalogue.products import standard_type
from scaleacross.catalogue.quick_start import (
    links_between,
    provenance,
    standard,
    standard_building,
    standard_link,
    unsupported,
)
from scaleacross.errors import InputError
from scaleacross.importers.found import Found, FoundHost
from scaleacross.spec.base import HOST_PATTERN

NAMED: Final = 20
"""Largest number of hosts that a note names."""


def topology_of(
    found: Found,
    *,
    accelerator: str | None = None,
    accelerators_per_host: int | None = None,
    trunk: str | None = None,
    km: float | None = None,
    buildings: Mapping[str, Sequence[str]] | None = None,
    with_down: bool = False,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a topology's mapping with real host names, and notes on how the source was read.

    Args:
        accelerator, accelerators_per_host: facts that the source does not state.
        trunk, km: the link between every two buildings, as ``--trunk`` and ``--km`` of ``plan``.
        buildings: name -> hosts, instead of the buildings of the source.
        with_down: include hosts that take no jobs now.

    Raises:
        InputError: accelerators or links that neither source nor arguments state, hosts of one building that differ, or no host
            that takes jobs.
    """
    named = _distinct(found)
    assigned = _assigned(named, buildings)
    placed = _in_buildings(assigned)
    down = [] if with_down else [host for host in placed if host.unusable]
    hosts = [host for host in placed if with_down or not host.unusable]
    if not hosts:
        raise InputError(f"{found.origin}: {_down(down)}; no host is left")
    groups: dict[str, list[FoundHost]] = {}
    for host in hosts:
        groups.setdefault(host.building, []).append(host)
    link = standard_link(trunk, km, len(groups))
    made = {name: _building(name, own, accelerator, accelerators_per_host) for name, own in groups.items()}
    beside = [*_beside(named, assigned), *([_down(down)] if down else [])]
    notes = [*found.notes, *beside, *(note for _, own in made.values() for note in own)]
    regions: dict[str, list[dict[str, Any]]] = {}
    for name, (building, _) in made.items():
        regions.setdefault(_plain(groups[name][0].region or "region-1"), []).append(building)
    origin = {
        f"links.{level}.one_way_latency_us": {
            "source": f"{found.origin} states no links; {_said(level)}",
            "status": "assumed",
        }
        for level in ("scale_up", "rack", "zone", "building")
    }
    topology = {
        "name": "imported",
        "description": f"{len(hosts):,} hosts in {len(groups)} building(s) from {found.origin}; links inside are those of a "
        "standard building (assumed)" + (f"; between them {link.text} over {link.km:g} km as stated" if link else ""),
        "regions": [{"name": name, "buildings": own} for name, own in regions.items()],
        "trunks": links_between(list(groups), link),
        "provenance": provenance(link) | origin,
    }
    return topology, tuple(notes)


def _distinct(found: Found) -> tuple[FoundHost, ...]:
    """Return the hosts of a source. Raises InputError if a name is invalid or listed twice."""
    seen: dict[str, FoundHost] = {}
    for host in found.hosts:
        if host.name and re.fullmatch(HOST_PATTERN, host.name) is None:
            raise InputError(
                f"{found.origin}: {host.name[:70]!r} is no name of a host: 1 to 253 letters, digits, '.', '_' or '-', a "
                "letter or digit first"
            )
        if host.name in seen:
            where = {one.building for one in (host, seen[host.name])} - {""}
            at = f" (buildings {', '.join(sorted(where))})" if len(where) > 1 else ""
            raise InputError(f"{found.origin}: host '{host.name}' is listed twice{at}: leave it in once")
        seen[host.name] = host
    return found.hosts


def _in_buildings(hosts: Sequence[FoundHost]) -> list[FoundHost]:
    """Return ``hosts`` with building names that files may have. Raises InputError if only some are in a building."""
    without = [host.name for host in hosts if not host.building]
    if without and len(without) < len(hosts):
        raise InputError(
            f"{len(without):,} of {len(hosts):,} hosts are in no building ({_listed(without)}): state theirs in the source, or "
            "all of them with --building NAME=HOSTLIST"
        )
    plain: dict[str, str] = {}
    for host in hosts:
        other = plain.setdefault(_plain(host.building), host.building)
        if other != host.building:
            raise InputError(
                f"buildings '{other}' and '{host.building}' are both called '{_plain(other)}' in a topology: name them with "
                "--building NAME=HOSTLIST"
            )
    return [replace(host, building=_plain(host.building)) for host in hosts]


def _beside(found: Sequence[FoundHost], assigned: Sequence[FoundHost]) -> list[str]:
    """Return a note on hosts that no --building names, if there are any."""
    kept = {host.name for host in assigned}
    left = [host.name for host in found if host.name not in kept]
    return [f"{len(left):,} host(s) of the source are in no --building and left out: {_listed(left)}"] if left else []


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:NAMED])}{' …' * (len(names) > NAMED)}"


def _down(hosts: Sequence[FoundHost]) -> str:
    """Return a note on hosts that are left out, by the reason why they take no jobs."""
    why: dict[str, list[str]] = {}
    for host in hosts:
        why.setdefault(host.unusable, []).append(host.name)
    named = "; ".join(f"{state}: {_listed(names)}" for state, names in why.items())
    return f"{len(hosts):,} host(s) that take no jobs now are left out ({named}); --with-down brings them in"


def _said(level: str) -> str:
    return str(standard()["provenance"][f"links.{level}.one_way_latency_us"]["source"])


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")[:64] or "building-a"


def _assigned(hosts: Iterable[FoundHost], buildings: Mapping[str, Sequence[str]] | None) -> list[FoundHost]:
    """Return ``hosts`` in the buildings that the user states, without hosts that none of them names."""
    if not buildings:
        return list(hosts)
    known, out = {host.name: host for host in hosts}, list[FoundHost]()
    for building, names in buildings.items():
        for name in names:
            if name not in known:
                twice = any(name == host.name for host in out)
                what = "is in two buildings, or twice in one" if twice else "is not in the source"
                raise InputError(f"--building {building}: host '{name}' {what}")
            out.append(replace(known.pop(name), building=building))
    return out


def _building(
    name: str, hosts: list[FoundHost], accelerator: str | None, per_host: int | None
) -> tuple[dict[str, Any], list[str]]:
    """Return a building's mapping and notes; hosts are sorted so that racks and zones are contiguous."""
    base = standard_building(accelerator or _type_of(name, hosts), "--accelerator")
    if not all(host.name for host in hosts):
        raise InputError(f"building '{name}': a host has no name in the source: every host needs one of its own")
    counts = {host.num_accelerators for host in hosts if host.num_accelerators is not None}
    if per_host is None and len(counts) > 1:
        raise InputError(
            f"building '{name}': hosts with {', '.join(map(str, sorted(counts)))} accelerators; hosts of a building are alike: "
            "leave some out with --building NAME=HOSTLIST, or state --gpus-per-host"
        )
    zones = _grouped(hosts, lambda host: host.zone)
    racks = [rack for zone in zones for rack in _grouped(zone, lambda host: host.rack)]
    fewest = min((host for host in hosts if host.num_accelerators is not None), key=_number, default=None)
    if per_host is not None and fewest is not None and _number(fewest) < per_host:
        raise InputError(
            f"building '{name}': host {fewest.name} has {_number(fewest)} accelerators in the source, less than --gpus-per-host "
            f"{per_host}: leave it out with --building NAME=HOSTLIST, or state {_number(fewest)}"
        )
    notes = [*_taken_over(name, hosts, accelerator)]
    per_rack, whole = _unit([len(rack) for rack in racks], [len(zone) for zone in zones])
    if not any(host.rack for host in hosts):
        per_rack, whole = (int(base["hosts_per_rack"]), True) if base.get("scale_up_domain") == "rack" else (1, True)
        notes.append(f"{name}: the source names no racks: {per_rack} host(s) per rack are taken")
    elif not whole:
        notes.append(f"{name}: racks differ in size; {per_rack} host(s) are taken for a rack, which splits larger ones")
    per_zone, whole = _unit([-(-len(zone) // per_rack) for zone in zones], [])
    if not whole:
        notes.append(f"{name}: zones differ in size; {per_zone} rack(s) are taken for a zone, which splits larger ones")
    names = [host.name for rack in racks for host in rack]
    size = per_host or (counts.pop() if counts else int(base["accelerators_per_host"]))
    own = {"accelerators_per_host": size, "hosts_per_rack": per_rack, "racks_per_zone": per_zone}
    return {"name": name, "hosts": names, **base, **own}, notes


def _number(host: FoundHost) -> int:
    return host.num_accelerators or 0


def _taken_over(name: str, hosts: Sequence[FoundHost], accelerator: str | None) -> Iterator[str]:
    """Yield notes on hosts about which the source states less than about others, or contradicts the user."""
    for what, silent in (
        ("number", [host.name for host in hosts if host.num_accelerators is None]),
        ("type", [host.name for host in hosts if not host.accelerator] if accelerator is None else []),
    ):
        if silent and len(silent) < len(hosts):
            yield f"{name}: the source states no {what} of accelerators of {_listed(silent)}: that of the others is taken"
    said = sorted(
        {host.accelerator for host in hosts if host.accelerator and _kind_of(host.accelerator) != accelerator}
    )
    if accelerator is not None and said:
        yield f"{name}: the source says {_listed(said)}; --accelerator {accelerator} is taken"


def _type_of(building: str, hosts: list[FoundHost]) -> str:
    """Return the standard accelerator type that the hosts' names mention. Raises InputError if not exactly one."""
    kinds = sorted(standard()["accelerators"])
    found = {_kind_of(host.accelerator) or host.accelerator for host in hosts if host.accelerator}
    if len(found) != 1 or not found <= set(kinds):
        said = f"types {', '.join(sorted(found))}" if found else "no type"
        if lacking := unsupported(sorted(found)):
            raise InputError(f"building '{building}': the source states {said} of accelerator: {lacking}")
        raise InputError(
            f"building '{building}': the source states {said} of accelerator: add --accelerator ({', '.join(kinds)})"
        )
    return found.pop()


def _kind_of(text: str) -> str | None:
    """Return the standard type that a source's name of an accelerator mentions, or None."""
    return standard_type(text, standard())


def _grouped(hosts: list[FoundHost], key: Any) -> list[list[FoundHost]]:
    """Group hosts of equal key, larger groups first: only a building's last rack and zone may be incomplete."""
    groups: dict[str, list[FoundHost]] = {}
    for host in hosts:
        groups.setdefault(key(host), []).append(host)
    return sorted(groups.values(), key=len, reverse=True)


def _unit(sizes: Sequence[int], multiples: Sequence[int]) -> tuple[int, bool]:
    """Return the common size of all groups but the last, else their greatest common divisor; and whether it is the
    former.

    ``multiples``: further numbers that the size must divide, except the last.
    """
    largest = sizes[0]
    if all(size == largest for size in sizes[:-1]) and all(size % largest == 0 for size in multiples[:-1]):
        return largest, True
    return gcd(*sizes, *multiples), False
