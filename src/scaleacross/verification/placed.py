"""V1: the devices of a placement exist, add up to the degrees, and can talk to each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from scaleacross.cost_models.levels import library_conflict
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.placement import Placement
from scaleacross.spec.topology import Topology


def v1_devices(topology: Topology, degrees: Degrees, placement: Placement) -> Iterator[str]:
    """Yield every violation of V1 by a placement, with its numbers."""
    sizes = {building.name: building for building in topology.buildings}
    for name, times in Counter(share.building for share in placement.fill).items():
        if times > 1:
            yield f"V1: building '{name}' stands {times} times in placement.fill"
    for share in placement.fill:
        building = sizes.get(share.building)
        if building is None:
            yield f"V1: there is no building '{share.building}'"
            continue
        if share.num_accelerators > building.num_accelerators:
            has = f"{building.num_accelerators} of {share.num_accelerators} accelerators"
            yield f"V1: building '{share.building}' has {has}"
        if share.num_accelerators % building.accelerators_per_host and len(placement.fill) > 1:
            host = building.accelerators_per_host
            yield f"V1: {share.num_accelerators} accelerators of '{share.building}' cut a host of {host}"
    used = [sizes[share.building] for share in placement.fill if share.building in sizes]
    if conflict := library_conflict(used):
        yield f"V1: {conflict}"
    if placement.num_accelerators != degrees.world_size:
        yield f"V1: the placement holds {placement.num_accelerators} accelerators, the degrees need {degrees}"
    lanes = [axis for axis in ("tp", "cp") if degrees.model_dump()[axis] > 1] if degrees.expert_lanes > 1 else []
    order = [axis for axis in placement.axis_order if degrees.of(axis) > 1]
    if lanes and sorted(order[: order.index("dp_shard")][-len(lanes) :]) != sorted(lanes):
        yield f"V1: experts on the lanes of tp and cp ask for dp_shard right behind them; the order is {' '.join(order)}"
