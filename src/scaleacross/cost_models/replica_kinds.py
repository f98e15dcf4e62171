"""The replicas of a placed decision, kind by kind: the timed pipeline of each, and what follows or outlasts it.

``plan_cost`` times every decision with it: ``Replicas`` holds what no placement changes, ``PlacedReplicas`` its timed
pipelines, and ``ReplicaKind`` the step time of one kind. The slowest kind is the step of the decision.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.axes import Terms, waiting
from scaleacross.cost_models.candidates import Floats, candidate_of
from scaleacross.cost_models.chunk_work import stage_work
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.columns import concatenated
from scaleacross.cost_models.crossing_gradients import CrossingTraffic, Ranks, gradients_cross, near_gradients
from scaleacross.cost_models.crossing_shapes import SHARD_COMMUNICATORS, slowest_apart
from scaleacross.cost_models.differing_ranks import Rows, Split, rank_rows
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.late_passes import later_s
from scaleacross.cost_models.layer_overlap import LayerOverlap, overlap_of_layers, pieces_of_stages
from scaleacross.cost_models.layer_seconds import TimedLayers
from scaleacross.cost_models.layout import Axis, Layout
from scaleacross.cost_models.levels import Levels
from scaleacross.cost_models.overlap import GRADIENTS as GRADIENTS_WINDOW
from scaleacross.cost_models.overlap import ChunkWindows, Window, together_s, windows
from scaleacross.cost_models.pipeline.actions import Actions
from scaleacross.cost_models.pipeline.placed import TimedPipeline
from scaleacross.cost_models.pipeline.unplaced import UnplacedPipelines
from scaleacross.cost_models.recomputation import on_ranks
from scaleacross.cost_models.step import StepTimes, after_ranks_s, placed_step_s, placed_times
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.waiting_groups import RankGroups, groups_of_ranks, waiting_groups
from scaleacross.cost_models.window_traffic import communicators
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GRID_AXES, GridAxis
from scaleacross.spec.placement import Placement, communicator_axes
from scaleacross.spec.plan import Decision
from scaleacross.workloads.layer_profile import ModelProfile

GRADIENTS: Final = ("dense_parameters", "expert_parameters", "buckets")
"""Columns of ``Work`` that decide what travels over data parallel in a step."""
Traffic = Mapping[GridAxis, tuple[Floats, ...]]
"""Seconds in the windows of ``overlap``, by axis and communicator, each (TRAFFIC_ROWS, ranks)."""


class ReplicaKind(NamedTuple):
    """Replicas whose pipelines are alike.

    Attributes:
        volumes: a row for every pipeline rank.
        pipeline: their timed pipeline.
        terms: traffic that falls into windows.
        layer_overlap: what that traffic adds beyond the laws of windows.
        rank_shapes: shapes of the groups that one pipeline rank's passes call, for communicators that cross buildings.
        heaviest: the rank whose gradients a plan states.
    """

    volumes: Volumes
    pipeline: TimedPipeline
    terms: tuple[Terms, ...]
    layer_overlap: LayerOverlap
    rank_shapes: Mapping[str, GroupShape]
    heaviest: int

    @property
    def times(self) -> StepTimes:
        """The step in which all replicas are of this kind."""
        return placed_times(*self[:4])

    @property
    def step_s(self) -> float:
        """Step time of ``times``, s, without its breakdown."""
        return placed_step_s(*self[:4])

    @property
    def busiest(self) -> Volumes:
        """Volumes of the busiest rank, one row, with the gradients that a plan states."""
        volumes, work = self.volumes.take(np.array([self.pipeline.rank])), self.volumes.work
        own = {name: getattr(work, name)[[self.heaviest]] for name in GRADIENTS}
        return replace(volumes, work=replace(volumes.work, **own))

    @property
    def calling(self) -> Volumes:
        """``busiest``, then a row for every pipeline rank (the argument of ``traffic.flows``)."""
        first, every = self.busiest, self.volumes
        candidates = concatenated([first.candidates, every.candidates])
        return replace(first, candidates=candidates, work=concatenated([first.work, every.work]))

    @property
    def least_windows(self) -> tuple[Window, ...]:
        """Windows of the rank with most exposed traffic, one row."""
        over = self.layer_overlap.on(windows(self.volumes.candidates, self.volumes.work, placed=True))
        return tuple(one.take(np.array([self._least_hiding])) for one in over)

    @property
    def gradient_shapes(self) -> dict[str, GroupShape]:
        """Shapes of the groups of that rank that reduce gradients alone on inter-building links."""
        return {name: shape.take(self._least_hiding) for name, shape in self.layer_overlap.shapes.items()}

    @property
    def _least_hiding(self) -> int:
        return int(after_ranks_s(self.volumes, self.terms, self.layer_overlap).argmax())


class OnLayout(NamedTuple):
    """A decision on one layout.

    Attributes:
        accelerators: the types that it runs on.
        split: layers of every stage and chunk.
        micro_batches: of every replica class of ``layout``.
    """

    job: Job
    profile: ModelProfile
    accelerators: Sequence[Accelerator]
    decision: Decision
    layout: Layout
    split: Split
    micro_batches: Sequence[int]


@dataclass(frozen=True)
class Replicas:
    """The replicas of a decision on one layout, before the placement of its groups is known.

    Attributes:
        volumes: of the decision, one row.
        rows: of every pipeline rank of every replica class (``differing_ranks.rank_rows``).
        pipelines: without the time of collectives and messages.
        split: layers of every stage and chunk.
    """

    decision: Decision
    volumes: Volumes
    rows: Rows
    pipelines: UnplacedPipelines
    split: Split

    @classmethod
    def of(cls, given: OnLayout) -> Replicas:
        """The replicas of a decision on a layout."""
        job, profile, accelerators, decision, layout, split, micro_batches = given
        candidates = on_ranks(candidate_of(decision, job.global_batch_sequences), decision.stage_recompute)
        first = np.zeros(1, dtype=np.int64)
        timed = TimedLayers.of(profile, job, accelerators, candidates)
        rows = rank_rows(timed, layout, split, micro_batches)
        launch_s = max(accelerator.collective_start_s for accelerator in accelerators)
        order = decision.pipeline.order
        volumes = Volumes(job, profile, candidates.take(first), rows.work.take(first), launch_s, order)
        pipelines = UnplacedPipelines(volumes, stage_work(timed, split), layout, micro_batches)
        return cls(decision, volumes, rows, pipelines, split)

    def placed(self, placement: Placement, groups: Mapping[str, Group], levels: Levels) -> PlacedReplicas:
        """The replicas with timed pipelines; ``groups`` has one row for every communicator."""
        axes = communicator_axes(self.decision.degrees, placement.axis_order)
        waits, own = waiting_groups(groups, axes, levels), slowest_apart(groups, axes, levels)
        shards = groups_of_ranks(groups, axes, levels, SHARD_COMMUNICATORS)
        return PlacedReplicas(self, axes, groups, levels, waits, own, self.pipelines.timed(groups, waits, own, shards))


@dataclass
class KnownReplicas:
    """Memory of ``Replicas`` that placements and networks of one decision share; another decision empties it."""

    _decision: Decision | None = None
    _known: dict[Hashable, Replicas] = field(default_factory=dict)

    def of(self, given: OnLayout) -> Replicas:
        """``Replicas.of``, computed once for each layout. Every call must have the same job and profile."""
        bare = given.decision.model_copy(update={"placement": None, "network": None})
        if bare != self._decision:
            self._decision, self._known = bare, {}
        types = tuple(one.name for one in given.accelerators), tuple(one.types for one in given.layout)
        # layouts with equal types and batches have equal pipelines until groups are placed
        key = *types, tuple(given.micro_batches)
        if key not in self._known:
            self._known[key] = Replicas.of(given._replace(decision=bare))
        return self._known[key]


@dataclass(frozen=True)
class PlacedReplicas:
    """The replicas of a placed decision and their pipelines, one for every kind of replica.

    Attributes:
        axes: degree and stride of every communicator on ``levels``.
        groups: of every communicator, one row.
        waits: groups of communicators whose pipeline ranks do not all wait alike (``waiting_groups``).
        own: groups of the pipeline rank that crosses farthest (``crossing_shapes.slowest_apart``).
    """

    replicas: Replicas
    axes: Mapping[str, Axis]
    groups: Mapping[str, Group]
    levels: Levels
    waits: Mapping[str, RankGroups]
    own: Mapping[str, Group]
    pipelines: Sequence[TimedPipeline]

    @property
    def pipeline_s(self) -> float:
        """Seconds of the longest pipeline, a lower bound on the step time."""
        return max(timed.total_s for timed in self.pipelines)

    def step_s(self, limit_s: float, after_pipeline_s: float) -> float:
        """Step time, s; inf as soon as it is known to be ``limit_s`` or more.

        That is known where the longest pipeline and ``after_pipeline_s``, a lower bound on what follows every pipeline,
        take so long.
        """
        if self.pipeline_s + after_pipeline_s >= limit_s:
            return np.inf
        longest = 0.0
        for timed in self.pipelines:
            own, traffic = self._traffic(timed)
            crossing = self._crossing_traffic(timed, own, traffic)
            longest = max(longest, self._kind(timed, own, traffic, crossing).step_s)
        return longest

    def kinds(self) -> list[ReplicaKind]:
        """All kinds of replicas; the one with the longest step is the plan's."""
        every = []
        for timed in self.pipelines:
            own, traffic = self._traffic(timed)
            every.append(self._kind(timed, own, traffic, self._crossing_traffic(timed, own, traffic)))
        return every

    def _traffic(self, timed: TimedPipeline) -> tuple[Volumes, Traffic]:
        """Volumes of a kind's ranks, a row each, and their traffic in windows by axis and communicator."""
        ranks, rows, groups = len(self.replicas.split), self.replicas.rows, self.groups
        here = timed.replicas * ranks + np.arange(ranks)
        own = replace(self.replicas.volumes, candidates=rows.candidates.take(here), work=rows.work.take(here))
        return own, {axis: communicators(axis, own, groups[axis], groups["expert"]) for axis in GRID_AXES}

    def _crossing_traffic(self, timed: TimedPipeline, own: Volumes, traffic: Traffic) -> CrossingTraffic | None:
        """Traffic of gradients that cross buildings; None where none do."""
        return (
            CrossingTraffic.on(self._ranks(own, timed.passes), traffic) if gradients_cross(own, self.groups) else None
        )

    def _kind(
        self, timed: TimedPipeline, own: Volumes, traffic: Traffic, crossing: CrossingTraffic | None
    ) -> ReplicaKind:
        decision, groups = self.replicas.decision, self.groups
        exchanges = self.replicas.pipelines.exchanges(groups, timed, self.waits)
        exposed = None if crossing is None else crossing.exposed()
        terms = _terms(own, traffic if exposed is None else exposed.traffic)
        layer_overlap = overlap_of_layers(own, groups, exchanges, decision.pipeline)
        # ``later_s`` holds for whole backward passes only
        if timed.actions and not timed.actions.splits:
            over = layer_overlap.on(windows(own.candidates, own.work, placed=True))
            parts, ranks = [part for term in terms for part in term.traffic_s], self._ranks(own, timed.actions)
            layer_overlap = layer_overlap.later(later_s(ranks, over, parts, crossing is not None and crossing.gathers))
        if exposed is not None:
            layer_overlap = layer_overlap.over_links(exposed)
        elif timed.replicated_s is not None:
            near = near_gradients(self._ranks(own, timed.actions)) if timed.actions else None
            layer_overlap = layer_overlap.in_passes(near or _outlasting(terms, timed.replicated_s, own))
        elif timed.actions and timed.actions.splits:
            layer_overlap = layer_overlap.in_chunks(near_gradients(self._ranks(own, timed.actions)))
        shapes = {name: group.shape.take(0) for name, group in self.own.items()}
        return ReplicaKind(own, timed, terms, layer_overlap, shapes, _heaviest(own, groups))

    def _ranks(self, own: Volumes, actions: Actions) -> Ranks:
        stages = self.replicas.pipelines.any_stages
        return Ranks(own, stages, actions, pieces_of_stages(own, stages), self.axes, self.levels, self.groups)


