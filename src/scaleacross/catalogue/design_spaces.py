"""Load design spaces and draw their points, each with its job."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from scaleacross.catalogue.jobs import job_from
from scaleacross.catalogue.load import Reference, load_accelerator, load_network, load_workload, read
from scaleacross.catalogue.overrides import Overrides, apply_overrides
from scaleacross.catalogue.validation import validate
from scaleacross.catalogue.yaml_source import Source
from scaleacross.errors import InputError
from scaleacross.spec.design_space import DesignSpace, Distance, can_be_built
from scaleacross.spec.job import Job


@dataclass(frozen=True)
class DesignPoint:
    """One combination and its job. ``fields``: axis -> value as a table shows it."""

    fields: Mapping[str, Any]
    job: Job


def load_design_space(ref: Reference | DesignSpace, overrides: Overrides = ()) -> tuple[DesignSpace, Path | None]:
    """Load a design space by catalogue name, path or mapping; return it with the folder at which its paths start.

    ``overrides``: ``a.b=value`` on its fields. Raises InputError.
    """
    if isinstance(ref, DesignSpace):
        if not overrides:
            return ref, None
        ref = ref.model_dump(mode="json")
    source = read("studies", ref)
    if source.data.get("command") != "reproduce":
        raise InputError(f"{source.label} is no design space (command: reproduce); run it with 'scaleacross sweep'")
    source = apply_overrides(source, overrides, DesignSpace, {})
    return validate(DesignSpace, source), source.folder


def draw(space: DesignSpace, count: int | None = None) -> list[dict[str, Any]]:
    """Draw ``count`` different combinations (default: as the space says); a larger count extends a smaller one.

    Each axis deals its values from a shuffled pile that is renewed when empty, so every value is drawn about equally
    often, in every prefix too. When new combinations become rare, the remaining ones follow in shuffled order.
    """
    every = space.combinations
    wanted, dice = min(count or space.points, len(every)), random.Random(space.seed)
    piles: dict[str, list[Any]] = {axis: [] for axis in space.values}
    drawn: dict[str, dict[str, Any]] = {}
    # bounded, because the piles may go on dealing combinations that were drawn before
    for _ in range(4 * len(every)):
        for axis, pile in piles.items():
            if not pile:
                pile += dice.sample(space.values[axis], len(space.values[axis]))
        values = {axis: pile.pop() for axis, pile in piles.items()}
        if can_be_built(values):
            drawn.setdefault(repr(values), values)
        if len(drawn) == wanted:
            break
    rest = [values for values in every if repr(values) not in drawn]
    return [*drawn.values(), *dice.sample(rest, wanted - len(drawn))]


def design_points(space: DesignSpace, folder: Path | None = None, count: int | None = None) -> list[DesignPoint]:
    """Return the drawn points. Raises InputError if a job cannot be built from the space."""
    loaded = space.model_copy(
        update={"kinds": _in_full(space.kinds, folder), "building_defaults": _in_full(space.building_defaults, folder)}
    )
    workloads = {name: load_workload(name, folder).model_dump(mode="json") for name in space.model}
    return [_point(loaded, values, workloads[values["model"]], folder) for values in draw(space, count)]


def _in_full(value: Any, folder: Path | None, known: dict[str, Any] | None = None) -> Any:
    """Replace names of catalogue entries by the entries; each is read once."""
    known = {} if known is None else known
    loaders: dict[str, Callable[..., BaseModel]] = {"accelerator": load_accelerator, "technology": load_network}
    out = {}
    for key, item in value.items():
        if key in loaders and isinstance(item, str):
            known[item] = known.get(item) or loaders[key](item, folder).model_dump(mode="json")
            out[key] = known[item]
        else:
            out[key] = _in_full(item, folder, known) if isinstance(item, dict) else item
    return out


def _point(space: DesignSpace, values: dict[str, Any], workload: dict[str, Any], folder: Path | None) -> DesignPoint:
    length, accelerators = space.model[values["model"]], values["accelerators"]
    rule, distance = space.tokens_per_step, values["distance"]
    fields = {
        "model": values["model"],
        "accelerators": accelerators,
        "fleet": "+".join(values["fleet"]),
        "buildings": values["buildings"],
        "regions": distance.num_regions or values["buildings"],
        "latency_ms": round(distance.one_way_latency_s * 1e3, 9),
        "oversubscription": values["oversubscription"],
    }
    name = "_".join(str(value).replace("+", "-") for value in fields.values())
    data = {
        "name": name[-64:].lstrip("._-"),
        "workload": workload,
        "topology": topology_of(space, values),
        "sequence_length": length,
        "global_batch_tokens": max(rule.least, rule.per_accelerator * accelerators) // length * length,
        **space.job,
    }
    return DesignPoint(fields, job_from(Source(f"design space '{space.name}'", data, folder=folder)))


def topology_of(space: DesignSpace, values: Mapping[str, Any]) -> dict[str, Any]:
    """Buildings and links of a combination, as a topology file would state them."""
    count, distance, kinds = values["buildings"], values["distance"], values["fleet"]
    per_host = space.building_defaults.get("accelerators_per_host", 8)
    hosts = values["accelerators"] // per_host
    buildings = [
        {"name": f"building-{index}", "num_hosts": hosts // count + (index < hosts % count)}
        | space.kinds[kinds[index % len(kinds)]]
        for index in range(count)
    ]
    regions = distance.num_regions or count
    home = [index * regions // count for index in range(count)]
    return {
        "name": "fleet",
        "building_defaults": space.building_defaults,
        "regions": [
            {
                "name": f"region-{region}",
                "buildings": [b for b, own in zip(buildings, home, strict=True) if own == region],
            }
            for region in range(regions)
        ],
        "trunks": [
            {
                "between": [buildings[here]["name"], buildings[there]["name"]],
                # a building's links to all others share its outgoing bandwidth
                "oversubscription_ratio": values["oversubscription"] * (count - 1),
                "one_way_latency_s": _latency_s(space, distance, regions, home[here] == home[there]),
            }
            for here, there in combinations(range(count), 2)
        ],
    }


def _latency_s(space: DesignSpace, distance: Distance, regions: int, same_region: bool) -> float:
    return space.latency_in_region_s if same_region and regions > 1 else distance.one_way_latency_s
