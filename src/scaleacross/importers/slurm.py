"""Reads SLURM's topology.conf (tree or block), topology.yaml (since 25.05), and ``scontrol show topology`` or ``node``.

Grammar: topology.conf(5), topology.yaml(5). Only ``scontrol show node`` states accelerators. A leaf switch or a block
is a rack. In a tree of at least three levels of switches, those below the root are buildings, and those above the
leaves are zones. Several roots are buildings. A flatter tree is one building. scontrol lists all hosts below every
switch, so a host belongs to the lowest switch that lists it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

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
"""States and flags of scontrol(1) in which a node starts no job; a "*" after a state means that it does not respond."""


class Gpus(NamedTuple):
    """A host's accelerators: type ("" if it is not stated), number, and why the host takes no jobs ("" if it does)."""

    accelerator: str
    number: int | None
    unusable: str


@dataclass(frozen=True)
class Switch:
    """A switch with hosts or with switches below it."""

    hosts: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


def read(sources: Sequence[Source]) -> Found:
    """Return hosts with the topology file's building, zone and rack, and accelerators by ``scontrol show node`` if
    given.

    Raises:
        InputError: no topology among the files, or one that contradicts itself.
    """
    gres: dict[str, Gpus] = {}
    hosts: list[FoundHost] = []
    said: list[str] = []
    for source in sources:
        if "NodeName=" in source.data:
            gres |= _gres(source)
        elif re.search(r"(?im)^\s*(SwitchName|BlockName)\s*=", source.data):
            own, notes = _of_conf(source)
            hosts, said = hosts + own, said + notes
        else:
            own, notes = _of_yaml(source)
            hosts, said = hosts + own, said + notes
    found = required(hosts, sources[0], "host of a topology.conf or topology.yaml")
    named = [
        replace(host, accelerator=told.accelerator, num_accelerators=told.number, unusable=told.unusable)
        if (told := gres.get(host.name)) is not None
        else host
        for host in found
    ]
    without = [host.name for host in found if gres and host.name not in gres]
    beside = sorted(gres.keys() - {host.name for host in found})
    left = ((without, "without GPUs in scontrol's output"), (beside, "with GPUs that the topology does not name"))
    said += [f"{len(names)} hosts {what} are left out: {', '.join(names[:5])}" for names, what in left if names]
    kept = [host for host in named if not gres or host.name in gres]
    return Found(required(kept, sources[0], "host with GPUs"), f"SLURM topology of {sources[0].label}", tuple(said))


def _gres(source: Source) -> dict[str, Gpus]:
    """Return host -> its accelerators, from ``Gres=gpu:h100:8(S:0-1)``."""
    out: dict[str, Gpus] = {}
    for record in re.split(r"(?m)^(?=NodeName=)", source.data):
        name, gres = re.match(r"NodeName=(\S+)", record), re.search(r"\bGres=(\S+)", record)
        state = re.search(r"\bState=(\S+)", record)
        gpus = _gpus(gres[1], _unusable(state[1] if state else "")) if gres else None
        if name is not None and gpus is not None and name[1] != "DEFAULT":
            out |= dict.fromkeys(_names(name[1], source), gpus)
    return out


def _gpus(gres: str, unusable: str) -> Gpus | None:
    """Return a node's GPUs by its generic resources, or None. Parts of GPUs or several types make it unusable."""
    plain = re.sub(r"\([^)]*\)", "", gres)
    parts = [part.split(":")[1:] or ["1"] for part in plain.split(",") if re.match(r"gpu(:|$)", part)]
    numbers = [int(words[-1]) if re.fullmatch(r"\d{1,4}", words[-1]) else 0 for words in parts]
    kinds = {words[0] if len(words) > 1 else "" for words in parts}
    whole = all(numbers) and len(kinds) == 1 and not any(re.match(r"\d", kind) for kind in kinds)
    if parts and not whole:
        return Gpus("", None, unusable or f"Gres={gres[:60]}: no whole GPUs of one type")
    return Gpus(kinds.pop(), sum(numbers), unusable) if parts else None


def _unusable(state: str) -> str:
    """Return ``state`` (``DOWN*+DRAIN``) if a node in it starts no jobs, else ""."""
    words = re.split(r"[+,]", state.upper())
    return state if any(word.endswith("*") or word.rstrip("*~#!%$@^-") in OUT_OF_SERVICE for word in words) else ""


