"""Gradients that cross buildings: pipeline ranks come to the inter-building links one after another.

The time of a collective takes the groups of all pipeline ranks to share a link from beginning to end (``groups``). But the last
ranks have their gradients first, the last micro-batch's way back through the ranks before them earlier (``StageEnds``).

Where passes leave these links to gradients and parameters, the rank r is no sooner done than

* alone: its own groups with the links to themselves, T_r seconds, behind what its chunks leave them from the moment that they
  have their gradients (``split_backward``);
* in the queue: a link that is busy with all ranks' gradients for N seconds carries what is ready first while it waits for the
  rest. Of buckets e with w_e of these seconds, ready L_e before the pipeline ends, exposed are max_e (Σ_{e' ready with e or
  later} w_e' − L_e).

Parameters are gathered by all ranks at once, from the start of the step, and hide behind all that comes before the first forward
pass of their stage, waits and messages included.

Where passes cross these links, too, all of it is played together (``pipeline.shared_links``). What these calls take of
multiprocessors counts in the least that their window leaves exposed.

Communicators follow one another. A rank that holds less than the fullest takes its share of the fullest's seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.buckets import hidden_reductions
from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.chunk_work import StageWork
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.far_shapes import SHARD_COMMUNICATORS, apart
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.layout import Axis
from scaleacross.cost_models.levels import CAMPUS, Levels
from scaleacross.cost_models.overlap import BUSY, CALLS, GRADIENTS, PARAMETERS, WINDOW_NAMES, ChunkWindows, together_s
from scaleacross.cost_models.pipeline.actions import Actions
from scaleacross.cost_models.pipeline.shared_links import States
from scaleacross.cost_models.pipeline.stage_ends import StageEnds
from scaleacross.cost_models.sharding import reduced_every_pass
from scaleacross.cost_models.split_backward import gradient_chunks, parameter_chunks
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.window_traffic import GRADIENT_AXES, communicators, crosses_buildings
from scaleacross.spec.parallelism import GridAxis

TINY_S: Final = 1e-30


class FarGradients(NamedTuple):
    """What every rank's gradients take alone, and what hides them.

    Attributes:
        traffic: of all windows by axis and communicator, each (TRAFFIC_ROWS, ranks).
        chunks: what single chunks leave gradients, and the queue; ``parameters``: likewise, None where these stay in buildings.
        shapes: of every rank's groups, by communicator that crosses buildings, one row each.
    """

    traffic: Mapping[GridAxis, Sequence[Floats]]
    chunks: ChunkWindows
    parameters: ChunkWindows | None
    shapes: Mapping[str, GroupShape]


class Ranks(NamedTuple):
    """The pipeline ranks of a placed decision.

    Attributes:
        volumes: a row for every rank, with the gradients of the fullest one.
        stages, pieces: what every virtual stage holds, and in how many buckets that travels.
        passes: the pipeline that they run.
        axes: degree and stride of pp and of all communicators on ``levels``.
        groups: of every communicator, one row each.
    """

    volumes: Volumes
    stages: StageWork
    passes: Actions
    pieces: Floats
    axes: Mapping[str, Axis]
    levels: Levels
    groups: Mapping[str, Group]

    @property
    def ends(self) -> StageEnds:
        """When every stage needs its parameters and has its gradients."""
        return self.passes.ends

    @property
    def share(self) -> Floats:
        """Share of every stage in the gradients that its rank is taken to have, (p·v,)."""
        held = self.stages.dense_parameters + self.stages.expert_parameters
        return np.asarray(held / _carried(self)[0][self.stages.rank])


def is_far(volumes: Volumes, groups: Mapping[str, Group]) -> bool:
    """Whether gradients that are reduced once in a step and overlapped with computation cross buildings. Those of a single rank
    that scatters shards with every pass are timed with these (``ShardCalls.replicated_s``)."""
    spans = [int(groups[axis].shape.span[0]) for axis in GRADIENT_AXES]
    timed_with_passes = len(volumes.candidates) == 1 and bool(reduced_every_pass(volumes.candidates)[0])
    hidden = hidden_reductions(volumes.job.overlap, volumes.candidates)
    return bool(hidden.all()) and not timed_with_passes and max(spans) >= CAMPUS


@dataclass(frozen=True)
class FarTraffic:
    """Gradients and parameters of ranks whose gradients cross buildings.

    Attributes:
        own: groups of single ranks, a row each, of communicators that cross buildings.
        shared: traffic by axis of all ranks' groups at once, by communicator, each (TRAFFIC_ROWS, ranks).
        apart: the same of single ranks' groups, each alone on the links between buildings.
    """

    of: Ranks
    own: Mapping[str, Group]
    shared: Mapping[GridAxis, Sequence[Floats]]
    apart: Mapping[GridAxis, Sequence[Floats]]

    @classmethod
    def on(cls, of: Ranks, traffic: Mapping[GridAxis, Sequence[Floats]]) -> FarTraffic:
        """Of ranks with the traffic of all ranks' groups at once."""
        own = apart(of.groups, of.axes, of.levels, (*GRADIENT_AXES, "expert"))

        def alone(axis: GridAxis) -> Sequence[Floats]:
            groups = (own.get(name, of.groups[name]) for name in (axis, "expert"))
            return communicators(axis, of.volumes, *groups) if axis in own else traffic[axis]

        return cls(of, own, traffic, {axis: alone(axis) for axis in traffic})

    @property
    def gathers(self) -> bool:
        """Whether parameters cross buildings."""
        return not self.own.keys().isdisjoint(SHARD_COMMUNICATORS)

    @property
    def least_s(self) -> float:
        """Seconds until gradients that share links with passes are there at least; 0 where they do not.

        Passes that share no link are no later: ranks run actions and send messages in one order whatever these take. And links
        carry no more than a second's calls in a second.
        """
        if self.states is None:
            return 0.0
        ends = replace(self.of.passes, link_s=None, waits=None).ends
        busy_s, left_s = queue(ends, self.of.pieces, self.states.gradients_s[1].sum(axis=0))
        return ends.total_s + max(0.0, busy_s - left_s)

    def exposed(self, pipeline_s: float) -> FarGradients:
        """What they leave exposed of a pipeline that takes ``pipeline_s`` without them."""
        traffic = {axis: [_with_gradients(*both) for both in self._pairs(axis)] for axis in self.shared}
        pace = together_s([part for parts in traffic.values() for part in parts], self.of.volumes.work.buckets)
        if self.states is None:
            gradients, parameters = self._behind_passes(pace[GRADIENTS])
        else:
            ends = replace(self.of.passes, states=self.states).ends
            gradients, parameters = _sharing_links(ends, pace, pipeline_s)
        shapes = {name: group.shape for name, group in self.own.items()}
        return FarGradients(traffic, gradients, parameters if self.gathers else None, shapes)

    @cached_property
    def states(self) -> States | None:
        """Gradients and parameters of every stage, its share of what its rank is taken to hold.

        None where no pass shares links with them. Parameters that stay in buildings are left out: they hide behind computation
        (``overlap``).
        """
        if self.of.passes.link_s is None:
            return None
        parts = []
        for axis in GRADIENT_AXES:
            for name, (every, one) in zip((axis, "expert"), self._pairs(axis), strict=False):
                parts.append(np.stack([one[CALLS], _busy_s(one[BUSY], every[BUSY], self.own.get(name))]))
        calls = np.stack(parts, axis=2)[..., self.of.stages.rank] * self.of.share
        return States(calls[:, GRADIENTS], calls[:, PARAMETERS] * self.gathers, self.of.pieces)

    def _behind_passes(self, pace_s: Floats) -> tuple[ChunkWindows, ChunkWindows]:
        """Gradients, which take ``pace_s`` alone, and parameters, where passes leave the links between buildings to them."""
        of, (carried, taken) = self.of, _carried(self.of)
        busy = sum((part[BUSY][GRADIENTS] for parts in self.shared.values() for part in parts), start=0 * carried)
        busy_s, left_s = queue(of.ends, of.pieces, (busy / len(busy))[of.stages.rank] * of.share)
        one = np.ones((1, len(carried)))
        queued = ChunkWindows(busy_s / np.maximum(pace_s, TINY_S)[None], 0 * one, left_s * one)
        both = ChunkWindows(*(np.vstack(rows) for rows in zip(near_gradients(of), queued, strict=True)))
        return both, parameter_chunks(of.stages, of.ends, of.pieces, of.volumes.work.buckets, carried, taken)

    def _pairs(self, axis: GridAxis) -> Iterator[tuple[Floats, Floats]]:
        """Traffic of every communicator of an axis: of all ranks' groups at once, and of single ranks' groups."""
        return zip(self.shared[axis], self.apart[axis], strict=True)


