"""Region > Building > Zone > Rack > Host > Accelerator, by counts; inter-building links (``Trunk``) form a graph.

The scale-up domain (NVLink) is a level of its own: it is either a host (8 accelerators) or a rack (72).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from scaleacross.errors import InputError
from scaleacross.spec.accelerator import Accelerator, HostShare
from scaleacross.spec.base import HostName, Name, SourcedSpec, Spec
from scaleacross.spec.hostlist import expand_hosts
from scaleacross.spec.network import LevelLink, LinkLevel, Trunk
from scaleacross.spec.reliability import Failures

MAX_ACCELERATORS = 1_048_576
"""Largest topology accepted: rank tables are written out rank by rank, and nothing larger exists to check them on."""
MAX_BUILDINGS = 128
"""Largest number of buildings: up to it the search keeps its time limit, as it tries orders and subsets of them."""


class BuildingLinks(Spec):
    """The four networks inside a building, innermost first."""

    scale_up: LevelLink = Field(description="inside a scale-up (NVLink) domain")
    rack: LevelLink = Field(description="between scale-up domains of one rack")
    zone: LevelLink = Field(description="between racks of one zone")
    building: LevelLink = Field(description="between zones of one building")


class HostMemory(Spec):
    """Memories of a host besides HBM: for embedding tables, offloaded activations and offloaded optimizer states."""

    memory_bytes: PositiveFloat = Field(description="host memory that a job may fill, bytes")
    memory_bandwidth_bytes_per_s: PositiveFloat = Field(
        description="of that memory, shared by the accelerators, bytes/s"
    )
    link_bandwidth_bytes_per_s: PositiveFloat = Field(
        description="between host memory and one accelerator, per direction, bytes/s"
    )
    ssd_bytes: float = Field(default=0.0, ge=0, description="solid-state storage that a job may fill, bytes")
    ssd_bandwidth_bytes_per_s: PositiveFloat | None = Field(
        default=None, description="random reads, whole host, bytes/s"
    )

    @model_validator(mode="after")
    def _ssd_has_a_rate(self) -> HostMemory:
        if self.ssd_bytes and self.ssd_bandwidth_bytes_per_s is None:
            raise ValueError("ssd_bytes without ssd_bandwidth_bytes_per_s: state how fast rows come from it")
        return self


class Building(SourcedSpec):
    """One building, by counts: ``num_zones`` full zones, or ``num_hosts`` (the last zone may then be part-filled)."""

    name: Name
    accelerator: Accelerator
    accelerators_per_host: PositiveInt
    hosts_per_rack: PositiveInt
    racks_per_zone: PositiveInt
    num_zones: PositiveInt | None = None
    num_hosts: PositiveInt | None = None
    host_names: tuple[HostName, ...] = Field(
        default=(),
        description="names of the first hosts, rack by rack, as the cluster knows them; a file may write hosts: node[001-064]. "
        "Hosts without one are called <building>-h<number> in emitted files",
    )
    scale_up_domain: Literal["host", "rack"] = Field(
        default="host", description="the unit that one scale-up fabric joins"
    )
    links: BuildingLinks
    host: HostMemory | None = Field(
        default=None,
        description="memories besides HBM: needed to keep tables there; for offloads in place of the accelerator's own host",
    )
    power_usage_effectiveness_ratio: float | None = Field(
        default=None,
        ge=1,
        description="power of the whole building over that of its machines (PUE); needed by the energy objective",
    )
    accelerator_price_per_hour: float | None = Field(
        default=None, ge=0, description="currency units per accelerator and hour here; default: the accelerator's own"
    )
    price_per_hour: float = Field(
        default=0.0,
        ge=0,
        description="currency units per hour for the building as such (lease, staff), however many of its accelerators work",
    )

    @model_validator(mode="before")
    @classmethod
    def _hosts_become_names(cls, data: Any) -> Any:
        """Expand ``hosts``, a host list or several, into ``host_names``; without a size it sets ``num_hosts``, too."""
        if not isinstance(data, dict) or "hosts" not in data:
            return data
        data = dict(data)
        given = data.pop("hosts")
        if "host_names" in data or not isinstance(given, str | list | tuple) or not given:
            raise ValueError("hosts: a host list such as node[001-064] is expected, or a list of names")
        parts = [given] if isinstance(given, str) else given
        names = [name for part in parts for name in expand_hosts(str(part))]
        if data.get("num_zones") is None and data.get("num_hosts") is None:
            data["num_hosts"] = len(names)
        return {**data, "host_names": names}

    @model_validator(mode="after")
    def _names_differ_and_fit(self) -> Building:
        if len(self.host_names) > self.hosts:
            raise ValueError(f"building '{self.name}': {len(self.host_names):,} host names for {self.hosts:,} hosts")
        if len(set(self.host_names)) < len(self.host_names):
            twice = next(name for name, times in Counter(self.host_names).items() if times > 1)
            raise ValueError(f"building '{self.name}': host '{twice}' is listed twice")
        return self

    def host_name(self, index: int) -> str:
        """Name of a host in emitted files: the stated one, else ``<building>-h00042``."""
        return self.host_names[index] if index < len(self.host_names) else f"{self.name}-h{index:05d}"

    @model_validator(mode="after")
    def _size_is_stated_once(self) -> Building:
        if (self.num_zones is None) == (self.num_hosts is None):
            raise ValueError(f"building '{self.name}': state exactly one of num_zones and num_hosts")
        return self

    @property
    def host_share(self) -> HostShare | None:
        """One accelerator's share of its host: from the building's ``host`` if stated, else its own figures."""
        if self.host is None:
            return self.accelerator.host
        return HostShare(
            memory_bytes=self.host.memory_bytes / self.accelerators_per_host,
            memory_bandwidth_bytes_per_s=self.host.memory_bandwidth_bytes_per_s / self.accelerators_per_host,
            link_bandwidth_bytes_per_s=self.host.link_bandwidth_bytes_per_s,
        )

    @property
    def hosts(self) -> int:
        """Number of hosts in the building."""
        if self.num_hosts is not None:
            return self.num_hosts
        return (self.num_zones or 0) * self.racks_per_zone * self.hosts_per_rack

    @property
    def num_accelerators(self) -> int:
        """Number of accelerators in the building."""
        return self.hosts * self.accelerators_per_host

    @property
    def line_rate_bytes_per_s(self) -> float:
        """Highest rate at which one accelerator sends out of the building, bytes/s."""
        technology = self.links.building.technology
        return technology.bandwidth_bytes_per_s * technology.efficiency_fraction

    def accelerators_per(self, level: LinkLevel) -> int:
        """Accelerators in one unit that ``level``'s link joins: scale-up domain, rack, zone, or the whole building."""
        per_rack = self.accelerators_per_host * self.hosts_per_rack
        return {
            "scale_up": self.accelerators_per_host if self.scale_up_domain == "host" else per_rack,
            "rack": per_rack,
            "zone": per_rack * self.racks_per_zone,
        }.get(level, self.num_accelerators)


