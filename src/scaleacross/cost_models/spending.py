"""What a step spends: joules or currency units, linear in step time and computation for a given allocation.

    energy = Σ_b PUE_b · n_b · (P_idle,b · T + (P_load,b − P_idle,b) · C)
    money  = (Σ_b n_b · price_b + Σ_b building_b + Σ_l link_l)/3600 · T  +  egress      (``egress.py``)

T is the step time and n_b the accelerators used in building b. C is the computation of the busiest stage
(``CostBreakdown.compute_s``): every accelerator of the job is assumed to compute as long as that one and to wait for
the rest of the step. Accelerators of a building that the job leaves idle belong to others: neither their power nor
their price is counted. building_b is the hourly price of a building that the job uses, link_l that of a link on the
path between two such buildings.

Tokens/s per megawatt are tokens per step over megajoules per step. Tokens/s per currency unit and second are tokens per
step over currency units per step. The maximum of either is the least spending, because the tokens of a step are given.

Under failures a step of useful tokens takes T/G of wall time (``goodput``, G the useful share). Time without training
spends the same as waiting time, idle power or the price. So T/G replaces T above, and C and egress are counted once.
Work that is done again after a restart is assumed to spend idle power as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.egress import Patterns, egress_price, hop_prices
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.errors import InputError
from scaleacross.spec.job import ObjectiveName
from scaleacross.spec.placement import BuildingShare
from scaleacross.spec.plan import Decision
from scaleacross.spec.topology import Building, Topology
from scaleacross.spec.trunk_paths import TrunkPaths

MEGA = 1e6
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Rate:
    """What one accelerator of a building spends per second of the step, and additionally per second of computation."""

    step_per_s: float
    compute_per_s: float


@dataclass(frozen=True)
class SitePrices:
    """Hourly prices of buildings and inter-building links of one topology."""

    topology: Topology

    def per_s(self, used: Sequence[str]) -> float:
        """Currency units per second of the buildings in ``used`` and of the links on the routes between them."""
        buildings, links = self._parts
        crossed = set()
        if links:
            for here, there in combinations(used, 2):
                crossed |= {frozenset(trunk.between) for trunk in self._paths.between(here, there).trunks}
        hourly = sum(buildings.get(name, 0.0) for name in used) + sum(links.get(link, 0.0) for link in crossed)
        return hourly / SECONDS_PER_HOUR

    def least_per_s(self, buildings: Sequence[Building], num_accelerators: Floats) -> Floats:
        """Lower bound on ``per_s`` of those of these buildings that hold so many accelerators, (n,).

        If the k largest buildings are needed to hold them, at least k are used. These cost at least as much as the k
        least expensive ones, and routes between k buildings pass k − 1 links or more.
        """
        prices, links = self._parts
        held = np.cumsum(sorted((one.num_accelerators for one in buildings), reverse=True))
        least = np.minimum(np.searchsorted(held, num_accelerators), len(buildings) - 1)  # k − 1
        # links without a price may make up the k − 1 least expensive ones
        free = [0.0] * max(0, len(self.topology.trunks) - len(links))
        of_links = np.cumsum([0.0, *sorted([*free, *links.values()])])
        of_buildings = np.cumsum(sorted(prices.get(one.name, 0.0) for one in buildings))
        hourly: Floats = of_buildings[least] + of_links[np.minimum(least, len(of_links) - 1)]
        return hourly / SECONDS_PER_HOUR

    @property
    def owned_per_s(self) -> float:
        """Currency units per second of every building and link of the topology."""
        buildings, links = self._parts
        return (sum(buildings.values()) + sum(links.values())) / SECONDS_PER_HOUR

    @cached_property
    def _parts(self) -> tuple[dict[str, float], dict[frozenset[str], float]]:
        buildings = {one.name: one.price_per_hour for one in self.topology.buildings if one.price_per_hour}
        return buildings, {
            frozenset(one.between): one.price_per_hour for one in self.topology.trunks if one.price_per_hour
        }

    @cached_property
    def _paths(self) -> TrunkPaths:
        return TrunkPaths(self.topology)


@dataclass(frozen=True)
class Spending:
    """Rates at which an objective counts spending on a topology.

    Attributes:
        unit: of what is spent.
        scale: ``unit`` per unit that tokens are counted per: 1e6 J for megawatts, 1 for currency units.
        rates: of one accelerator, by building.
        pays_egress: whether egress and hourly prices count, else energy.
        sites: hourly prices; None where only energy counts.
    """

    name: ObjectiveName
    unit: str
    scale: float
    rates: Mapping[str, Rate]
    pays_egress: bool
    sites: SitePrices | None = None

    def parts(
        self, allocation: Sequence[BuildingShare], step_s: float, compute_s: float, egress: float
    ) -> dict[str, float]:
        """Parts of what a step spends, in ``unit``; ``egress`` counts only for objectives that pay for it."""
        waiting = sum(share.num_accelerators * self.rates[share.building].step_per_s for share in allocation) * step_s
        computing = (
            sum(share.num_accelerators * self.rates[share.building].compute_per_s for share in allocation) * compute_s
        )
        if self.pays_egress:
            sites = self.sites.per_s(tuple(share.building for share in allocation)) * step_s if self.sites else 0.0
            return {"accelerators": waiting, **({"buildings and links": sites} if sites else {}), "egress": egress}
        return {"idle power": waiting, "computation": computing}

    def value(self, tokens: int, spent: float) -> float:
        """Tokens/s per megawatt, or per currency unit and second."""
        return tokens * self.scale / spent


def spent_parts(
    topology: Topology,
    spending: Spending,
    decision: Decision,
    cost: PlanCost,
    patterns: Mapping[str, Patterns],
    wall_s: float | None = None,
) -> dict[str, float]:
    """Parts of what a step of a placed decision spends.

    Args:
        patterns: of every axis, ``ep`` and ``expert``.
        wall_s: wall time per step of useful tokens, s, where failures count.
    """
    allocation = cost.placement.fill
    egress = 0.0
    if spending.pays_egress:
        egress = egress_price(cost.sent, patterns, hop_prices(topology, allocation), decision.pipeline.num_chunks)
    parts = spending.parts(allocation, cost.cost.step_s, cost.cost.compute_s, egress)
    if wall_s is not None:
        more = spending.parts(allocation, wall_s, cost.cost.compute_s, egress)
        parts["failures"] = sum(more.values()) - sum(parts.values())
    return parts


def spending_of(topology: Topology, name: ObjectiveName) -> Spending:
    """The figures of an objective other than step time.

    Raises:
        InputError: figures are missing; each is named with its place.
    """
    missing = list(_missing(topology, name))
    if missing:
        raise InputError(
            f"objective {name} needs figures that topology '{topology.name}' does not state:\n"
            + "\n".join(f"- {line}" for line in missing)
        )
    if name.endswith("per_megawatt"):
        return Spending(name, "J", MEGA, {b.name: _power(b) for b in topology.buildings}, pays_egress=False)
    rates = {b.name: Rate((_price_per_hour(b) or 0.0) / SECONDS_PER_HOUR, 0.0) for b in topology.buildings}
    return Spending(name, topology.currency or "", 1.0, rates, pays_egress=True, sites=SitePrices(topology))


def objective_spending(topology: Topology, name: ObjectiveName) -> Spending:
    """The figures of an objective that a plan is chosen by, all above 0: bounds on what a plan spends divide tokens.

    Raises:
        InputError: figures are missing, or accelerators of a building are free.
    """
    spending = spending_of(topology, name)
    free = [place for place, rate in spending.rates.items() if not rate.step_per_s + rate.compute_per_s]
    if free:
        raise InputError(
            f"objective {name} divides by what is paid, and an accelerator of {', '.join(map(repr, free))} is free: state "
            "accelerator_price_per_hour above 0, for hardware of your own what running it costs (power, staff)"
        )
    return spending


def _missing(topology: Topology, name: ObjectiveName) -> Iterator[str]:
    needs_power = name.endswith("per_megawatt")
    for region_index, region in enumerate(topology.regions):
        for index, building in enumerate(region.buildings):
            place = f"topology.regions.{region_index}.buildings.{index}"
            for field, value in _figures(building, needs_power):
                if value is None:
                    yield f"{place}.{field} (building '{building.name}')"
    if not needs_power:
        if topology.currency is None:
            yield "topology.currency"
        for index, trunk in enumerate(topology.trunks):
            if trunk.egress_price_per_byte is None:
                yield f"topology.trunks.{index}.egress_price_per_gb (trunk {' – '.join(trunk.between)}; 0 if free)"


def _figures(building: Building, needs_power: bool) -> Iterator[tuple[str, float | None]]:
    if needs_power:
        yield "power_usage_effectiveness_ratio", building.power_usage_effectiveness_ratio
        yield "accelerator.load_power_watt", building.accelerator.load_power_watt
        yield "accelerator.idle_power_watt", building.accelerator.idle_power_watt
    else:
        yield "accelerator_price_per_hour (or accelerator.price_per_hour)", _price_per_hour(building)


def _price_per_hour(building: Building) -> float | None:
    own = building.accelerator_price_per_hour
    return building.accelerator.price_per_hour if own is None else own


def _power(building: Building) -> Rate:
    pue = building.power_usage_effectiveness_ratio or 1.0
    idle, load = building.accelerator.idle_power_watt or 0.0, building.accelerator.load_power_watt or 0.0
    return Rate(pue * idle, pue * (load - idle))
