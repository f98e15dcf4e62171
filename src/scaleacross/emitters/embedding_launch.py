"""launch.json of a recommendation plan: ranks and groups as for language models, and the shards of every table."""

from __future__ import annotations

from scaleacross.emitters.launch import groups_of, hosts_of, launch_json, plan_sha256, units_of
from scaleacross.emitters.rank_order import order_of
from scaleacross.errors import EmitError
from scaleacross.spec.embedding_launch import EmbeddingLaunch, TableLaunch, TableShard
from scaleacross.spec.framework import Optimizer
from scaleacross.spec.launch import LaunchConfig
from scaleacross.spec.parallelism import Degrees, GridAxis, PipelineChoice
from scaleacross.spec.placement import Placement, first_accelerators
from scaleacross.spec.recommendation import RecommendationPlan, shard_extents
from scaleacross.spec.topology import Topology
from scaleacross.workloads.recommendation import Dlrm


def render(plan: RecommendationPlan) -> dict[str, str]:
    """Return the text of launch.json."""
    return {"launch.json": launch_json(launch_config(plan))}


def launch_config(plan: RecommendationPlan) -> LaunchConfig:
    """Return the plan as a launch contract: dp_shard is a replica group of ranks, dp_replicate joins the groups.

    Raises:
        EmitError: vectors are coded, moved by copy engines, or in another precision than tables are stored in; our
            runtime does none of this.
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
    topology = Topology.model_validate(job.topology)
    placement = Placement(
        axis_order=("tp", "cp", *axes, "pp"), fill=first_accelerators(topology.buildings, size * groups)
    )
    order = order_of(topology, degrees, placement)
    rows, units = order.rows(), units_of(order, topology)
    batch = job.global_batch_samples // (size * groups)
    return LaunchConfig(
        plan_name=job.name,
        plan_sha256=plan_sha256(plan),
        world_size=size * groups,
        degrees=degrees,
        axis_order=placement.axis_order,
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
        hosts=hosts_of(order, topology),
        ranks=rows,
        process_groups=tuple(
            groups_of(axis, degrees, rows, units) for axis in sorted(near, reverse=True) if degrees.of(axis) > 1
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
                cache_fraction=own.cache_fraction,
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