class Region(Spec):
    """Buildings close enough that links between them count as ``campus``."""

    name: Name
    buildings: tuple[Building, ...] = Field(min_length=1)


class Topology(SourcedSpec):
    """Buildings that a job may use, and their links; ``building_defaults`` of a file are merged into each building."""

    name: Name
    description: str = ""
    regions: tuple[Region, ...] = Field(min_length=1)
    trunks: tuple[Trunk, ...] = ()
    routed_message_bytes: float = Field(
        default=2.0**30,
        ge=0,
        description="traffic between two buildings takes the path that this many bytes pass soonest, link after link; "
        "0: the path of least latency",
    )
    currency: Name | None = Field(
        default=None, description="unit of all prices, e.g. USD; needed by the cost objective"
    )
    reliability: Failures | None = Field(default=None, description="how often its parts fail; None: not known")

    @model_validator(mode="before")
    @classmethod
    def _expand_defaults(cls, data: Any) -> Any:
        return expand_building_defaults(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _names_and_trunks_agree(self) -> Topology:
        names = [building.name for building in self.buildings]
        if len(names) > MAX_BUILDINGS:
            raise ValueError(
                f"{len(names):,} buildings; at most {MAX_BUILDINGS} are planned as one job: split the topology, "
                "or join neighbours"
            )
        for name, times in Counter(names).items():
            if times > 1:
                raise ValueError(f"two buildings are called '{name}': names must differ")
        for trunk in self.trunks:
            for end in trunk.between:
                if end not in names:
                    raise ValueError(
                        f"trunk {trunk.between[0]}–{trunk.between[1]}: no building '{end}'; there are {names}"
                    )
            if trunk.between[0] == trunk.between[1]:
                raise ValueError(f"trunk {trunk.between[0]}–{trunk.between[1]} joins a building to itself")
        for pair, times in Counter(frozenset(trunk.between) for trunk in self.trunks).items():
            if times > 1:
                raise ValueError(
                    f"trunk {'–'.join(sorted(pair))} is stated {times} times: state it once, with the bandwidth of all its links"
                )
        named = Counter(name for building in self.buildings for name in building.host_names)
        for name, times in named.items():
            if times > 1:
                raise ValueError(f"host '{name}' stands in {times} buildings: names of hosts must differ")
        unreachable = set(names) - self._reachable_from(names[0])
        if unreachable:
            raise ValueError(
                f"no trunk path from '{names[0]}' to {sorted(unreachable)}: add a trunk or plan them apart"
            )
        if self.num_accelerators > MAX_ACCELERATORS:
            raise ValueError(
                f"{self.num_accelerators:,} accelerators; at most {MAX_ACCELERATORS:,} are planned as one job: "
                "split them into separate topologies"
            )
        return self

    def _reachable_from(self, start: str) -> set[str]:
        seen, frontier = {start}, [start]
        while frontier:
            here = frontier.pop()
            for trunk in self.trunks:
                if here in trunk.between:
                    there = trunk.between[1] if trunk.between[0] == here else trunk.between[0]
                    if there not in seen:
                        seen.add(there)
                        frontier.append(there)
        return seen

    @property
    def buildings(self) -> tuple[Building, ...]:
        """All buildings, region by region, in the order of the file."""
        return tuple(building for region in self.regions for building in region.buildings)

    @property
    def num_accelerators(self) -> int:
        """Accelerators of all buildings together."""
        return sum(building.num_accelerators for building in self.buildings)

    def building(self, name: str) -> Building:
        """The building called ``name``. Raises KeyError when there is none."""
        return {building.name: building for building in self.buildings}[name]

    def region_of(self, building_name: str) -> str:
        """Name of the region that holds ``building_name``. Raises KeyError when there is none."""
        return {building.name: region.name for region in self.regions for building in region.buildings}[building_name]


def expand_building_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """Return a topology's mapping with ``building_defaults`` merged under every building and then removed.

    Raises:
        ValueError: ``building_defaults`` is no mapping.
    """
    if "building_defaults" not in data:
        return data
    data = dict(data)
    defaults = data.pop("building_defaults")
    if not isinstance(defaults, dict):
        raise ValueError("building_defaults: a mapping of building fields is expected")
    regions = []
    for region in data.get("regions") or ():
        if isinstance(region, dict) and isinstance(region.get("buildings"), list | tuple):
            region = {**region, "buildings": [_merge(defaults, building) for building in region["buildings"]]}
        regions.append(region)
    return {**data, "regions": regions}


def _merge(under: Any, over: Any) -> Any:
    """Lay ``over`` on ``under``, nested mappings key by key; an accelerator or technology is replaced as a whole."""
    if isinstance(under, dict) and isinstance(over, dict):
        whole = ("accelerator", "technology")
        return {
            **under,
            **{key: value if key in whole else _merge(under.get(key), value) for key, value in over.items()},
        }
    return over


def with_host_shares(topology: Topology) -> Topology:
    """Set ``host`` on every accelerator; an accelerator type in several buildings gets the least of each figure.

    Raises:
        InputError: a building states no host and its accelerator has none.
    """
    shares: dict[str, list[HostShare]] = {}
    for building in topology.buildings:
        if building.host_share is None:
            raise InputError(
                f"building '{building.name}': nothing says what its {building.accelerator.name} can offload to; state host: "
                "{memory_gib, memory_bandwidth_gbyte_per_s, link_bandwidth_gbyte_per_s} of the building, or set "
                "activation_offload and optimizer_offload to 0 and leave host out of drivers"
            )
        shares.setdefault(building.accelerator.name, []).append(building.host_share)
    least = {
        name: HostShare(**{figure: min(getattr(one, figure) for one in each) for figure in HostShare.model_fields})
        for name, each in shares.items()
    }

    def shared(building: Building) -> Building:
        own = building.accelerator
        return building.model_copy(update={"accelerator": own.model_copy(update={"host": least[own.name]})})

    regions = tuple(
        region.model_copy(update={"buildings": tuple(shared(one) for one in region.buildings)})
        for region in topology.regions
    )
    return topology.model_copy(update={"regions": regions})


def without_spares(topology: Topology, spare_hosts: dict[str, int]) -> Topology:
    """Return the topology that a job may use: every building loses its last ``spare_hosts`` hosts.

    Inter-building links keep their capacity. A building without hosts left is removed together with its links.

    Raises:
        InputError: an unknown building, more hosts than one has, no host left, or an excluded building that alone joins
            others.
    """
    if not any(spare_hosts.values()):
        return topology
    sizes = {building.name: building for building in topology.buildings}
    for name, spare in spare_hosts.items():
        if name not in sizes:
            raise InputError(f"spare_hosts: no building '{name}'; there are {', '.join(sizes)}")
        if spare > sizes[name].hosts:
            raise InputError(f"spare_hosts: {spare} hosts of '{name}' are held back, and it has {sizes[name].hosts}")
    used = [name for name, building in sizes.items() if spare_hosts.get(name, 0) < building.hosts]
    if not used:
        raise InputError("spare_hosts: every host of every building is held back: none is left to use")
    regions = tuple(
        region.model_copy(
            update={
                "buildings": tuple(_without(b, spare_hosts.get(b.name, 0)) for b in region.buildings if b.name in used)
            }
        )
        for region in topology.regions
    )
    trunks = tuple(
        trunk.model_copy(update={"bandwidth_bytes_per_s": trunk_bytes_per_s(topology, trunk)})
        for trunk in topology.trunks
    )
    left = with_buildings(topology.model_copy(update={"regions": regions, "trunks": trunks}), used)
    apart = [name for name in used if name not in left._reachable_from(used[0])]
    if apart:
        raise InputError(
            f"spare_hosts: only buildings held back whole join '{used[0]}' with {', '.join(apart)}: leave a host, or add a trunk"
        )
    return left


def with_buildings(topology: Topology, kept: Collection[str]) -> Topology:
    """Return the topology reduced to the buildings ``kept`` and the links between them."""
    left = ((one, tuple(b for b in one.buildings if b.name in kept)) for one in topology.regions)
    regions = tuple(region.model_copy(update={"buildings": buildings}) for region, buildings in left if buildings)
    trunks = tuple(trunk for trunk in topology.trunks if set(trunk.between) <= set(kept))
    return topology.model_copy(update={"regions": regions, "trunks": trunks})


def _without(building: Building, spare: int) -> Building:
    left = building.hosts - spare
    update = {"num_hosts": left, "num_zones": None, "host_names": building.host_names[:left]}
    return building.model_copy(update=update) if spare else building


def trunk_bytes_per_s(topology: Topology, trunk: Trunk) -> float:
    """Capacity of an inter-building link before oversubscription and efficiency, bytes/s per direction.

    Without a stated bandwidth it is the smaller of the two buildings' line rates, each summed over all accelerators.
    """
    if trunk.bandwidth_bytes_per_s is not None:
        return trunk.bandwidth_bytes_per_s
    ends = [topology.building(name) for name in trunk.between]
    return min(end.line_rate_bytes_per_s * end.num_accelerators for end in ends)


def attainable_trunk_bytes_per_s(topology: Topology, trunk: Trunk) -> float:
    """Rate that all flows of a job reach together on an inter-building link, bytes/s per direction."""
    return trunk_bytes_per_s(topology, trunk) * trunk.efficiency_fraction / trunk.oversubscription_ratio
