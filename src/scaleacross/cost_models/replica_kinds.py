"""The replicas of a placed decision, kind by kind: their pipeline, timed, and what falls behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.axes import Terms, waiting
from scaleacross.cost_models.beside_layers import BesideLayers, beside_layers, pieces_of_stages
from scaleacross.cost_models.candidates import Floats, candidate_of
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.far_gradients import Ranks, far_gradients, is_far, near_gradients
from scaleacross.cost_models.far_shapes import slowest_apart
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.layer_seconds import times_by_type
from scaleacross.cost_models.layout import Layout
from scaleacross.cost_models.levels import Levels
from scaleacross.cost_models.overlap import GRADIENTS as GRADIENTS_WINDOW
from scaleacross.cost_models.overlap import ChunkWindows, Window, together_s, windows
from scaleacross.cost_models.pipeline.actions import Actions
from scaleacross.cost_models.pipeline.placed import TimedPipeline
from scaleacross.cost_models.pipeline.unplaced import UnplacedPipelines
from scaleacross.cost_models.recomputation import on_ranks
from scaleacross.cost_models.step import StepTimes, behind_ranks_s, played_step_s, played_times
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.uneven import GRADIENTS, Split, own_gradients, rank_rows
from scaleacross.cost_models.waiting_groups import waiting_groups
from scaleacross.cost_models.window_traffic import communicators
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GRID_AXES, GridAxis
from scaleacross.spec.placement import Placement, communicator_axes
from scaleacross.spec.plan import Decision
from scaleacross.workloads.layer_profile import ModelProfile


class ReplicaKind(NamedTuple):
    """Replicas of one kind.

    Attributes:
        volumes: a row for every pipeline rank, with the gradients of the fullest one.
        pipeline, terms, beside: their pipeline, what falls into windows, and what that costs beyond them.
        heaviest: columns GRADIENTS, one row, of the rank whose gradients a plan states.
        rank_shapes: of the groups that one pipeline rank's passes call, by communicator that crosses buildings.
    """

    volumes: Volumes
    pipeline: TimedPipeline
    terms: tuple[Terms, ...]
    beside: BesideLayers
    heaviest: Mapping[str, Floats]
    rank_shapes: Mapping[str, GroupShape]

    @property
    def times(self) -> StepTimes:
        """The step, were all replicas of this kind."""
        return played_times(*self[:4])

    @property
    def step_s(self) -> float:
        """``times.step_s`` alone."""
        return played_step_s(*self[:4])

    @property
    def busiest(self) -> Volumes:
        """The row of the busiest rank, with the gradients that a plan states."""
        volumes = self.volumes.take(np.array([self.pipeline.rank]))
        return replace(volumes, work=replace(volumes.work, **self.heaviest))

    @property
    def least_windows(self) -> tuple[Window, ...]:
        """What hides traffic on the rank that leaves most of it exposed, one row."""
        over = self.beside.on(windows(self.volumes.candidates, self.volumes.work, placed=True))
        return tuple(one.take(np.array([self._least_hiding])) for one in over)

    @property
    def gradient_shapes(self) -> dict[str, GroupShape]:
        """Shapes of its groups that reduce gradients on the trunks for themselves."""
        return {name: shape.take(self._least_hiding) for name, shape in self.beside.shapes.items()}

    @property
    def _least_hiding(self) -> int:
        return int(behind_ranks_s(self.volumes, self.terms, self.beside).argmax())


def replica_kinds(
    job: Job,
    profile: ModelProfile,
    levels: Levels,
    decision: Decision,
    placement: Placement,
    groups: Mapping[str, Group],
    layout: Layout,
    split: Split,
    micro_batches: Sequence[int],
) -> list[ReplicaKind]:
    """All kinds of replicas of a placed decision; the one whose step is longest makes the plan's.

    Args:
        groups: of every communicator, one row each.
        split, micro_batches: layers of every stage and chunk, and micro-batches of every class of ``layout``.
    """
    candidates = on_ranks(candidate_of(decision, job.global_batch_sequences), decision.stage_recompute)
    first = np.zeros(1, dtype=np.int64)
    times = times_by_type(profile, job, levels.accelerators, candidates.take(first))
    rows, work, _ = rank_rows(profile, job, levels.accelerators, candidates, times, layout, split, micro_batches)
    launch_s = max(accelerator.collective_start_s for accelerator in levels.accelerators)
    volumes = Volumes(job, profile, candidates.take(first), work.take(first), launch_s, decision.pipeline.order)
    pipelines = UnplacedPipelines.of(volumes, levels.accelerators, times, layout, split, micro_batches, candidates)

    stages = pipelines.any_stages
    axes = communicator_axes(decision.degrees, placement.axis_order)
    waits = waiting_groups(groups, axes, levels)
    ranks = np.arange(len(split))

    own_groups = slowest_apart(groups, axes, levels)
    shapes = {name: group.shape.take(0) for name, group in own_groups.items()}

    def ranked(own: Volumes, actions: Actions) -> Ranks:
        return Ranks(own, stages, actions.ends, pieces_of_stages(own, stages), axes, levels, groups)

    def kind(timed: TimedPipeline) -> ReplicaKind:
        here = timed.replicas * len(split) + ranks
        own = replace(volumes, candidates=rows.take(here), work=work.take(here))
        heaviest = _stated_gradients(own, groups, split)
        exchanges = pipelines.exchanges(groups, timed, waits)
        traffic = {axis: communicators(axis, own, groups[axis], groups["expert"]) for axis in GRID_AXES}
        far = far_gradients(ranked(own, timed.actions), traffic) if timed.actions and is_far(own, groups) else None
        terms = _terms(own, traffic if far is None else far.traffic)
        beside = beside_layers(own, groups, exchanges, decision.pipeline)
        if far is not None:
            beside = beside.behind_trunks(far)
        elif timed.replicated_s is not None:
            near = near_gradients(ranked(own, timed.actions)) if timed.actions else None
            beside = beside.behind_passes(near or _outlasting(terms, timed.replicated_s, own))
        elif timed.actions and timed.actions.splits:
            beside = beside.behind_chunks(near_gradients(ranked(own, timed.actions)))
        return ReplicaKind(own, timed, terms, beside, heaviest, shapes)

    return [kind(timed) for timed in pipelines.timed(groups, waits, own_groups)]


def _stated_gradients(volumes: Volumes, groups: Mapping[str, Group], split: Split) -> dict[str, Floats]:
    """Columns GRADIENTS, one row, of the rank whose gradients a plan states.

    That is the rank that holds most parameters. Where the replicas' groups reach farther than the shards', it is the rank that
    reduces most over replicas: ep divides experts already, so one with the embedding may hold most and reduce little.
    """
    shards, replicas = (int(groups[axis].shape.span[0]) for axis in ("dp_shard", "dp_replicate"))
    if replicas <= shards:
        return {name: getattr(volumes.work, name)[:1] for name in GRADIENTS}
    own = own_gradients(volumes.profile, volumes.job, volumes.candidates.take(np.zeros(1, dtype=np.int64)), split)
    every = replace(volumes, work=replace(volumes.work, **own)).replica_gradient_bytes
    return {name: column[[int(every.argmax())]] for name, column in own.items()}


def _outlasting(terms: Sequence[Terms], replicated_s: float, volumes: Volumes) -> ChunkWindows:
    """What a single rank leaves of gradients that outlast its backward pass for ``replicated_s``, one row; longer ones do by as
    much more."""
    pace_s = together_s([part for term in terms for part in term.traffic_s], volumes.work.buckets)[GRADIENTS_WINDOW]
    one = np.ones_like(pace_s)[None]
    return ChunkWindows(one, 0 * one, pace_s[None] - replicated_s)


def _terms(volumes: Volumes, traffic: Mapping[GridAxis, Sequence[Floats]]) -> tuple[Terms, ...]:
    """Of every axis, from the traffic of its communicators."""
    return tuple(waiting(volumes, Terms({}, tuple(parts))) for parts in traffic.values())
