"""Launch file (launch.json): everything that a runtime needs to execute a plan, with nothing left to decide.

Ranks are the plan's global ranks (``spec.placement``): host by host, so the ranks of a host are consecutive. Rows and
groups are stored as plain integers, one row per rank and one list per group, so a reader in any language needs no
formula. For 16,384 ranks that is about 1.5 MB of JSON.

Ring order. Every group lists its ranks in ascending order. Global ranks run building by building, zone by zone, down to
the host. So a ring over ascending ranks enters and leaves each unit of each level once. That is optimal on all levels
at once. A ring that touches K > 1 units must cross the border of each at least twice, so it has at least K edges
between units. Ascending order has exactly K. The order of the buildings is chosen with the allocation
(``Placement.fill``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

from pydantic import Field, PositiveInt, model_validator

from scaleacross.spec.accelerator import Precision
from scaleacross.spec.base import Spec
from scaleacross.spec.embedding_launch import EmbeddingLaunch
from scaleacross.spec.framework import Optimizer
from scaleacross.spec.network import LINK_LEVELS, LinkLevel
from scaleacross.spec.network_choice import CommunicatorChoice
from scaleacross.spec.offloading import OffloadShare
from scaleacross.spec.parallelism import (
    GRID_AXES,
    Axis,
    ContextExchange,
    Degrees,
    GridAxis,
    PipelineChoice,
    ShardLevel,
)
from scaleacross.spec.plan import PredictedCollective
from scaleacross.spec.recomputation import Recompute

ALL_AXES: tuple[Axis, ...] = (*GRID_AXES, "ep")

# Columns of ``LaunchConfig.ranks``: index into ``hosts``, process on that host, then the coordinate on each axis.
RANK_COLUMNS = ("host", "local", "pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
DEFAULT_PORT: Final = 29500
"""Where ranks meet if nothing is stated: torchrun's own default."""
RankRow = tuple[int, int, int, int, int, int, int, int]


class LaunchHost(Spec):
    """One host of the job. Zone and rack count from 0 inside their building and zone."""

    name: str = Field(min_length=1, description="host name as the plan knows it: <building>-h<number>")
    region: str
    building: str
    zone: int = Field(ge=0)
    rack: int = Field(ge=0)
    num_ranks: PositiveInt = Field(description="processes on this host, one per accelerator used")


class EnvVariable(Spec):
    """A per-process environment variable and the reason for its value."""

    name: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    value: str
    why: str


class ProcessGroups(Spec):
    """All process groups of one axis, in ring order, with the outermost link level that each crosses."""

    axis: Axis
    degree: int = Field(ge=2, description="ranks per group; axes of degree 1 have no entry")
    level: LinkLevel = Field(description="outermost level that any group of this axis crosses")
    ranks: tuple[tuple[int, ...], ...] = Field(description="[group] -> its ranks in ring order")
    levels: tuple[LinkLevel, ...] = Field(description="[group] -> outermost level that this group crosses")
    collectives: tuple[PredictedCollective, ...] = Field(
        description="what is issued on each group, with predicted seconds"
    )
    network: tuple[CommunicatorChoice, ...] = Field(
        default=(),
        description="how the plan runs them: algorithm, chunks, windows, codec; empty: the library's defaults",
    )

    def predicted_s(self, op: str, num_bytes: float) -> float | None:
        """Predicted seconds of ``op`` on ``num_bytes`` (as ``bytes_per_rank``), alone on the network.

        The time of the nearest planned size is scaled in proportion to the bytes. The result is None if no planned size
        is within a factor of two, because latency would make the proportion wrong. A ``recv`` counts as ``send``.
        """
        planned_op = "send" if op == "recv" else op
        same = [one for one in self.collectives if one.op == planned_op and one.bytes_per_rank > 0]
        ratios = [(num_bytes / one.bytes_per_rank, one.time_s) for one in same]
        near = [(max(ratio, 1 / ratio), ratio * time_s) for ratio, time_s in ratios if 0.5 <= ratio <= 2]
        return min(near)[1] if near else None


