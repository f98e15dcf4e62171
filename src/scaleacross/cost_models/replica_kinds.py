"""The replicas of a placed decision, kind by kind: their pipeline, timed, and what falls behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.axes import Terms, waiting
from scaleacross.cost_models.beside_layers import BesideLayers, beside_layers, pieces_of_stages
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.far_gradients import Ranks, far_gradients, is_far
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.layer_seconds import times_by_type
from scaleacross.cost_models.layout import Layout
from scaleacross.cost_models.levels import Levels
from scaleacross.cost_models.overlap import Window, windows
from scaleacross.cost_models.pipeline.placed import TimedPipeline
from scaleacross.cost_models.pipeline.unplaced import UnplacedPipelines
from scaleacross.cost_models.settings import Floats, settings_of
from scaleacross.cost_models.shared_trunks import replicas_traffic
from scaleacross.cost_models.step import behind_ranks_s, communicator_axes, played_step_s
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.uneven import GRADIENTS, Split, own_gradients, rank_rows
from scaleacross.cost_models.waiting_groups import waiting_groups
from scaleacross.cost_models.window_traffic import communicators
from scaleacross.cost_models.work import Work
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GRID_AXES, GridAxis
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import Decision
from scaleacross.workloads.layer_profile import ModelProfile


class ReplicaKind(NamedTuple):
    """Replicas of one kind, by whose gradients travel (``uneven.own_gradients``); a plan states those of the first."""

    carried: tuple[Carried, ...]

    @property
    def stated(self) -> Carried:
        """What a plan says of its communication."""
        return self.carried[0]

    @property
    def longest(self) -> Carried:
        """What makes the step."""
        return max(self.carried, key=lambda one: one.step_s)

    @property
    def step_s(self) -> float:
        """The step, were all replicas of this kind."""
        return self.longest.step_s


class Carried(NamedTuple):
    """Replicas with the fullest rank's gradients on all ranks, or with those of each: ``volumes`` with a row for every pipeline
    rank, their pipeline, what falls into windows, and what that costs beyond them."""

    volumes: Volumes
    pipeline: TimedPipeline
    terms: tuple[Terms, ...]
    beside: BesideLayers

    @property
    def busiest(self) -> Volumes:
        """The row of the busiest rank, with the gradients of the rank that reduces most over replicas."""
        volumes = self.volumes.take(np.array([self.pipeline.rank]))
        heaviest = self.volumes.work.take(np.array([self.volumes.replica_gradient_bytes.argmax()]))
        gradients = {name: getattr(heaviest, name) for name in GRADIENTS}
        return replace(volumes, work=replace(volumes.work, **gradients))

    @property
    def least_windows(self) -> tuple[Window, ...]:
        """What hides traffic on the rank that leaves most of it exposed, one row."""
        over = self.beside.on(windows(self.volumes.settings, self.volumes.work))
        return tuple(one.take(np.array([self._least_hiding])) for one in over)

    @property
    def gradient_shapes(self) -> dict[str, GroupShape]:
        """Shapes of its groups that reduce gradients on the trunks for themselves."""
        return {name: shape.take(self._least_hiding) for name, shape in self.beside.shapes.items()}

    @property
    def _least_hiding(self) -> int:
        return int(behind_ranks_s(self.volumes, self.terms, self.beside).argmax())

    @property
    def step_s(self) -> float:
        """The step of such replicas."""
        return played_step_s(*self)


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
    settings = settings_of(decision, job.global_batch_sequences)
    times = times_by_type(profile, job, levels.accelerators, settings)
    rows, work, _ = rank_rows(profile, job, levels.accelerators, settings, times, layout, split, micro_batches)
    first = np.zeros(1, dtype=np.int64)
    launch_s = max(accelerator.collective_start_s for accelerator in levels.accelerators)
    volumes = Volumes(job, profile, settings, work.take(first), launch_s, decision.pipeline.order)
    pipelines = UnplacedPipelines.of(volumes, levels.accelerators, times, layout, split, micro_batches)

    stages = pipelines.any_stages

    def with_gradients(timed: TimedPipeline, carried: Work) -> Carried:
        ranks = timed.replicas * len(split) + np.arange(len(split))
        own = replace(volumes, settings=rows.take(ranks), work=carried.take(ranks))
        exchanges = pipelines.exchanges(groups, timed, waits)
        traffic = {axis: communicators(axis, own, groups[axis], groups["expert"]) for axis in GRID_AXES}
        if timed.actions is not None and is_far(own, groups):
            pieces, ends = pieces_of_stages(own, stages), timed.actions.every_end
            far = far_gradients(Ranks(own, each.take(ranks), stages, ends, pieces, axes, levels, groups), traffic)
            terms = _terms(own, far.traffic)
            beside = beside_layers(own, stages, groups, exchanges, decision.pipeline, terms, timed.ends)
            return Carried(own, timed, terms, beside.behind_trunks(far))
        traffic["dp_replicate"] = (replicas_traffic(own, groups["dp_replicate"]),)
        terms = _terms(own, traffic)
        beside = beside_layers(own, stages, groups, exchanges, decision.pipeline, terms, timed.ends)
        return Carried(own, timed, terms, beside if carried is work else beside.behind_drain(timed.drain_s))

    axes = communicator_axes(decision.degrees, placement.axis_order)
    waits = waiting_groups(groups, axes, levels)
    spans = [int(groups[axis].shape.span[0]) for axis in ("dp_shard", "dp_replicate")]
    each, another = own_gradients(profile, job, settings, split, work)
    gradients = (work,) if not another else (each, work) if spans[1] > spans[0] else (work, each)
    return [
        ReplicaKind(tuple(with_gradients(timed, carried) for carried in gradients))
        for timed in pipelines.timed(groups, waits)
    ]


def _terms(volumes: Volumes, traffic: Mapping[GridAxis, Sequence[Floats]]) -> tuple[Terms, ...]:
    """Of every axis, from the traffic of its communicators."""
    return tuple(waiting(volumes, Terms({}, tuple(parts))) for parts in traffic.values())
