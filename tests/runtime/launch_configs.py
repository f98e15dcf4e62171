"""Launch files for a few processes, without a planner."""

from __future__ import annotations

from collections.abc import Sequence

from scaleacross.spec.framework import Optimizer
from scaleacross.spec.launch import ALL_AXES, LaunchConfig, LaunchHost, ProcessGroups, RankRow, Rendezvous, rank_groups
from scaleacross.spec.network import LINK_LEVELS, LinkLevel
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.plan import PredictedCollective


def crossed(rows: tuple[RankRow, ...], groups: tuple[tuple[int, ...], ...], beyond: LinkLevel) -> tuple[LinkLevel, ...]:
    """Level of each group if every host is apart from all others by ``beyond``."""
    return tuple(beyond if len({rows[rank][0] for rank in ranks}) > 1 else "scale_up" for ranks in groups)


OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def small_launch(
    pp: int = 1,
    dp_replicate: int = 1,
    dp_shard: int = 1,
    algorithm: str = "ring",
    hosts: Sequence[int] = (2, 2),
    port: int | None = None,
) -> LaunchConfig:
    """Hosts of ``hosts`` ranks, each in a building of its own; all collectives by ``algorithm``; rendezvous on ``port``."""
    degrees = Degrees(tp=1, cp=1, pp=pp, dp_replicate=dp_replicate, dp_shard=dp_shard)
    slots = [(host, local) for host, count in enumerate(hosts) for local in range(count)]
    rows = []
    for rank, (host, local) in enumerate(slots):
        shard, rest = rank % dp_shard, rank // dp_shard
        rows.append((host, local, rest // dp_replicate, rest % dp_replicate, shard, 0, 0, 0))
    table = tuple(rows)
    groups = tuple(
        ProcessGroups(
            axis=axis,
            degree=degrees.of(axis),
            level=max(crossed(table, rank_groups(table, axis, degrees), "campus"), key=LINK_LEVELS.index),
            ranks=rank_groups(table, axis, degrees),
            levels=crossed(table, rank_groups(table, axis, degrees), "campus"),
            collectives=tuple(
                PredictedCollective(
                    name=f"{axis} {op}",
                    axis=axis,
                    op=op,
                    group_size=degrees.of(axis),
                    bytes_per_rank=1e6,
                    per_step=1,
                    level="campus",
                    algorithm="pairwise" if op == "all_to_all" else algorithm,
                    time_s=0.01,
                )
                for op in OPERATIONS
            ),
        )
        for axis in ALL_AXES
        if degrees.of(axis) > 1
    )
    return LaunchConfig(
        plan_name="small",
        plan_sha256="0" * 64,
        world_size=len(slots),
        degrees=degrees,
        axis_order=("tp", "cp", "dp_shard", "dp_replicate", "pp"),
        sequence_length=32,
        global_batch_sequences=8 * dp_replicate * dp_shard,
        num_micro_batches=4,
        pipeline=PipelineChoice(schedule="1F1B", micro_batch_sequences=2),
        layers_per_stage=tuple((4 // pp,) for _ in range(pp)),
        recompute="none",
        shard="none" if dp_shard == 1 else "optimizer" if pp > 1 else "parameters",
        precision="bf16",
        optimizer=Optimizer(),
        predicted_step_s=1.0,
        hosts=tuple(
            LaunchHost(name=f"h{k}", region="r", building=f"b{k}", zone=0, rack=0, num_ranks=count)
            for k, count in enumerate(hosts)
        ),
        rendezvous=None if port is None else Rendezvous(address="127.0.0.1", port=port),
        ranks=table,
        process_groups=groups,
    )