class ReplicaBatch(Spec):
    """Micro-batches of some data-parallel replicas, where replicas have different numbers.

    Replica d has the coordinates dp_replicate = d // degrees.dp_shard and dp_shard = d % degrees.dp_shard. The mean
    gradient over a replica's own micro-batches must be weighted before the mean over replicas. Otherwise replicas with
    fewer micro-batches would count for more.
    """

    buildings: tuple[str, ...] = Field(description="buildings that these replicas touch")
    replicas: tuple[int, ...] = Field(min_length=1, description="their numbers d")
    num_micro_batches: PositiveInt = Field(description="micro-batches of each of them in a step")
    gradient_weight: float = Field(
        gt=0, description="num_micro_batches · replicas of the job / micro-batches of the step"
    )


class Rendezvous(Spec):
    """Address of the store through which the ranks find each other: one address, never all addresses of a host."""

    address: str = Field(
        min_length=1, description="address or name of rank 0's host; the store listens there and nowhere else"
    )
    port: int = Field(ge=1, le=65535)

    @model_validator(mode="after")
    def _is_one_address(self) -> Rendezvous:
        if self.address in ("0.0.0.0", "::", "*"):
            raise ValueError(
                f"address {self.address} would listen on every network of the host; name the one that the ranks share"
            )
        return self


