"""Turn a reference (name, path, mapping or object) into a validated spec."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from scaleacross.catalogue.find import Kind, find
from scaleacross.catalogue.validation import nearest, validate
from scaleacross.catalogue.yaml_source import STANDARD_INPUT, Source, read_file, read_standard_input
from scaleacross.errors import InputError
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.link_graph import LinkGraph
from scaleacross.spec.network import NetworkTechnology
from scaleacross.spec.topology import Building, Topology, expand_building_defaults
from scaleacross.workloads import FAMILIES
from scaleacross.workloads.huggingface import READ_AS, from_hf_config
from scaleacross.workloads.workload import Workload

Reference = str | Path | Mapping[str, Any]
M = TypeVar("M", bound=BaseModel)

# keys that a before-validator of the model accepts in addition to its fields
EXTRA_KEYS: Final[Mapping[type[BaseModel], tuple[str, ...]]] = {
    Topology: ("building_defaults",),
    Building: ("hosts",),
    Job: ("global_batch_tokens",),
}

_SINGULAR: Final[Mapping[Kind, str]] = {
    "accelerators": "accelerator",
    "networks": "network technology",
    "topologies": "topology",
    "graphs": "graph of links",
    "workloads": "workload",
    "recommendation": "recommendation model",
    "jobs": "job",
    "plans": "plan",
    "studies": "study",
}

CONFIG_JSON: Final = "config_json"
"""Key of a workload that names a Hugging Face config.json."""

# In a topology, a text under one of these keys names a catalogue entry.
_REFERENCES: Final[Mapping[str, Kind]] = {"accelerator": "accelerators", "technology": "networks"}


def read(kind: Kind, ref: Reference, folder: Path | None = None) -> Source:
    """Return the mapping that ``ref`` refers to; ``-`` is standard input.

    A file's ``name`` defaults to its stem (a Hugging Face ``config.json``: its folder's name).

    Raises:
        InputError: not found, unreadable, or no mapping.
    """
    if isinstance(ref, Mapping):
        return Source(f"the {_SINGULAR[kind]} given", dict(ref), folder=folder)
    if not isinstance(ref, str | Path):
        raise InputError(f"{kind}: a name, a path or a mapping is expected, not a {type(ref).__name__}")
    if str(ref) == STANDARD_INPUT:
        return named(read_standard_input(), Path(_SINGULAR[kind]))
    path = find(kind, str(ref), folder)
    return named(read_file(path), path)


def part(source: Source, key: str, read_named: Callable[[Any, Path | None], Source]) -> Source:
    """Return the value under ``key``: a mapping as it is, or the file that it names, read with ``read_named``."""
    value = source.data[key]
    if isinstance(value, dict):
        return source.sub(key)
    try:
        return read_named(value, source.folder)
    except InputError as error:
        raise InputError(f"{source.place((key,))}: key '{key}': {error}") from None


def topology_under(source: Source) -> Topology:
    """Return the topology that ``source`` names or holds. Raises InputError."""
    return topology_from(part(source, "topology", partial(read, "topologies")))


def full_topology(source: Source) -> tuple[type[Topology], dict[str, Any]]:
    """Return the topology under ``source`` in full, as overrides need it. Raises InputError."""
    return Topology, topology_under(source).model_dump(mode="json")


def named(source: Source, path: Path) -> Source:
    """Return ``source`` with a missing ``name`` filled in from the file's own name."""
    if not isinstance(source.data, dict):
        shown = type(source.data).__name__
        raise InputError(f"{source.place(())}: a mapping (key: value) is expected at the top, not a {shown}")
    if "name" in source.data:
        return source
    own = path.resolve().parent.name if path.name == "config.json" else path.stem
    name = re.sub(r"[^A-Za-z0-9._-]", "-", own).lstrip("._-")[:64] or "unnamed"
    return replace(source, data={"name": name, **source.data})


def load_accelerator(ref: Reference | Accelerator, folder: Path | None = None) -> Accelerator:
    """Load an accelerator by catalogue name, path or mapping. Raises InputError."""
    return ref if isinstance(ref, Accelerator) else validate(Accelerator, read("accelerators", ref, folder))


def load_network(ref: Reference | NetworkTechnology, folder: Path | None = None) -> NetworkTechnology:
    """Load a network technology by catalogue name, path or mapping. Raises InputError."""
    return ref if isinstance(ref, NetworkTechnology) else validate(NetworkTechnology, read("networks", ref, folder))


def load_graph(ref: Reference | LinkGraph, folder: Path | None = None) -> LinkGraph:
    """Load a graph of links by catalogue name, path or mapping. Raises InputError."""
    return ref if isinstance(ref, LinkGraph) else validate(LinkGraph, read("graphs", ref, folder))


def load_topology(ref: Reference | Topology, folder: Path | None = None) -> Topology:
    """Load a topology by catalogue name, path or mapping, with its accelerators and technologies.

    Raises:
        InputError: not found or not valid.
    """
    return ref if isinstance(ref, Topology) else topology_from(read("topologies", ref, folder))


