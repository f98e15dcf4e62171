"""What a failure takes from a plan, and how fast the plan runs without it.

* A unit (zone or building) is lost: every data-parallel replica with an accelerator in it stops. The others take over its
  micro-batches, rounded up to what the schedule can run; the communication is priced as with all replicas. An order of the
  plan's own is for its number of micro-batches, so the order of the schedule's name is priced instead.
* One of the planes of a level is lost: bandwidth and capacity of that level fall by 1/planes (multi-plane fabrics spread
  every flow over all planes; NCCLX, arXiv 2510.20171, has 76 between buildings).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.schedules.pipeline import is_legal
from scaleacross.spec.job import Job
from scaleacross.spec.network import LINK_LEVELS, LevelLink
from scaleacross.spec.parallelism import Degrees, GridAxis
from scaleacross.spec.placement import BuildingShare, Placement, strides
from scaleacross.spec.plan import Decision, DegradedState
from scaleacross.spec.topology import Building, Topology, trunk_bytes_per_s
from scaleacross.workloads.layer_profile import ModelProfile

UNITS = ("zone", "building")
"""Units whose loss is priced."""


def replicas_lost(
    topology: Topology, fill: Sequence[BuildingShare], degrees: Degrees, axis_order: Sequence[GridAxis], level: str
) -> int:
    """Data-parallel replicas that have an accelerator in one unit of ``level``, the most over units.

    Positions within the smallest stride of pp and dp and between two cuts lie alike; one is looked at for all.

    Raises:
        KeyError: a building of the fill is not in the topology.
    """
    stride = strides(degrees, axis_order)
    starts, base = [], 0
    for share in fill:
        building = topology.building(share.building)
        size = building.accelerators_per("zone") if level == "zone" else building.num_accelerators
        starts += list(range(base, base + share.num_accelerators, size))
        base += share.num_accelerators
    unit = math.gcd(stride["dp_shard"], stride["dp_replicate"], base, *starts)
    position = np.arange(0, base, unit)
    replica = position // stride["dp_replicate"] % degrees.dp_replicate * degrees.dp_shard
    replica += position // stride["dp_shard"] % degrees.dp_shard
    lost = np.searchsorted(np.array(starts), position, side="right")
    pairs = np.unique(lost * degrees.dp + replica)
    return int(np.unique(pairs // degrees.dp, return_counts=True)[1].max())


def degraded_states(
    job: Job, profile: ModelProfile, topology: Topology, decision: Decision
) -> tuple[DegradedState, ...]:
    """The plan with one zone, one building, or one plane of each level with planes lost.

    Raises:
        ValueError: the decision has no placement.
    """
    placement = decision.placement
    if placement is None:
        raise ValueError("the decision has no placement")
    out = [_unit_lost(job, profile, topology, decision, placement, level) for level in UNITS]
    for what, thinner in _planes_lost(topology, placement):
        cost = plan_cost(job, profile, thinner, decision)
        out.append(DegradedState(what=what, replicas_lost=0, step_s=cost.cost.step_s, fits=_fits(cost)))
    return tuple(out)


def _unit_lost(
    job: Job, profile: ModelProfile, topology: Topology, decision: Decision, placement: Placement, level: str
) -> DegradedState:
    dp = decision.degrees.dp
    lost = replicas_lost(topology, placement.fill, decision.degrees, placement.axis_order, level)
    what = f"one {level}"
    if lost == dp:
        return DegradedState(what=what, replicas_lost=lost, step_s=None, fits=False)
    pp, pipeline = decision.degrees.pp, decision.pipeline.model_copy(update={"order": None})
    unit = pp if pipeline.num_chunks > 1 else 1

    def more(micro_batches: int) -> int:
        fewest = -(-micro_batches * dp // ((dp - lost) * unit)) * unit
        legal = (
            m for m in range(fewest, fewest + 2 * pp, unit) if is_legal(pipeline.schedule, pp, m, pipeline.num_chunks)
        )
        return next(legal, fewest) if pp > 1 else fewest

    sequences = decision.pipeline.micro_batch_sequences
    if decision.batch_shares is None:
        shares = None
        total = dp * more(job.global_batch_sequences // (dp * sequences))
    else:
        shares = tuple(
            share.model_copy(update={"num_micro_batches": more(share.num_micro_batches)})
            for share in decision.batch_shares
        )
        total = sum(share.num_replicas * share.num_micro_batches for share in shares)
        total = -(-total // dp) * dp  # settings are read from the mean, which the shares override
    # every replica with more micro-batches: as long a step as that of the replicas that are left
    longer = job.model_copy(update={"global_batch_sequences": total * sequences})
    cost = plan_cost(
        longer, profile, topology, decision.model_copy(update={"batch_shares": shares, "pipeline": pipeline})
    )
    return DegradedState(what=what, replicas_lost=lost, step_s=cost.cost.step_s, fits=_fits(cost))


def _fits(cost: PlanCost) -> bool:
    return all(stage.total_bytes <= stage.capacity_bytes for stage in cost.memory)


def _planes_lost(topology: Topology, placement: Placement) -> Iterator[tuple[str, Topology]]:
    """The topology with a plane fewer: per level inside the buildings used, and of the trunks."""
    used = {share.building for share in placement.fill}
    inside = [building for building in topology.buildings if building.name in used]
    for level in LINK_LEVELS[:4]:
        planes = [getattr(building.links, level).num_planes for building in inside]
        if any(planes):
            regions = tuple(
                region.model_copy(update={"buildings": tuple(_thinner(b, level) for b in region.buildings)})
                for region in topology.regions
            )
            fewest = min(count for count in planes if count)
            yield f"one of {fewest} planes of level {level}", topology.model_copy(update={"regions": regions})
    planes = [trunk.num_planes for trunk in topology.trunks if trunk.num_planes]
    if planes and len(used) > 1:
        trunks = []
        for trunk in topology.trunks:
            left = 1 - 1 / trunk.num_planes if trunk.num_planes else 1.0
            capacity = trunk_bytes_per_s(topology, trunk) * left
            trunks.append(trunk.model_copy(update={"bandwidth_bytes_per_s": capacity}))
        yield f"one of {min(planes)} planes between buildings", topology.model_copy(update={"trunks": tuple(trunks)})


def _thinner(building: Building, level: str) -> Building:
    link: LevelLink = getattr(building.links, level)
    if link.num_planes is None:
        return building
    rate = link.technology.bandwidth_bytes_per_s * (1 - 1 / link.num_planes)
    technology = link.technology.model_copy(update={"bandwidth_bytes_per_s": rate, "curves": ()})
    links = building.links.model_copy(update={level: link.model_copy(update={"technology": technology})})
    return building.model_copy(update={"links": links})
