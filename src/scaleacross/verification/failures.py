"""V8: no zone (building) holds more data-parallel replicas than the job allows to lose, counted rank by rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from scaleacross.spec.placement import coordinates, devices
from scaleacross.spec.plan import Decision
from scaleacross.spec.topology import Topology
from scaleacross.workloads.problem import Problem


def v8_failures(problem: Problem, decision: Decision) -> Iterator[str]:
    """Units of the job's failure domains that hold too many replicas of a placed decision."""
    wanted = problem.job.failure_domains
    if wanted is None:
        return
    for (building, zone), replicas in replicas_by_unit(problem.topology, decision, wanted.level).items():
        if len(replicas) > wanted.max_replicas_lost:
            where = f"zone {zone} of '{building}'" if wanted.level == "zone" else f"building '{building}'"
            yield f"V8: {len(replicas)} replicas lose a stage with {where}, at most {wanted.max_replicas_lost} may"


def replicas_by_unit(topology: Topology, decision: Decision, level: str) -> dict[tuple[str, int], set[int]]:
    """(building, zone) -> data-parallel replicas with an accelerator there, rank by rank; zone 0 for whole buildings."""
    degrees, out = decision.degrees, defaultdict(set)
    if decision.placement is not None:
        for position, device in enumerate(devices(topology, decision.placement)):
            at = coordinates(degrees, decision.placement.axis_order, position)
            unit = (device.building, device.zone if level == "zone" else 0)
            out[unit].add(at["dp_replicate"] * degrees.dp_shard + at["dp_shard"])
    return out