def topology_from(source: Source) -> Topology:
    """Return the topology in ``source``. Raises InputError."""
    loaded: dict[tuple[str, str], BaseModel] = {}
    data = _with_references(source.data, source, (), loaded)
    topology = validate(Topology, _with_defaults(replace(source, data=data)), EXTRA_KEYS)
    for index, trunk in enumerate(topology.trunks):
        if not {"bandwidth_bytes_per_s", "oversubscription_ratio"} & trunk.model_fields_set:
            raise InputError(
                f"{source.place(('trunks', index))}: trunk {'–'.join(trunk.between)} states no rate: add bandwidth_gbit_per_s "
                "(both directions alike), or oversubscription_ratio (1 for the line rate of the smaller building)"
            )
    return topology


def _with_defaults(source: Source) -> Source:
    """Return ``source`` with ``building_defaults`` merged into the buildings.

    Merged values keep their place in the file, so that errors point to the defaults.
    """
    if not isinstance(source.data, dict) or not isinstance(source.data.get("building_defaults"), dict):
        return source
    data, marks = expand_building_defaults(source.data), dict(source.marks)
    inherited = {
        path[1:]: mark for path, mark in source.marks.items() if path[:1] == ("building_defaults",) and path[1:]
    }
    for at in [path for path in source.marks if len(path) == 4 and (path[0], path[2]) == ("regions", "buildings")]:
        for below, mark in inherited.items():
            marks.setdefault((*at, *below), mark)
    return replace(source, data=data, marks=marks)


def _with_references(
    value: Any, source: Source, path: tuple[str | int, ...], loaded: dict[tuple[str, str], BaseModel]
) -> Any:
    """Replace the text under every ``accelerator`` and ``technology`` by the catalogue object of that name."""
    if isinstance(value, list | tuple):
        return [_with_references(item, source, (*path, index), loaded) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    out: dict[str, Any] = {}
    for key, item in value.items():
        if key in _REFERENCES and isinstance(item, str):
            if (key, item) not in loaded:
                load = load_accelerator if key == "accelerator" else load_network
                try:
                    loaded[key, item] = load(item, source.folder)
                except InputError as error:
                    at = (*path, key)
                    raise InputError(f"{source.place(at)}: {source.key(at)}{error}") from None
            out[key] = loaded[key, item]
        elif key != "provenance":
            out[key] = _with_references(item, source, (*path, key), loaded)
        else:
            out[key] = item
    return out


def load_workload(ref: Reference | Workload, folder: Path | None = None) -> Workload:
    """Load a workload by catalogue name, path (YAML or a Hugging Face ``config.json``) or mapping of either.

    ``{config_json: PATH, read_as: llama}`` reads a model of unknown type as one of a known type.

    Raises:
        InputError: not found, of an unknown type, or contradicting itself.
    """
    return ref if isinstance(ref, Workload) else workload_from(read("workloads", ref, folder))


def _from_config_json(source: Source) -> Workload:
    """Load the config.json of ``{config_json: PATH, read_as: TYPE, name: NAME}``; the last two keys are optional."""
    path, others = source.data[CONFIG_JSON], {key: source.data[key] for key in source.data if key != CONFIG_JSON}
    unknown = sorted(set(others) - {"name", READ_AS})
    if unknown or not isinstance(path, str):
        said = f"keys {', '.join(unknown)} are unknown" if unknown else f"{CONFIG_JSON} must be a path, got {path!r}"
        raise InputError(f"{source.place(())}: {said}; allowed with {CONFIG_JSON}: name and {READ_AS}")
    found = read("workloads", path, source.folder)
    return _from_hf(replace(found, data={**found.data, **others}))


def _from_hf(source: Source) -> Workload:
    try:
        return from_hf_config(source.data, str(source.data.get("name", "model")))
    except InputError as error:
        raise InputError(f"{source.label}: {error}") from None


def workload_from(source: Source) -> Workload:
    """Return the workload in ``source``. Raises InputError."""
    data = source.data
    if not isinstance(data, dict):
        raise InputError(f"{source.place(())}: a workload is a mapping, not a {type(data).__name__}")
    if CONFIG_JSON in data:
        return _from_config_json(source)
    if "family" not in data and "model_type" in data:
        return _from_hf(source)
    family = data.get("family")
    if family is None:
        if "num_hidden_layers" in data or "architectures" in data:
            raise InputError(
                f"{source.place(())}: a config.json of transformers without model_type: state it there, or as read_as the type "
                "whose layers it has (scaleacross show workload FILE --as TYPE)"
            )
        missing = source.key(("family",)).removesuffix(": ")
        raise InputError(f"{source.place(())}: {missing} is missing; families: {', '.join(FAMILIES)}")
    if not isinstance(family, str) or family not in FAMILIES:
        advice = nearest(str(family), FAMILIES, "family", "families")
        raise InputError(f"{source.place(('family',))}: no family '{family}'; {advice}")
    return validate(FAMILIES[family], source)
