"""The worth of each building to a recommendation plan: the best plan without it, and the differences between the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from scaleacross.api.recommendation import plan_recommendation
from scaleacross.catalogue.recommendation import load_recommendation_job
from scaleacross.errors import InfeasibleError, InputError, TimeLimitError
from scaleacross.spec.recommendation import TIERS, BuildingValue, RankLoad, RecommendationPlan, TablePlacement
from scaleacross.spec.topology import Topology, with_buildings
from scaleacross.units import human_seconds

_LEAST_CHANGE = 0.02
"""Smallest reported change, as a fraction of the step or of a memory."""


def building_values(
    plan: RecommendationPlan, topology: Topology, used: Sequence[str], limit_s: float
) -> tuple[BuildingValue, ...]:
    """Return the plan without each of the buildings it uses; ``limit_s`` seconds of search are shared by all of them."""
    return tuple(_without(plan, topology, name, limit_s / len(used)) for name in used)


def _without(plan: RecommendationPlan, topology: Topology, name: str, limit_s: float) -> BuildingValue:
    others = with_buildings(topology, [building.name for building in topology.buildings if building.name != name])
    left = others.model_dump(mode="json", exclude_none=True)
    job: dict[str, Any] = plan.job.model_dump(mode="json", exclude_none=True) | {"topology": left}
    if plan.job.num_accelerators is not None:
        room = topology.num_accelerators - topology.building(name).num_accelerators
        job["num_accelerators"] = min(plan.job.num_accelerators, room)
    try:
        own, _, _ = load_recommendation_job(job)
        other = plan_recommendation(own, time_limit_s=limit_s, gap_tolerance=0.01)
    except (InfeasibleError, InputError, TimeLimitError) as error:
        return BuildingValue(building=name, reason=str(error))
    cost = other.cost
    return BuildingValue(
        building=name, step_s=cost.step_s, samples_per_s=cost.samples_per_s, changes=tuple(_changes(other, plan))
    )


def _changes(before: RecommendationPlan, after: RecommendationPlan) -> list[str]:
    """Describe changes in the busiest rank's times, memories and tables per kind, from ``before`` to ``after``."""
    own, new = _busiest(before), _busiest(after)
    parts = [
        ("look-ups", own.lookup_s, new.lookup_s),
        ("exchange", own.exchange_s, new.exchange_s),
        ("average over groups", own.sync_s, new.sync_s),
        ("dense networks", before.cost.dense_s, after.cost.dense_s),
        ("all-reduce of dense gradients", before.cost.all_reduce_s, after.cost.all_reduce_s),
    ]
    parts.sort(key=lambda part: -abs(part[2] - part[1]))
    # small changes of a part say nothing about a building
    least = _LEAST_CHANGE * max(before.cost.step_s, after.cost.step_s)
    said = [f"{name} {human_seconds(a)} to {human_seconds(b)}" for name, a, b in parts if abs(b - a) > least]
    for tier in TIERS:
        full = [_fullest(plan, tier) for plan in (before, after)]
        if abs(full[1] - full[0]) > _LEAST_CHANGE:
            said.append(f"{tier.replace('_', ' ')} of the fullest rank {full[0]:.0%} to {full[1]:.0%}")
    kinds = [Counter(map(_said, plan.decision.tables)) for plan in (before, after)]
    for kind in dict.fromkeys((*kinds[0], *kinds[1])):
        if kinds[0][kind] != kinds[1][kind]:
            said.append(f"{kind} tables {kinds[0][kind]} to {kinds[1][kind]}")
    return said


def _said(one: TablePlacement) -> str:
    cached = "" if one.cache_fraction is None else f" ({one.cache_fraction:.3g} cached)"
    return f"{one.sharding} {one.kernel}{cached}"


def _busiest(plan: RecommendationPlan) -> RankLoad:
    return max(plan.ranks, key=lambda load: load.seconds)


def _fullest(plan: RecommendationPlan, tier: Any) -> float:
    return max(load.memory_bytes[tier] / (load.capacity_bytes[tier] or 1.0) for load in plan.ranks)
