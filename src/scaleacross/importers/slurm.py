"""SLURM: topology.conf (tree or block), topology.yaml (since 25.05), and ``scontrol show node`` for accelerators.

Grammar: topology.conf(5), topology.yaml(5). A leaf switch or a block is a rack. Of a tree with three levels of switches or more,
those below the root are buildings, and those above the leaves are zones.
Several roots are buildings. A flatter tree is one building.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from scaleacross.catalogue.yaml_source import Source, parse_yaml
from scaleacross.errors import InputError
from scaleacross.importers.found import Found, FoundHost, required
from scaleacross.spec.hostlist import expand_hosts

ONE_BUILDING = "building-a"
MAX_LEVELS = 16
OUT_OF_SERVICE: Final = frozenset((
    "DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE", "INVAL", "INVALID_REG", "MAINT",
    "MAINTENANCE", "NOT_RESPONDING",
))  # fmt: skip
"""States and flags of scontrol(1) in which a node starts no job; "*" behind a state: it does not respond."""


@dataclass(frozen=True)
class Switch:
    """A switch with hosts or with switches below it."""

    hosts: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


def read(sources: Sequence[Source]) -> Found:
    """Hosts with building, zone and rack of the topology file, accelerators of ``scontrol show node`` where given.

    Raises:
        InputError: no topology among the files, or one that contradicts itself.
    """
    gres: dict[str, tuple[str, int, str]] = {}
    hosts: list[FoundHost] = []
    for source in sources:
        if "NodeName=" in source.data:
            gres |= _gres(source.data)
        else:
            hosts += _hosts(source)
    found = required(hosts, sources[0], "host of a topology.conf or topology.yaml")
    named = [
        replace(host, accelerator=told[0], num_accelerators=told[1], unusable=told[2])
        if (told := gres.get(host.name)) is not None
        else host
        for host in found
    ]
    without = [host.name for host in found if gres and host.name not in gres]
    notes = (
        [f"{len(without)} hosts without GPUs in scontrol's output are left out: {', '.join(without[:5])}"]
        if without
        else []
    )
    kept = [host for host in named if not gres or host.name in gres]
    return Found(required(kept, sources[0], "host with GPUs"), f"SLURM topology of {sources[0].label}", tuple(notes))


def _gres(text: str) -> dict[str, tuple[str, int, str]]:
    """Host -> type and number of its accelerators, of ``Gres=gpu:h100:8(S:0-1)``, and its state where it takes no jobs."""
    out = {}
    for record in re.split(r"(?m)^(?=NodeName=)", text):
        name, gpu = (
            re.match(r"NodeName=(\S+)", record),
            re.search(r"\bGres=\S*?gpu:(?:([A-Za-z][\w.-]*):)?(\d{1,4})", record),
        )
        if name and gpu:
            state = re.search(r"\bState=(\S+)", record)
            out[name[1]] = (gpu[1] or "", int(gpu[2]), _unusable(state[1] if state else ""))
    return out


def _unusable(state: str) -> str:
    """``state`` (``DOWN*+DRAIN``) where it keeps jobs away, else ""."""
    words = re.split(r"[+,]", state.upper())
    return state if any(word.endswith("*") or word.rstrip("*~#!%$@^-") in OUT_OF_SERVICE for word in words) else ""


def _hosts(source: Source) -> list[FoundHost]:
    text: str = source.data
    if re.search(r"(?im)^\s*(SwitchName|BlockName)\s*=", text):
        return _of_conf(source)
    data = parse_yaml(text, source.label).data
    topologies = data if isinstance(data, list) else [data]
    for one in topologies:
        if isinstance(one, dict) and isinstance(one.get("tree"), dict):
            return _tree(_switches(one["tree"], source), source)
        if isinstance(one, dict) and isinstance(one.get("block"), dict):
            blocks = one["block"].get("blocks") or []
            return [
                FoundHost(name, ONE_BUILDING, rack=str(block.get("block", "")))
                for block in blocks
                if isinstance(block, dict)
                for name in _names(str(block.get("nodes", "")), source)
            ]
    raise InputError(f"{source.label}: neither SwitchName=/BlockName= lines nor a tree: or block: of a topology.yaml")


def _of_conf(source: Source) -> list[FoundHost]:
    text = re.sub(r"\\\r?\n", " ", source.data)
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    rows = [{key.lower(): value for key, value in re.findall(r"(\w+)\s*=\s*(\S+)", line)} for line in lines if line]
    if any("blockname" in row for row in rows):
        return [
            FoundHost(name, ONE_BUILDING, rack=row["blockname"])
            for row in rows
            if "blockname" in row
            for name in _names(row.get("nodes", ""), source)
        ]
    switches = {}
    for row in (row for row in rows if "switchname" in row):
        if row["switchname"] in switches:
            raise InputError(f"{source.label}: switch {row['switchname']} is stated twice")
        below = _names(row["switches"], source) if "switches" in row else ()
        switches[row["switchname"]] = Switch(_names(row["nodes"], source) if "nodes" in row else (), below)
    return _tree(switches, source)


def _switches(tree: Mapping[str, Any], source: Source) -> dict[str, Switch]:
    rows = [row for row in tree.get("switches") or () if isinstance(row, dict) and row.get("switch")]
    return {
        str(row["switch"]): Switch(
            _names(str(row["nodes"]), source) if row.get("nodes") else (),
            _names(str(row["children"]), source) if row.get("children") else (),
        )
        for row in rows
    }


def _names(text: str, source: Source) -> tuple[str, ...]:
    try:
        return expand_hosts(text)
    except ValueError as error:
        raise InputError(f"{source.label}: {error}") from None


def _tree(switches: Mapping[str, Switch], source: Source) -> list[FoundHost]:
    """Hosts below the roots, with the switches above them as building, zone and rack."""
    below = {child for switch in switches.values() for child in switch.switches}
    if unknown := sorted(below - set(switches)):
        raise InputError(f"{source.label}: switch {unknown[0]} is below another one, but not stated itself")
    roots = [name for name in switches if name not in below]
    if switches and not roots:
        raise InputError(f"{source.label}: every switch is below another one: the tree has a circle")
    found: list[FoundHost] = []
    for root in roots:
        found += [_placed(name, path, len(roots)) for name, path in _walk(root, (), switches, source)]
    seen: set[str] = set()
    for host in found:
        if host.name in seen:
            raise InputError(f"{source.label}: host {host.name} is below two switches")
        seen.add(host.name)
    return found


def _walk(
    name: str, above: tuple[str, ...], switches: Mapping[str, Switch], source: Source
) -> list[tuple[str, tuple[str, ...]]]:
    path = (*above, name)
    if len(path) > MAX_LEVELS:
        raise InputError(f"{source.label}: switch {name} is deeper than {MAX_LEVELS} levels, or below itself")
    own = [(host, path) for host in switches[name].hosts]
    return own + [one for child in switches[name].switches for one in _walk(child, path, switches, source)]


def _placed(name: str, path: tuple[str, ...], num_roots: int) -> FoundHost:
    """``path``: switches from the root to the leaf."""
    if num_roots > 1:
        building, inner = path[0], path[1:]
    elif len(path) >= 3:
        building, inner = path[1], path[2:]
    else:
        building, inner = ONE_BUILDING, path[1:] or path
    zone = inner[-2] if len(inner) > 1 else ""
    return FoundHost(name, building, zone, inner[-1] if inner else path[-1])
