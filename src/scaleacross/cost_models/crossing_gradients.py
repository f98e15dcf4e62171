"""Exposed gradients that cross buildings: pipeline ranks use the inter-building links one after another.

The time of a collective assumes that the groups of all pipeline ranks share a link from beginning to end (``groups``).
But the last ranks have their gradients first. The last micro-batch then still goes back through the ranks before
(``StageEnds``).

Rank r ends no sooner than the later of these:

* alone: its own groups with the links to themselves, T_r seconds, less what their chunks overlap with from the moment
  that they have their gradients (``split_backward``);
* in the queue: a link that is busy with all ranks' gradients for N seconds carries ready buckets while it waits for
  others. Bucket e takes w_e of these seconds and is ready L_e before the pipeline ends. Exposed are max_e (Σ_{e' ready
  with e or later} w_e' − L_e).

All ranks gather parameters at once from the start of the step. They overlap with all that precedes the first forward
pass of their stage, waits and messages included.

Passes are taken to leave these links to gradients and parameters. Where they use them, too, estimates
are up to 10 % too low (docs/results/ablation.md).

Communicators follow one another. A stage takes the share of its rank's seconds that it has in the rank's parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.buckets import hidden_reductions
from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.chunk_work import StageWork
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.crossing_shapes import SHARD_COMMUNICATORS, apart
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.layout import Axis
from scaleacross.cost_models.levels import CAMPUS, Levels
from scaleacross.cost_models.overlap import BUSY, GRADIENTS, WINDOW_NAMES, ChunkWindows, together_s
from scaleacross.cost_models.pipeline.actions import Actions
from scaleacross.cost_models.pipeline.stage_ends import StageEnds
from scaleacross.cost_models.sharding import reduced_every_pass
from scaleacross.cost_models.split_backward import gradient_chunks, parameter_chunks
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.window_traffic import GRADIENT_AXES, communicators
from scaleacross.spec.parallelism import GridAxis

TINY_S: Final = 1e-30


class CrossingGradients(NamedTuple):
    """Traffic of every rank's gradients and parameters alone on the links, and the windows that overlap with it.

    Attributes:
        traffic: of all windows by axis and communicator, each (TRAFFIC_ROWS, ranks).
        chunks: windows of gradients after single chunks and after the queue's bucket.
        parameters: the same for parameters; None where these stay in buildings.
        shapes: of every rank's groups, one row each, by communicator that crosses buildings.
    """

    traffic: Mapping[GridAxis, Sequence[Floats]]
    chunks: ChunkWindows
    parameters: ChunkWindows | None
    shapes: Mapping[str, GroupShape]


class Ranks(NamedTuple):
    """The pipeline ranks of a placed decision.

    Attributes:
        volumes: a row for every rank.
        stages: work of every virtual stage.
        pieces: buckets in which the traffic of each virtual stage travels, (p·v,).
        passes: the pipeline that the ranks run.
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
    def taken(self) -> Floats:
        """Seconds by which computation falls behind per second of concurrent traffic, (ranks,)."""
        work = self.volumes.work
        return work.contention_fraction * (1 - work.elementwise_fraction)


def gradients_cross(volumes: Volumes, groups: Mapping[str, Group]) -> bool:
    """Whether gradients that are reduced once in a step and overlapped with computation cross buildings.

    False for a single rank that scatters shards with every pass: its gradients are timed with its passes
    (``ShardCalls.replicated_s``).
    """
    spans = [int(groups[axis].shape.span[0]) for axis in GRADIENT_AXES]
    timed_with_passes = len(volumes.candidates) == 1 and bool(reduced_every_pass(volumes.candidates)[0])
    hidden = hidden_reductions(volumes.job.overlap, volumes.candidates)
    return bool(hidden.all()) and not timed_with_passes and max(spans) >= CAMPUS


