"""``--set a.b.0.c=value``: change any field of a job, or of its workload and topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel

from scaleacross.catalogue.load import EXTRA_KEYS
from scaleacross.catalogue.validation import advice_for_key, known_keys, models_at, nearest
from scaleacross.catalogue.yaml_source import KeyPath, Source, parse_yaml
from scaleacross.errors import InputError
from scaleacross.spec.base import SourcedSpec
from scaleacross.units import is_quantity, si_key

Overrides = Mapping[str, str] | Sequence[str]

# expands the reference under a key of the source into its model and full mapping
Expand = Callable[[Source], tuple[type[BaseModel], dict[str, Any]]]

# two ways to state one quantity: setting one removes the other
_EITHER_OR: Final[Mapping[str, tuple[str, ...]]] = {
    "global_batch_tokens": ("global_batch_sequences",),
    "global_batch_sequences": ("global_batch_tokens",),
    "num_zones": ("num_hosts",),
    "num_hosts": ("num_zones",),
}

BUILDING_DEFAULTS: Final = "building_defaults"


def parse_overrides(overrides: Overrides) -> list[tuple[str, str]]:
    """Split every override into (dotted path, value as text). Raises InputError for one without ``=``."""
    if isinstance(overrides, Mapping):
        return [(str(key), str(value)) for key, value in overrides.items()]
    if isinstance(overrides, str):
        overrides = [overrides]
    if not isinstance(overrides, list | tuple) or not all(isinstance(text, str) for text in overrides):
        raise InputError(f"overrides: texts KEY=VALUE are expected, e.g. ['degrees.pp=16'], not {overrides!r:.60}")
    pairs = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set {text}: write KEY=VALUE, e.g. --set degrees.pp=16")
        pairs.append((key.strip(), value))
    return pairs


def apply_overrides(
    source: Source, overrides: Overrides, model: type[BaseModel], expand: Mapping[str, Expand]
) -> Source:
    """Apply overrides to ``source``, a mapping of ``model``; the marks of changed parts are their ``--set``.

    ``expand`` lists the keys that may hold a reference. A path below such a key first replaces the reference by its
    full mapping.

    Raises:
        InputError: a path that leads nowhere; the message names the nearest key.
    """
    out = replace(source, data=dict(source.data))
    expanded: dict[str, type[BaseModel]] = {}
    for dotted, text in parse_overrides(overrides):
        label = f"--set {dotted}={text}"
        value = parse_yaml(text, label).data
        top, *below = (int(part) if part.isascii() and part.isdigit() else part for part in dotted.split("."))
        if not below or top not in expand:
            used = _assign(model, (top, *below), out.data, value, label)
            expanded.pop(str(used[0]), None)
        else:
            if top not in out.data:
                raise InputError(f"{label}: '{top}' is not stated, so nothing below it can be changed")
            if top not in expanded:
                expanded[str(top)], out.data[top] = expand[str(top)](out)
            inner = expanded[str(top)]
            for path in _in_buildings(tuple(below), out.data[top], label):
                below_used = _assign(inner, path, out.data[top], value, label)
                _note_origin(inner, out.data[top], below_used, label)
                used = (top, *below_used)
                out = replace(out, marks={**out.marks, used: label})
            continue
        out = replace(out, marks={**out.marks, used: label})
    return out


def _in_buildings(path: KeyPath, data: Mapping[str, Any], label: str) -> list[KeyPath]:
    """Return the paths that ``path`` stands for.

    Reading merged ``building_defaults`` into the buildings, so a path below it becomes one path in every building.
    """
    if path[0] != BUILDING_DEFAULTS or "regions" not in data:
        return [path]
    if len(path) == 1:
        raise InputError(
            f"{label}: name what to change in all buildings, e.g. --set topology.{path[0]}.hosts_per_rack=2"
        )
    sizes = [len(region.get("buildings") or ()) for region in data.get("regions") or ()]
    return [
        ("regions", region, "buildings", building, *path[1:])
        for region, size in enumerate(sizes)
        for building in range(size)
    ]


def _assign(model: type[BaseModel], path: KeyPath, data: dict[str, Any], value: Any, label: str) -> KeyPath:
    """Set ``path`` in ``data``; containers on the way are copied. Returns the path with the keys that were used."""
    here: Any = data
    used: list[str | int] = []
    for index, part in enumerate(path):
        last = index == len(path) - 1
        key: Any
        if isinstance(here, list):
            key = _list_index(here, part, label)
        elif isinstance(here, dict):
            key = _mapping_key(here, part, models_at(model, path[:index]), last, label)
        else:
            raise InputError(f"{label}: '{path[index - 1]}' is a single value and has no '{part}'")
        used.append(key)
        if last:
            here[key] = value
        else:
            child = _own_copy(here[key] if isinstance(here, list) else here.get(key))
            here[key] = child
            here = child
    return tuple(used)


def _note_origin(model: type[BaseModel], data: dict[str, Any], path: KeyPath, label: str) -> None:
    """Mark a changed figure as assumed in the provenance of its closest object that has one.

    The changed figure no longer rests on the file's source.
    """
    end = next((index + 1 for index, part in enumerate(path) if isinstance(part, str) and is_quantity(part)), 0)
    owners = [at for at in range(end) if any(issubclass(m, SourcedSpec) for m in models_at(model, path[:at]))]
    if not owners:
        return
    owner: Any = data
    for part in path[: owners[-1]]:
        owner = owner[part]
    figure = ".".join(part for part in path[owners[-1] : end] if isinstance(part, str))
    kept = {key: origin for key, origin in (owner.get("provenance") or {}).items() if _si(key) != _si(figure)}
    owner["provenance"] = {**kept, figure: {"source": label, "status": "assumed"}}


def _si(key: str) -> str:
    """``key`` in its SI spelling."""
    hit = si_key(key)
    return hit[0] if hit else key


def _own_copy(container: Any) -> Any:
    """Return a copy of a container; None becomes an empty mapping, a single value is returned as it is."""
    if container is None:
        return {}
    if isinstance(container, dict):
        return dict(container)
    return list(container) if isinstance(container, list | tuple) else container


def _list_index(here: list[Any], part: str | int, label: str) -> int:
    if not isinstance(part, int) or part >= len(here):
        raise InputError(f"{label}: '{part}' is no item of a list of {len(here)}; items are numbered from 0")
    return part


def _mapping_key(here: dict[str, Any], part: str | int, models: list[type[BaseModel]], last: bool, label: str) -> str:
    """Return the key of ``here`` that ``part`` refers to.

    If it is the ``last`` part, the same quantity under another unit is removed.
    """
    part = str(part)
    names = {name for model in models for name in model.model_fields}
    spellings = {key for model in models for key in known_keys(model, EXTRA_KEYS)}
    if models and part not in spellings:
        raise InputError(f"{label}: no key '{part}'; {advice_for_key(part, models[0], EXTRA_KEYS)}")
    if not models and part not in here and not last:  # a free key, which its field checks
        raise InputError(f"{label}: no key '{part}'; {nearest(part, here)}")
    si_name = part if part in names else _si(part)
    same = [key for key in here if key != part and _si(key) == si_name]
    if same and not last:
        return same[0]
    for key in (*same, *_EITHER_OR.get(part, ())):
        here.pop(key, None)
    return part