class LaunchConfig(Spec):
    """A plan made executable: hosts, ranks, process groups, schedule and environment."""

    schema_version: Literal[1] = 1
    plan_name: str = Field(description="name of the job that was planned")
    plan_sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the plan's canonical JSON")
    world_size: PositiveInt
    degrees: Degrees
    axis_order: tuple[GridAxis, ...] = Field(description="mixed radix of the ranks, fastest axis first")
    sequence_length: PositiveInt
    global_batch_sequences: PositiveInt
    num_micro_batches: PositiveInt = Field(
        description="micro-batches per data-parallel replica and step; of the replicas with most where replica_batches differ"
    )
    replica_batches: tuple[ReplicaBatch, ...] = Field(
        default=(), description="micro-batches by replica where they differ; empty: all have num_micro_batches"
    )
    pipeline: PipelineChoice
    layers_per_stage: tuple[tuple[int, ...], ...] = Field(
        description="[pipeline rank][chunk] -> number of layers, a prediction layer among the last chunk's"
    )
    recompute: Recompute
    stage_recompute: tuple[Recompute, ...] | None = Field(
        default=None, description="[pipeline rank] -> policy, where recompute is per_stage"
    )
    shard: ShardLevel
    context_exchange: ContextExchange = "ring"
    activation_offload: OffloadShare = Field(
        default=0.0, description="share of every chunk's layers whose activations wait in host memory"
    )
    optimizer_offload: OffloadShare = Field(
        default=0.0, description="share of the optimizer states that the host holds and updates"
    )
    precision: Precision
    optimizer: Optimizer
    predicted_step_s: float = Field(gt=0)
    env: tuple[EnvVariable, ...] = ()
    rendezvous: Rendezvous | None = Field(
        default=None, description="where rank 0 listens; None: on the loopback for one host, else the launcher says"
    )
    hosts: tuple[LaunchHost, ...] = Field(min_length=1, description="in rank order: host 0 holds rank 0")
    rank_columns: tuple[str, ...] = Field(default=RANK_COLUMNS, description="meaning of the columns of ranks")
    ranks: tuple[RankRow, ...] = Field(description="[rank] -> one integer per column of rank_columns")
    process_groups: tuple[ProcessGroups, ...] = Field(description="one entry per axis of degree > 1")
    embedding: EmbeddingLaunch | None = Field(default=None, description="tables of a recommendation model")

    @model_validator(mode="after")
    def _sizes_agree(self) -> LaunchConfig:
        sizes = {
            "world_size": self.world_size,
            "degrees": self.degrees.world_size,
            "rows of ranks": len(self.ranks),
            "ranks of hosts": sum(host.num_ranks for host in self.hosts),
        }
        if len(set(sizes.values())) > 1:
            raise ValueError("sizes disagree: " + ", ".join(f"{name} {size}" for name, size in sizes.items()))
        if self.rank_columns != RANK_COLUMNS:
            raise ValueError(
                f"rank_columns of schema 1 are {', '.join(RANK_COLUMNS)}, got {', '.join(self.rank_columns)}"
            )
        return self

    @model_validator(mode="after")
    def _batch_and_stages_are_whole(self) -> LaunchConfig:
        """Refuse files whose stages or batch disagree: a program would silently train another model or batch."""
        stages = (
            {len(self.layers_per_stage), self.degrees.pp},
            {*map(len, self.layers_per_stage), self.pipeline.num_chunks},
        )
        if any(len(sizes) > 1 for sizes in stages):
            raise ValueError(
                f"layers_per_stage: {self.degrees.pp} lists of {self.pipeline.num_chunks} numbers are needed, as pp and "
                "num_chunks say"
            )
        batches = sum(len(share.replicas) * share.num_micro_batches for share in self.replica_batches)
        sequences = (batches or self.degrees.dp * self.num_micro_batches) * self.pipeline.micro_batch_sequences
        if sequences != self.global_batch_sequences:
            raise ValueError(
                f"the micro-batches of all replicas are {sequences} sequences a step, global_batch_sequences "
                f"{self.global_batch_sequences}"
            )
        return self

    @model_validator(mode="after")
    def _ranks_are_a_bijection(self) -> LaunchConfig:
        slots = {(host, local) for host, count in enumerate(h.num_ranks for h in self.hosts) for local in range(count)}
        taken = {row[:2] for row in self.ranks}
        if taken != slots:
            some = sorted(slots ^ taken)[0]
            raise ValueError(
                f"each process slot must hold one rank: (host, local) {some} is left out, doubled or unknown"
            )
        if len({row[2:7] for row in self.ranks}) != self.world_size:
            raise ValueError("two ranks have the same coordinates")
        for column, axis in enumerate(RANK_COLUMNS[2:], start=2):
            degree = self.degrees.of(axis)  # type: ignore[arg-type]
            worst = max(row[column] for row in self.ranks)
            if worst >= degree or min(row[column] for row in self.ranks) < 0:
                raise ValueError(f"coordinate {worst} on {axis} is outside 0..{degree - 1}")
        shard, cp, tp, ep = (RANK_COLUMNS.index(axis) for axis in ("dp_shard", "cp", "tp", "ep"))
        if any(row[ep] != expert_coordinate(self.degrees, row[shard], row[cp], row[tp]) for row in self.ranks):
            raise ValueError(
                f"the ep coordinate of a rank is its dp_shard coordinate modulo ep {self.degrees.ep}, with folded experts times "
                "tp · cp plus its place among these lanes"
            )
        return self

    @model_validator(mode="after")
    def _groups_follow_the_coordinates(self) -> LaunchConfig:
        stated = {groups.axis for groups in self.process_groups}
        needed: set[Axis] = {axis for axis in ALL_AXES if self.degrees.of(axis) > 1}
        if stated != needed or len(stated) != len(self.process_groups):
            raise ValueError(f"process_groups: one entry for each of {sorted(needed)} is needed, got {sorted(stated)}")
        for groups in self.process_groups:
            if len(groups.levels) != len(groups.ranks):
                raise ValueError(f"{groups.axis}: {len(groups.levels)} levels for {len(groups.ranks)} groups")
            if sorted(groups.ranks) != sorted(rank_groups(self.ranks, groups.axis, self.degrees)):
                raise ValueError(f"{groups.axis}: the groups do not follow from the coordinates of the ranks")
            for ranks, stated_level in zip(groups.ranks, groups.levels, strict=True):
                level = self.level_among(ranks)
                # hosts of one rack may form one scale-up domain, which no row of this file states
                if stated_level != level and (stated_level, level) != ("scale_up", "rack"):
                    raise ValueError(
                        f"{groups.axis}: rank {ranks[0]}'s group crosses {level}, and {stated_level} is stated"
                    )
            if groups.level != max(groups.levels, key=LINK_LEVELS.index):
                raise ValueError(f"{groups.axis}: level {groups.level} is not the outermost of its groups' levels")
        return self

    def coordinates(self, rank: int) -> dict[Axis, int]:
        """Coordinate of ``rank`` on every axis."""
        return {axis: self.ranks[rank][RANK_COLUMNS.index(axis)] for axis in ALL_AXES}

    def host(self, rank: int) -> LaunchHost:
        """The host of ``rank``."""
        return self.hosts[self.ranks[rank][0]]

    def place(self, rank: int) -> tuple[str, str, int, int, int]:
        """Region, building, zone, rack and host index of ``rank``."""
        host = self.host(rank)
        return host.region, host.building, host.zone, host.rack, self.ranks[rank][0]

    def level_between(self, rank: int, peer: int) -> LinkLevel:
        """Outermost level that messages between two ranks cross; two processes of one host are in one scale-up domain."""
        return self.level_among((rank, peer))

    def level_among(self, ranks: Iterable[int]) -> LinkLevel:
        """Outermost level that messages among ``ranks`` cross."""
        places = {self.place(rank) for rank in ranks}
        # places are sorted tuples: what the first and the last share, all between them share, too
        ends = zip(("region", "campus", "building", "zone", "rack"), min(places), max(places), strict=True)
        levels: Iterator[LinkLevel] = (level for level, first, last in ends if first != last)  # type: ignore[misc]
        return next(levels, "scale_up")

    def groups(self, axis: Axis) -> list[list[int]]:
        """Process groups of ``axis`` in ring order; one group per rank when the degree is 1."""
        for groups in self.process_groups:
            if groups.axis == axis:
                return [list(ranks) for ranks in groups.ranks]
        return [[rank] for rank in range(self.world_size)]

    def group_of(self, axis: Axis, rank: int) -> list[int]:
        """The group of ``axis`` that holds ``rank``, in ring order."""
        return next(ranks for ranks in self.groups(axis) if rank in ranks)


