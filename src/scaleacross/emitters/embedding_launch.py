"""launch.json of a recommendation plan: ranks and groups as for language models, and the shards of every table."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from scaleacross.emitters.launch import group_levels, launch_json
from scaleacross.errors import EmitError
from scaleacross.spec.embedding_launch import EmbeddingLaunch, TableLaunch, TableShard
from scaleacross.spec.framework import Optimizer
from scaleacross.spec.launch import LaunchConfig, LaunchHost, ProcessGroups, RankRow, rank_groups
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.parallelism import Axis, Degrees, GridAxis, PipelineChoice
from scaleacross.spec.recommendation import RecommendationPlan, shard_extents
from scaleacross.spec.topology import Topology
from scaleacross.workloads.recommendation import Dlrm


def render(plan: RecommendationPlan) -> dict[str, str]:
    """launch.json."""
    return {"launch.json": launch_json(launch_config(plan))}


def launch_config(plan: RecommendationPlan) -> LaunchConfig:
    """The plan as a launch contract: dp_shard is a replica group of ranks, dp_replicate joins the groups; no other axis.

    Raises:
        EmitError: vectors travel coded, by copy engines, or in another precision than tables are stored in, which no runtime
            of ours does.
    """
    job, decision = plan.job, plan.decision
    if job.exchange_precision != job.table_precision:
        raise EmitError(
            f"launch: vectors are planned in {job.exchange_precision} and tables in {job.table_precision}; the runtime sends "
            f"what it stores: plan with exchange_precision={job.table_precision}"
        )
    if decision.driver == "copy_engines":
        raise EmitError(
            "launch: vectors are planned to be moved by copy_engines; the runtime's row exchange knows none: plan with "
            "drivers=[multiprocessors]"
        )
    size, groups = len(plan.ranks), decision.num_groups
    degrees = Degrees(dp_shard=size, dp_replicate=groups)
    near: tuple[GridAxis, GridAxis] = ("dp_shard", "dp_replicate")
    axes = near if decision.replicas == "outer" else (near[1], near[0])
    if decision.codecs:
        raise EmitError(
            f"launch: vectors of {len(decision.codecs)} tables are planned to travel coded, which the runtime's tables "
            "do not do yet: plan without compression"
        )
    hosts, units, places = _hosts(Topology.model_validate(job.topology), size * groups)
    rows = tuple(_row(rank, place, size, groups, decision.replicas == "outer") for rank, place in enumerate(places))
    batch = job.global_batch_samples // (size * groups)
    return LaunchConfig(
        plan_name=job.name,
        plan_sha256=hashlib.sha256(json.dumps(plan.model_dump(mode="json"), sort_keys=True).encode()).hexdigest(),
        world_size=size * groups,
        degrees=degrees,
        axis_order=("tp", "cp", *axes, "pp"),
        sequence_length=1,
        global_batch_sequences=job.global_batch_samples,
        num_micro_batches=1,
        pipeline=PipelineChoice(schedule="GPipe", micro_batch_sequences=batch),
        layers_per_stage=((1,),),
        recompute="none",
        shard="none",
        precision=job.dense_precision,
        optimizer=Optimizer(),
        predicted_step_s=plan.cost.step_s,
        hosts=hosts,
        ranks=rows,
        process_groups=tuple(
            _groups(axis, degrees, rows, units) for axis in sorted(near, reverse=True) if degrees.of(axis) > 1
        ),
        embedding=_embedding(plan, batch),
    )


def _embedding(plan: RecommendationPlan, batch: int) -> EmbeddingLaunch:
    placed = {one.table: one for one in plan.decision.tables}
    tables = []
    for table in Dlrm.model_validate(plan.job.workload).expanded():
        own = placed[table.name]
        extents = shard_extents(own, table.rows, table.dimension)
        tables.append(
            TableLaunch(
                name=table.name,
                rows=table.rows,
                dimension=table.dimension,
                num_features=len(table.pooling),
                pooled=table.pooled,
                sharding=own.sharding,
                kernel=own.kernel,
                shards=tuple(TableShard(**extent._asdict()) for extent in extents),
            )
        )
    return EmbeddingLaunch(
        tables=tuple(tables),
        samples_per_rank=batch,
        precision=plan.job.table_precision,
        optimizer=plan.job.optimizer,
        sync_interval_steps=plan.job.sync_interval_steps,
    )


def _hosts(topology: Topology, wanted: int) -> tuple[tuple[LaunchHost, ...], np.ndarray, list[tuple[int, int]]]:
    """Hosts of the first ranks, number of every rank's unit at each level but the last, (host, process) of every rank."""
    hosts: list[LaunchHost] = []
    units: list[tuple[object, ...]] = []
    places: list[tuple[int, int]] = []
    for region in topology.regions:
        for building in region.buildings:
            each = building.accelerators_per_host
            for number in range(building.num_accelerators // each):
                here = min(each, wanted - len(places))
                if here <= 0:
                    break
                rack, zone = (
                    number // building.hosts_per_rack,
                    number // building.hosts_per_rack // building.racks_per_zone,
                )
                name = f"{building.name}-h{number:05d}"
                hosts.append(
                    LaunchHost(
                        name=name,
                        region=region.name,
                        building=building.name,
                        zone=zone,
                        rack=rack % building.racks_per_zone,
                        num_ranks=here,
                    )
                )
                unit = (name, (building.name, rack), (building.name, zone), building.name, region.name)
                units += [unit] * here
                places += [(len(hosts) - 1, local) for local in range(here)]
    columns = []
    for column in zip(*units, strict=True):
        number_of = {one: index for index, one in enumerate(dict.fromkeys(column))}
        columns.append([number_of[one] for one in column])
    return tuple(hosts), np.array(columns), places


def _row(rank: int, place: tuple[int, int], size: int, groups: int, outer: bool) -> RankRow:
    replica, shard = (rank // size, rank % size) if outer else (rank % groups, rank // groups)
    return (*place, 0, replica, shard, 0, 0, 0)


def _groups(axis: Axis, degrees: Degrees, rows: tuple[RankRow, ...], units: np.ndarray) -> ProcessGroups:
    groups = rank_groups(rows, axis, degrees)
    levels = group_levels(units, np.array(groups))
    return ProcessGroups(
        axis=axis,
        degree=degrees.of(axis),
        level=LINK_LEVELS[int(levels.max())],
        ranks=groups,
        levels=tuple(LINK_LEVELS[level] for level in levels.tolist()),
        collectives=(),
    )