def _of_yaml(source: Source) -> tuple[list[FoundHost], list[str]]:
    """Return the hosts of the default topology, else of the first with switches or blocks, and a note on the others."""
    data = parse_yaml(source.data, source.label).data
    listed = [one for one in (data if isinstance(data, list) else [data]) if isinstance(one, dict)]
    usable = [one for one in listed if isinstance(one.get("tree"), dict) or isinstance(one.get("block"), dict)]
    if not usable:
        raise InputError(
            f"{source.label}: neither SwitchName=/BlockName= lines nor a tree: or block: of a topology.yaml"
        )
    taken = next((one for one in usable if one.get("cluster_default") is True), usable[0])
    others = [str(one.get("topology", "unnamed")) for one in listed if one is not taken]
    left = f"topology '{taken.get('topology', 'unnamed')}' of {source.label} is taken; left out: {', '.join(others)}"
    if isinstance(taken.get("tree"), dict):
        hosts = _tree(_switches(taken["tree"], source), source)
    else:
        hosts = [
            FoundHost(name, ONE_BUILDING, rack=str(block["block"]))
            for block in _listed(taken["block"].get("blocks"), "block", source)
            for name in _names(str(block.get("nodes", "")), source)
        ]
    return hosts, [left] if others else []


def _of_conf(source: Source) -> tuple[list[FoundHost], list[str]]:
    """Return the hosts of the blocks, else of the switches, and a note if a file has both.

    SLURM itself reads the kind that its topology plugin uses.
    """
    text = re.sub(r"\\\r?\n", " ", source.data)
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    rows = [{key.lower(): value for key, value in re.findall(r"(\w+)\s*=\s*(\S+)", line)} for line in lines if line]
    switched = sum("switchname" in row for row in rows)
    if any("blockname" in row for row in rows):
        left = (
            f"blocks of {source.label} are taken (topology/block); left out: {switched} lines with SwitchName; to take the "
            "switches (topology/tree), delete the lines with BlockName"
        )
        blocks = [
            FoundHost(name, ONE_BUILDING, rack=row["blockname"])
            for row in rows
            if "blockname" in row
            for name in _names(row.get("nodes", ""), source)
        ]
        return blocks, [left] if switched else []
    switches = {}
    for row in (row for row in rows if "switchname" in row):
        if row["switchname"] in switches:
            raise InputError(f"{source.label}: switch {row['switchname']} is stated twice")
        below = _names(row["switches"], source) if "switches" in row else ()
        switches[row["switchname"]] = Switch(_names(row["nodes"], source) if "nodes" in row else (), below)
    return _tree(switches, source), []


def _switches(tree: Mapping[str, Any], source: Source) -> dict[str, Switch]:
    rows = _listed(tree.get("switches"), "switch", source)
    if twice := next((name for name, count in Counter(str(row["switch"]) for row in rows).items() if count > 1), None):
        raise InputError(f"{source.label}: switch {twice} is stated twice")
    return {
        str(row["switch"]): Switch(
            _names(str(row["nodes"]), source) if row.get("nodes") else (),
            _names(str(row["children"]), source) if row.get("children") else (),
        )
        for row in rows
    }


def _listed(rows: Any, key: str, source: Source) -> list[dict[str, Any]]:
    """Return the mappings of a list. Raises InputError if one has no ``key``."""
    listed = rows if isinstance(rows, list) else []
    wrong = next((row for row in listed if not isinstance(row, dict) or not row.get(key)), None)
    if wrong is not None:
        raise InputError(f"{source.label}: {str(wrong)[:60]!r} is no {key}: a mapping with {key}: NAME is expected")
    return listed


def _names(text: str, source: Source) -> tuple[str, ...]:
    try:
        return expand_hosts(text)
    except ValueError as error:
        raise InputError(f"{source.label}: {error}") from None


def _tree(switches: Mapping[str, Switch], source: Source) -> list[FoundHost]:
    """Return the hosts below the roots, with the switches above them as building, zone and rack."""
    below = {child for switch in switches.values() for child in switch.switches}
    if unknown := sorted(below - set(switches)):
        raise InputError(f"{source.label}: switch {unknown[0]} is below another one, but not stated itself")
    roots = [name for name in switches if name not in below]
    if switches and not roots:
        raise InputError(f"{source.label}: every switch is below another one: the tree has a circle")
    found: list[FoundHost] = []
    reached: set[str] = set()
    for root in roots:
        walked = _walk(root, (), switches, source)
        reached |= {switch for _, path in walked for switch in path}
        found += [_placed(name, path, len(roots)) for name, path in walked]
    lost = [name for name, switch in switches.items() if switch.hosts and name not in reached]
    if lost:
        raise InputError(f"{source.label}: switch {lost[0]} is below itself: its hosts are in no tree")
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
    lower = [one for child in switches[name].switches for one in _walk(child, path, switches, source)]
    below = {host for host, _ in lower}
    return [(host, path) for host in switches[name].hosts if host not in below] + lower


def _placed(name: str, path: tuple[str, ...], num_roots: int) -> FoundHost:
    """Return the host with its building, zone and rack; ``path``: switches from the root to the leaf."""
    if num_roots > 1:
        building, inner = path[0], path[1:]
    elif len(path) >= 3:
        building, inner = path[1], path[2:]
    else:
        building, inner = ONE_BUILDING, path[1:] or path
    zone = inner[-2] if len(inner) > 1 else ""
    return FoundHost(name, building, zone, inner[-1] if inner else path[-1])
