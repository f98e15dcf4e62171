"""States of a plan after a failure, and its step time in each of them.

* An accelerator, host, rack, zone or building is lost: every fault unit (``dp_replicate`` group) with a member in it
  stops, because states are complete only in whole groups. *Shrink*: the others go on with their share of the batch and
  the old step time. *Keep*: they run the lost micro-batches, too, rounded up to a number that the schedule can run. The
  communication is that of all replicas. An order of the plan's own is valid only for its number of micro-batches, so
  the order of the schedule's name is used.
* A link between two buildings is lost without another path: the part that is cut off stops (``goodput.strikes``).
* One of the planes of a level is lost: bandwidth and capacity of that level fall by 1/planes (multi-plane fabrics
  spread every flow over all planes; NCCLX, arXiv 2510.20171, has 76 between buildings).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

import numpy as np

from scaleacross.cost_models.goodput.strikes import DOMAINS, Laid, only_copies, units_cut_off, units_hit
from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.schedules.pipeline import is_legal
from scaleacross.spec.job import Job
from scaleacross.spec.network import LINK_LEVELS, LevelLink
from scaleacross.spec.parallelism import Degrees, GridAxis
from scaleacross.spec.placement import BuildingShare, Placement, strides
from scaleacross.spec.plan import Decision, DegradedState
from scaleacross.spec.topology import Building, Topology, trunk_bytes_per_s
from scaleacross.workloads.layer_profile import ModelProfile


def replicas_lost(
    topology: Topology,
    allocation: Sequence[BuildingShare],
    degrees: Degrees,
    axis_order: Sequence[GridAxis],
    level: str,
) -> int:
    """Most data-parallel replicas that have an accelerator in one unit of ``level``.

    Global ranks within the smallest stride of pp and dp and between two cuts lie alike, so one is checked for all.

    Raises:
        KeyError: a building of the allocation is not in the topology.
    """
    stride = strides(degrees, axis_order)
    starts, base = [], 0
    for share in allocation:
        building = topology.building(share.building)
        size = building.accelerators_per("zone") if level == "zone" else building.num_accelerators
        starts += list(range(base, base + share.num_accelerators, size))
        base += share.num_accelerators
    unit = math.gcd(stride["dp_shard"], stride["dp_replicate"], base, *starts)
    global_ranks = np.arange(0, base, unit)
    replica = global_ranks // stride["dp_replicate"] % degrees.dp_replicate * degrees.dp_shard
    replica += global_ranks // stride["dp_shard"] % degrees.dp_shard
    lost = np.searchsorted(np.array(starts), global_ranks, side="right")
    pairs = np.unique(lost * degrees.dp + replica)
    return int(np.unique(pairs // degrees.dp, return_counts=True)[1].max())


def degraded_states(
    job: Job, profile: ModelProfile, topology: Topology, decision: Decision
) -> tuple[DegradedState, ...]:
    """The plan without one accelerator, host, rack, zone, building, link between buildings, or plane of a level.

    Raises:
        ValueError: the decision has no placement.
    """
    placement, degrees = decision.placed, decision.degrees
    laid = Laid(topology, placement.fill, degrees, placement.axis_order)
    without = lru_cache(partial(_without_units, job, profile, topology, decision))
    out = []
    for level in DOMAINS:
        lost = without(max(units_hit(laid, level)))
        out.append(lost.model_copy(update={"what": f"one {level}", "only_copies": only_copies(laid, level)}))
    for (one, other), number in units_cut_off(laid):
        if number:
            out.append(without(number).model_copy(update={"what": f"the link {one}–{other}"}))
    for what, thinner in _planes_lost(topology, placement):
        cost = plan_cost(job, profile, thinner, decision)
        out.append(DegradedState(what=what, replicas_lost=0, step_s=cost.cost.step_s, fits=_fits(cost)))
    return tuple(out)


def _without_units(
    job: Job, profile: ModelProfile, topology: Topology, decision: Decision, units_lost: int
) -> DegradedState:
    """The plan without ``units_lost`` fault units: its step time with the whole batch, and its share of the batch."""
    units = decision.degrees.dp_replicate
    left = units - units_lost
    lost = units_lost * decision.degrees.dp_shard
    if not left:
        return DegradedState(
            what="", units_lost=units, replicas_lost=lost, step_s=None, tokens_fraction=0.0, fits=False
        )
    cost = _longer_step(job, profile, topology, decision, lost)
    return DegradedState(
        what="",
        units_lost=units_lost,
        replicas_lost=lost,
        step_s=cost.cost.step_s,
        tokens_fraction=left / units,
        fits=_fits(cost),
    )


def _longer_step(job: Job, profile: ModelProfile, topology: Topology, decision: Decision, lost: int) -> PlanCost:
    """Cost of a step in which the remaining replicas run the micro-batches of ``lost`` ones, too."""
    dp, pp = decision.degrees.dp, decision.degrees.pp
    pipeline = decision.pipeline.model_copy(update={"order": None})

    def more(micro_batches: int) -> int:
        fewest = -(-micro_batches * dp // (dp - lost))
        legal = (m for m in range(fewest, fewest + 2 * pp) if is_legal(pipeline.schedule, pp, m, pipeline.num_chunks))
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
    # every replica with more micro-batches: as long a step as that of the replicas that are left
    longer = job.model_copy(update={"global_batch_sequences": total * sequences})
    return plan_cost(
        longer, profile, topology, decision.model_copy(update={"batch_shares": shares, "pipeline": pipeline})
    )


def _fits(cost: PlanCost) -> bool:
    return all(stage.total_bytes <= stage.capacity_bytes for stage in cost.memory)


def _planes_lost(topology: Topology, placement: Placement) -> Iterator[tuple[str, Topology]]:
    """Descriptions and topologies with one plane less: per level inside used buildings, and between buildings."""
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