def _heaviest(volumes: Volumes, groups: Mapping[str, Group]) -> int:
    """The rank whose gradients a plan states: the one that holds most parameters.

    Where groups of replicas cross a wider level than groups of shards, it is the rank that reduces most over replicas.
    As ep divides experts already, the rank with the embedding may hold most and reduce little.
    """
    shards, replicas = (int(groups[axis].shape.span[0]) for axis in ("dp_shard", "dp_replicate"))
    held = volumes.work.dense_parameters + volumes.work.expert_parameters
    return int((volumes.replica_gradient_bytes if replicas > shards else held).argmax())


def _outlasting(terms: Sequence[Terms], replicated_s: float, volumes: Volumes) -> ChunkWindows:
    """Chunk window of a single rank, one row, whose gradients stay exposed for ``replicated_s``.

    ``replicated_s`` is the time by which they outlast its backward pass. Gradients that take longer are exposed for as
    much longer.
    """
    pace_s = together_s([part for term in terms for part in term.traffic_s], volumes.work.buckets)[GRADIENTS_WINDOW]
    one = np.ones_like(pace_s)[None]
    return ChunkWindows(one, 0 * one, pace_s[None] - replicated_s)


def _terms(volumes: Volumes, traffic: Mapping[GridAxis, Sequence[Floats]]) -> tuple[Terms, ...]:
    """``Terms`` of every axis, from the traffic of its communicators."""
    return tuple(waiting(volumes, Terms({}, tuple(parts))) for parts in traffic.values())