def _with_gradients(shared: Floats, alone: Floats) -> Floats:
    """Traffic of a communicator with its gradients' groups alone on links between buildings."""
    out = shared.copy()
    rows = [GRADIENTS, len(WINDOW_NAMES) + GRADIENTS]
    out[rows] = alone[rows]
    return out


def _sharing_links(ends: StageEnds, pace_s: Floats, pipeline_s: float) -> tuple[ChunkWindows, ChunkWindows]:
    """Gradients and parameters where passes share links with them, as these ``ends`` show.

    Parameters make a pipeline longer that takes ``pipeline_s`` without them, gradients outlast it. If they take longer than
    ``pace_s``, (windows, ranks), as much more is exposed.
    """
    one = np.ones((1, pace_s.shape[1]))
    exposed_s = {GRADIENTS: max(0.0, ends.states_s - ends.total_s), PARAMETERS: ends.total_s - pipeline_s}
    gradients, parameters = (
        ChunkWindows(one, 0 * one, pace_s[window][None] - seconds) for window, seconds in exposed_s.items()
    )
    return gradients, parameters


def _busy_s(alone: Floats, shared: Floats, own: Group | None) -> Floats:
    """Seconds for which calls of every rank keep links between buildings busy, (windows, ranks).

    Ranks whose groups cross take turns as far as they meet: together they keep the busiest link busy for what all do at once.

    Args:
        alone, shared: those of a rank's ``own`` groups alone, and of all ranks' groups at once.
    """
    if own is None:
        return np.zeros_like(alone)
    crossing = alone * crosses_buildings(own.shape)
    every = crossing.sum(axis=1, keepdims=True)
    met = np.divide(shared, every, out=np.ones_like(crossing), where=every > 0)
    return np.asarray(crossing * np.minimum(1.0, met))