def expert_coordinate(degrees: Degrees, shard: Any, cp: Any, tp: Any) -> Any:
    """Coordinate inside the ep group, computed from the coordinates on dp_shard, cp and tp (numbers or arrays alike).

    Folded experts run over tp first, then cp, as in Megatron-Core and torchtitan.
    """
    if degrees.expert_lanes == 1:
        return shard % degrees.ep
    return (shard % degrees.ep * degrees.cp + cp) * degrees.tp + tp


def rank_groups(rows: tuple[RankRow, ...], axis: Axis, degrees: Degrees) -> tuple[tuple[int, ...], ...]:
    """Groups of ``axis``, each in ascending rank order, sorted by first rank.

    A group joins the ranks that agree on every other grid axis. An ep group joins ranks of one dp_shard group whose
    dp_shard coordinates lie in the same run of ``ep`` consecutive ones. Folded experts add all coordinates on tp and
    cp.
    """
    lanes = axis == "ep" and degrees.expert_lanes > 1
    own = RANK_COLUMNS.index("dp_shard" if axis == "ep" else axis)
    span = degrees.ep if axis == "ep" else degrees.of(axis)
    stride, strides = 1, [0] * 7
    for column in range(6, 1, -1):
        strides[column] = stride
        stride *= degrees.of(RANK_COLUMNS[column])  # type: ignore[arg-type]
    _, _, pp, replica, shard, cp, tp = strides
    each = strides[own]
    members: defaultdict[int, list[int]] = defaultdict(list)
    # a group's key is the grid cell of its first member: the own coordinate is rounded down to a multiple of span, and
    # folded experts start at coordinate 0 of tp and cp
    for rank, row in enumerate(rows):
        cell = row[2] * pp + row[3] * replica + row[4] * shard + row[5] * cp + row[6] * tp
        first = cell - row[own] % span * each
        members[first - lanes * (row[5] * cp + row[6] * tp)].append(rank)
    return tuple(tuple(ranks) for ranks in members.values())
