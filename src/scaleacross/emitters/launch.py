"""Target ``launch``: launch.json (the contract of ``spec.launch``) and ranks.csv, both in the plan's own rank order."""

from __future__ import annotations

import hashlib
import json

from scaleacross.emitters.nccl import environment
from scaleacross.emitters.rank_order import RankOrder, plan_topology, rank_order, ranks_csv
from scaleacross.spec.launch import (
    ALL_AXES,
    LaunchConfig,
    LaunchHost,
    ProcessGroups,
    RankRow,
    ReplicaBatch,
    rank_groups,
)
from scaleacross.spec.network import LINK_LEVELS, LinkLevel
from scaleacross.spec.parallelism import Axis
from scaleacross.spec.placement import Device
from scaleacross.spec.plan import Plan
from scaleacross.spec.topology import Topology

Units = tuple[tuple[object, ...], ...]


def render(plan: Plan) -> dict[str, str]:
    """launch.json and ranks.csv."""
    return {"launch.json": launch_json(launch_config(plan)), "ranks.csv": ranks_csv(rank_order(plan))}


def plan_sha256(plan: Plan) -> str:
    """SHA-256 of the plan as JSON with sorted keys and no spaces."""
    text = json.dumps(plan.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def launch_config(plan: Plan) -> LaunchConfig:
    """The plan as a launch contract. Ranks are positions.

    Raises:
        EmitError: the placement does not give every process a device of its own.
    """
    topology, order = plan_topology(plan), rank_order(plan)
    rows = _rows(order)
    placed = [process.device for process in order.processes]
    decision = plan.decision
    return LaunchConfig(
        plan_name=plan.job.name,
        plan_sha256=plan_sha256(plan),
        world_size=plan.degrees.world_size,
        degrees=plan.degrees,
        axis_order=plan.placement.axis_order,
        sequence_length=plan.job.sequence_length,
        global_batch_sequences=plan.job.global_batch_sequences,
        num_micro_batches=plan.num_micro_batches,
        replica_batches=_replica_batches(plan, order),
        pipeline=decision.pipeline,
        layers_per_stage=plan.layers_per_stage,
        recompute=decision.recompute,
        shard=decision.shard,
        precision=plan.job.precision,
        optimizer=plan.job.optimizer,
        predicted_step_s=plan.cost.step_s,
        env=environment(plan),
        hosts=_hosts(order, topology),
        ranks=rows,
        process_groups=tuple(
            _process_groups(plan, axis, rows, placed, topology) for axis in ALL_AXES if plan.degrees.of(axis) > 1
        ),
    )


def launch_json(config: LaunchConfig) -> str:
    """The contract as JSON, one top-level key per line."""
    body = config.model_dump(mode="json")
    lines = (f"  {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in body.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _replica_batches(plan: Plan, order: RankOrder) -> tuple[ReplicaBatch, ...]:
    """Batch shares with the numbers of their replicas and their gradient weights."""
    shares = plan.decision.batch_shares
    if shares is None:
        return ()
    touched: dict[int, set[str]] = {}
    for process in order.processes:
        replica = process.coordinates["dp_replicate"] * plan.degrees.dp_shard + process.coordinates["dp_shard"]
        touched.setdefault(replica, set()).add(process.device.building)
    total = sum(share.num_replicas * share.num_micro_batches for share in shares)
    return tuple(
        ReplicaBatch(
            buildings=share.buildings,
            replicas=tuple(d for d in sorted(touched) if touched[d] == set(share.buildings)),
            num_micro_batches=share.num_micro_batches,
            gradient_weight=share.num_micro_batches * plan.degrees.dp / total,
        )
        for share in shares
    )


def _rows(order: RankOrder) -> tuple[RankRow, ...]:
    host_index = {name: index for index, (name, _) in enumerate(order.hosts)}
    rows = []
    for process, local in zip(order.processes, order.local_ranks, strict=True):
        at = process.coordinates
        host = host_index[process.device.host_name]
        grid = (at["pp"], at["dp_replicate"], at["dp_shard"], at["cp"], at["tp"])
        rows.append((host, local, *grid, at["dp_shard"] % order.ep))
    return tuple(rows)


def _hosts(order: RankOrder, topology: Topology) -> tuple[LaunchHost, ...]:
    first: dict[str, Device] = {}
    for process in order.processes:
        first.setdefault(process.device.host_name, process.device)
    return tuple(
        LaunchHost(
            name=name,
            region=topology.region_of(first[name].building),
            building=first[name].building,
            zone=first[name].zone,
            rack=first[name].rack,
            num_ranks=count,
        )
        for name, count in order.hosts
    )


def _process_groups(
    plan: Plan, axis: Axis, rows: tuple[RankRow, ...], placed: list[Device], topology: Topology
) -> ProcessGroups:
    units = _units(placed, topology)
    groups = rank_groups(rows, axis, plan.degrees)
    levels = tuple(_level(units, ranks) for ranks in groups)
    return ProcessGroups(
        axis=axis,
        degree=plan.degrees.of(axis),
        level=max(levels, key=LINK_LEVELS.index),
        ranks=groups,
        levels=levels,
        collectives=tuple(collective for collective in plan.collectives if collective.axis == axis),
    )


def _units(placed: list[Device], topology: Topology) -> list[Units]:
    """[rank] -> its unit at each level but the last: scale-up domain, rack, zone, building, region."""
    by_host = {building.name: building.scale_up_domain == "host" for building in topology.buildings}
    region = {building.name: region.name for region in topology.regions for building in region.buildings}
    out: list[Units] = []
    for device in placed:
        zone = (device.building, device.zone)
        rack = (*zone, device.rack)
        domain = (*rack, device.host) if by_host[device.building] else rack
        out.append((domain, rack, zone, (device.building,), (region[device.building],)))
    return out


def _level(units: list[Units], ranks: tuple[int, ...]) -> LinkLevel:
    """Outermost link level that ranks cross: that of the smallest unit which holds them all."""
    for level, index in zip(LINK_LEVELS, range(len(LINK_LEVELS) - 1), strict=False):
        if len({units[rank][index] for rank in ranks}) == 1:
            return level
    return LINK_LEVELS[-1]
