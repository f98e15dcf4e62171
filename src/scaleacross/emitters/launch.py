"""Target ``launch``: launch.json (the contract of ``spec.launch``) and ranks.csv, both in the plan's own rank order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from scaleacross.emitters.nccl import environment
from scaleacross.emitters.rank_order import Ints, RankOrder, plan_topology, rank_order, ranks_csv
from scaleacross.spec.base import Spec
from scaleacross.spec.launch import (
    ALL_AXES,
    LaunchConfig,
    LaunchHost,
    ProcessGroups,
    RankRow,
    ReplicaBatch,
    rank_groups,
)
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.network_choice import CommunicatorChoice
from scaleacross.spec.parallelism import Axis, Degrees
from scaleacross.spec.plan import Plan, PredictedCollective
from scaleacross.spec.topology import Topology

Unit = tuple[str | int, ...]


def render(plan: Plan) -> dict[str, str]:
    """Return the text of launch.json and ranks.csv."""
    return {"launch.json": launch_json(launch_config(plan)), "ranks.csv": ranks_csv(rank_order(plan))}


def plan_sha256(plan: Spec) -> str:
    """Return the SHA-256 of the plan as JSON with sorted keys and no spaces."""
    text = json.dumps(plan.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def launch_config(plan: Plan) -> LaunchConfig:
    """Return the plan as a launch contract. Its ranks are the plan's global ranks.

    Raises:
        EmitError: the placement does not give every process a device of its own.
    """
    topology, order = plan_topology(plan), rank_order(plan)
    rows, units = order.rows(), units_of(order, topology)
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
        stage_recompute=decision.stage_recompute,
        shard=decision.shard,
        context_exchange=decision.context_exchange,
        activation_offload=decision.activation_offload,
        optimizer_offload=decision.optimizer_offload,
        precision=plan.job.precision,
        optimizer=plan.job.optimizer,
        predicted_step_s=plan.cost.step_s,
        env=environment(plan),
        hosts=hosts_of(order, topology),
        ranks=rows,
        process_groups=tuple(
            groups_of(axis, plan.degrees, rows, units, plan.collectives, decision.network or ())
            for axis in ALL_AXES
            if plan.degrees.of(axis) > 1
        ),
    )


def launch_json(config: LaunchConfig) -> str:
    """Return the contract as JSON, one top-level key per line."""
    body = config.model_dump(mode="json", exclude={"ranks"}) | {"ranks": config.ranks}
    body = {name: body[name] for name in type(config).model_fields}
    lines = (f"  {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in body.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _replica_batches(plan: Plan, order: RankOrder) -> tuple[ReplicaBatch, ...]:
    """Return batch shares with the numbers of their replicas and their gradient weights."""
    shares = plan.decision.batch_shares
    if shares is None:
        return ()
    replica = order.coordinates["dp_replicate"] * plan.degrees.dp_shard + order.coordinates["dp_shard"]
    touched: dict[int, set[str]] = {}
    for place in np.unique(replica * len(order.hosts) + order.host).tolist():
        touched.setdefault(place // len(order.hosts), set()).add(order.hosts[place % len(order.hosts)].building)
    # weights are 1 in the mean over replicas, and every micro-batch has the same weight
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


def hosts_of(order: RankOrder, topology: Topology) -> tuple[LaunchHost, ...]:
    """Return the hosts in order of their first rank."""
    region = {building.name: region.name for region in topology.regions for building in region.buildings}
    return tuple(LaunchHost(region=region[host.building], **host._asdict()) for host in order.hosts)


def groups_of(
    axis: Axis,
    degrees: Degrees,
    rows: tuple[RankRow, ...],
    units: Ints,
    collectives: Sequence[PredictedCollective] = (),
    network: Sequence[CommunicatorChoice] = (),
) -> ProcessGroups:
    """Return the process groups of an axis, with the axis's share of the collectives and network choices.

    Args:
        axis: the axis.
        degrees: degrees of the plan.
        rows: row of every rank (``RankOrder.rows``).
        units: unit of every rank at each level (``units_of``).
        collectives: predicted collectives of all axes.
        network: network choices of all communicators.
    """
    groups = rank_groups(rows, axis, degrees)
    levels = group_levels(units, np.array(groups))
    return ProcessGroups(
        axis=axis,
        degree=degrees.of(axis),
        level=LINK_LEVELS[int(levels.max())],
        ranks=groups,
        levels=tuple(LINK_LEVELS[level] for level in levels.tolist()),
        collectives=tuple(collective for collective in collectives if collective.axis == axis),
        network=tuple(choice for choice in network if choice.communicator == axis),
    )


def units_of(order: RankOrder, topology: Topology) -> Ints:
    """Return every rank's unit number, shape (5, ranks): scale-up domain, rack, zone, building, region."""
    by_host = {building.name: building.scale_up_domain == "host" for building in topology.buildings}
    region = {building.name: region.name for region in topology.regions for building in region.buildings}
    names: list[tuple[Unit, ...]] = []
    for host in order.hosts:
        zone = (host.building, host.zone)
        rack = (*zone, host.rack)
        domain = (host.name,) if by_host[host.building] else rack
        names.append((domain, rack, zone, (host.building,), (region[host.building],)))
    numbered = []
    for column in zip(*names, strict=True):
        number = {unit: index for index, unit in enumerate(dict.fromkeys(column))}
        numbered.append([number[unit] for unit in column])
    return np.array(numbered)[:, order.host]


def group_levels(units: Ints, groups: Ints) -> Ints:
    """Return the outermost link level of each group (groups, ranks): that of the smallest unit with all its ranks."""
    here = units[:, groups]
    # units nest, so the number of levels at which a group is split is the index of its outermost level
    apart = (here != here[:, :, :1]).any(axis=2)
    return np.asarray(apart.sum(axis=0))