@dataclass(frozen=True)
class CrossingTraffic:
    """Gradients and parameters of ranks whose gradients cross buildings.

    Attributes:
        own: groups of single ranks, a row each, by communicator that crosses buildings.
        shared: traffic with all ranks' groups on the links at once, by axis and communicator, each (TRAFFIC_ROWS,
            ranks).
        unshared: the same with the groups of each single rank alone on the inter-building links.
    """

    of: Ranks
    own: Mapping[str, Group]
    shared: Mapping[GridAxis, Sequence[Floats]]
    unshared: Mapping[GridAxis, Sequence[Floats]]

    @classmethod
    def on(cls, of: Ranks, traffic: Mapping[GridAxis, Sequence[Floats]]) -> CrossingTraffic:
        """Traffic of ``of``, given the ``traffic`` with the groups of all ranks on the links at once."""
        own = apart(of.groups, of.axes, of.levels, (*GRADIENT_AXES, "expert"))

        def alone(axis: GridAxis) -> Sequence[Floats]:
            groups = (own.get(name, of.groups[name]) for name in (axis, "expert"))
            return communicators(axis, of.volumes, *groups) if axis in own else traffic[axis]

        return cls(of, own, traffic, {axis: alone(axis) for axis in traffic})

    @property
    def gathers(self) -> bool:
        """Whether parameters cross buildings."""
        return not self.own.keys().isdisjoint(SHARD_COMMUNICATORS)

    def exposed(self) -> CrossingGradients:
        """Traffic and windows of the pipeline's gradients and parameters."""
        traffic = {axis: [_with_gradients(*both) for both in self._pairs(axis)] for axis in self.shared}
        pace = together_s([part for parts in traffic.values() for part in parts], self.of.volumes.work.buckets)
        gradients, parameters = self._behind_passes(pace[GRADIENTS])
        shapes = {name: group.shape for name, group in self.own.items()}
        return CrossingGradients(traffic, gradients, parameters if self.gathers else None, shapes)

    def _behind_passes(self, pace_s: Floats) -> tuple[ChunkWindows, ChunkWindows]:
        """Windows of gradients, ``pace_s`` alone, and parameters, as if passes left the links to them."""
        of, nothing = self.of, np.zeros(len(self.of.volumes.candidates))
        busy = sum((part[BUSY][GRADIENTS] for parts in self.shared.values() for part in parts), start=nothing)
        busy_s, left_s = queue(of.ends, of.pieces, (busy / len(busy))[of.stages.rank] * of.stages.held_share)
        one = np.ones((1, len(busy)))
        queued = ChunkWindows(busy_s / np.maximum(pace_s, TINY_S)[None], 0 * one, left_s * one)
        both = ChunkWindows(*(np.vstack(rows) for rows in zip(near_gradients(of), queued, strict=True)))
        return both, parameter_chunks(of.stages, of.ends, of.pieces, of.volumes.work.buckets, of.taken)

    def _pairs(self, axis: GridAxis) -> Iterator[tuple[Floats, Floats]]:
        """Traffic of every communicator of an axis: with all ranks' groups at once, and with single ranks' groups."""
        return zip(self.shared[axis], self.unshared[axis], strict=True)


def _with_gradients(shared: Floats, alone: Floats) -> Floats:
    """``shared`` traffic of a communicator with the gradients of groups ``alone`` on inter-building links."""
    out = shared.copy()
    rows = [GRADIENTS, len(WINDOW_NAMES) + GRADIENTS]
    out[rows] = alone[rows]
    return out


def near_gradients(of: Ranks) -> ChunkWindows:
    """Windows of gradients that share no link with those of other ranks, from the chunks of every rank."""
    return gradient_chunks(of.stages, of.ends, of.pieces, of.volumes.work.buckets, of.taken)


class Queue(NamedTuple):
    """The bucket that outlasts the pipeline most.

    This bucket and all that are ready later keep the links busy for ``busy_s``, from ``left_s`` before the pipeline
    ends.
    """

    busy_s: float
    left_s: float


def queue(ends: StageEnds, pieces: Floats, busy_s: Floats) -> Queue:
    """The critical bucket where links serve buckets one after another, in the order in which they are ready.

    Args:
        ends, pieces: as of ``Ranks``.
        busy_s: seconds for which every stage's gradients keep the links busy, (p·v,).
    """
    count = pieces.astype(np.int64)
    stage = np.repeat(np.arange(len(count)), count)
    # bucket k of n is ready k/n into the last backward pass of its stage; left is the part of the pass after it
    left = 1 - (np.arange(len(stage)) - np.repeat(np.cumsum(count) - count, count) + 1) / count[stage]
    ready = ends.total_s - ends.last_end_s[stage] + left * (ends.last_end_s - ends.last_start_s)[stage]
    order = np.argsort(ready, kind="stable")
    # sorted by time to the pipeline's end, so the sum covers a bucket and all that are ready later
    waiting = np.cumsum((busy_s / count)[stage][order])
    worst = int((waiting - ready[order]).argmax())
    return Queue(float(waiting[worst]), float(ready[order][worst]))