def near_gradients(of: Ranks) -> ChunkWindows:
    """What the chunks of every rank leave gradients that share no link with those of other ranks."""
    return gradient_chunks(of.stages, of.ends, of.pieces, of.volumes.work.buckets, *_carried(of))


def _carried(of: Ranks) -> tuple[Floats, Floats]:
    """Parameters whose gradients every rank is taken to have, and what a second of them takes of products, (ranks,) each."""
    work = of.volumes.work
    return work.dense_parameters + work.expert_parameters, work.taken_fraction * (1 - work.elementwise_fraction)


class Queue(NamedTuple):
    """The bucket that outlasts the pipeline most: it and all that are ready later keep the links busy for ``busy_s``, from
    ``left_s`` before the pipeline ends."""

    busy_s: float
    left_s: float


def queue(ends: StageEnds, pieces: Floats, busy_s: Floats) -> Queue:
    """The links serve one bucket after another, in the order in which they are ready.

    Args:
        ends, pieces: as of ``Ranks``.
        busy_s: of the links by every stage's gradients, (p·v,).
    """
    count = pieces.astype(np.int64)
    stage = np.repeat(np.arange(len(count)), count)
    left = 1 - (np.arange(len(stage)) - np.repeat(np.cumsum(count) - count, count) + 1) / count[stage]
    ready = ends.total_s - ends.last_end_s[stage] + left * (ends.last_end_s - ends.last_start_s)[stage]
    order = np.argsort(ready, kind="stable")
    waiting = np.cumsum((busy_s / count)[stage][order])
    worst = int((waiting - ready[order]).argmax())
    return Queue(float(waiting[worst]), float(ready[order][worst]))
