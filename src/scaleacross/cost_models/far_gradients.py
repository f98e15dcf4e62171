"""Gradients that cross buildings: pipeline ranks come to the trunks one after another, and each is alone there for a while.

The price of a collective takes the groups of all pipeline ranks to share a trunk from beginning to end (``groups``). But the last
ranks have their gradients first, the last micro-batch's way back through the ranks before them earlier (``StageEnds``). Then
the rank r is no sooner done than

* alone: its own groups with the trunks to themselves, T_r seconds, behind what its chunks leave them from the moment that they
  have their gradients (``split_backward``);
* in the queue: a trunk that is busy with all ranks' gradients for N seconds carries what is ready first while it waits for the
  rest. Of buckets e with w_e of these seconds, ready L_e before the pipeline ends, exposed are max_e (Σ_{e' ready with e or
  later} w_e' − L_e).

Communicators follow one another in the queue. A rank that holds less than the fullest takes its share of the fullest's seconds.

Parameters that cross buildings are gathered by all ranks at once, from the start of the step, and hide behind all that comes
before the first forward pass of their stage, waits and messages included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.chunk_work import StageWork
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.far_shapes import SHARD_COMMUNICATORS, apart
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.layout import Axis
from scaleacross.cost_models.levels import CAMPUS, Levels
from scaleacross.cost_models.overlap import GRADIENTS, WINDOW_NAMES, ChunkWindows, together_s
from scaleacross.cost_models.pipeline.stage_ends import StageEnds
from scaleacross.cost_models.split_backward import gradient_chunks, parameter_chunks
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.window_traffic import GRADIENT_AXES, gradients_s
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
        stages, ends, pieces: of every virtual stage: what it holds, when it has its gradients, in how many buckets.
        axes: degree and stride of pp and of all communicators on ``levels``.
        groups: of every communicator, one row each.
    """

    volumes: Volumes
    stages: StageWork
    ends: StageEnds
    pieces: Floats
    axes: Mapping[str, Axis]
    levels: Levels
    groups: Mapping[str, Group]


def is_far(volumes: Volumes, groups: Mapping[str, Group]) -> bool:
    """Whether gradients of several pipeline ranks, reduced once in a step and overlapped with computation, cross buildings."""
    spans = [int(groups[axis].shape.span[0]) for axis in GRADIENT_AXES]
    return len(volumes.candidates) > 1 and volumes.job.overlap.gradient_reduce and max(spans) >= CAMPUS


def far_gradients(of: Ranks, traffic: Mapping[GridAxis, tuple[Floats, ...]]) -> FarGradients:
    """``traffic`` by axis of all ranks' groups on the trunks at once, by communicator, each (TRAFFIC_ROWS, ranks)."""
    names = (*GRADIENT_AXES, "expert")
    own = apart(of.groups, of.axes, of.levels, names)
    alone = {axis: _alone(of, axis, parts, own) for axis, parts in traffic.items()}
    work, chunks, (carried, taken) = of.volumes.work, near_gradients(of), _carried(of)
    pace = together_s(_all(alone), work.buckets)[GRADIENTS]
    busy = sum((part[len(WINDOW_NAMES) + GRADIENTS] for part in _all(traffic)), start=np.zeros(len(carried)))
    queued = queue(of.stages, of.ends, of.pieces, busy / len(carried), carried, pace)
    both = ChunkWindows(*(np.vstack(rows) for rows in zip(chunks, queued, strict=True)))
    gathered, shapes = set(SHARD_COMMUNICATORS) & set(own), {name: group.shape for name, group in own.items()}
    if not gathered:
        return FarGradients(alone, both, None, shapes)
    held = parameter_chunks(of.stages, of.ends, of.pieces, work.buckets, carried, taken)
    return FarGradients(alone, both, held, shapes)


def near_gradients(of: Ranks) -> ChunkWindows:
    """What the chunks of every rank leave gradients that share no link with those of other ranks."""
    return gradient_chunks(of.stages, of.ends, of.pieces, of.volumes.work.buckets, *_carried(of))


def _carried(of: Ranks) -> tuple[Floats, Floats]:
    """Parameters whose gradients every rank is taken to have, and what a second of them takes of products, (ranks,) each."""
    work = of.volumes.work
    return work.dense_parameters + work.expert_parameters, work.taken_fraction * (1 - work.elementwise_fraction)


def _all(traffic: Mapping[GridAxis, Sequence[Floats]]) -> list[Floats]:
    return [part for parts in traffic.values() for part in parts]


def _alone(of: Ranks, axis: GridAxis, shared: Sequence[Floats], groups: Mapping[str, Group]) -> Sequence[Floats]:
    """Traffic of an axis with its gradients' groups alone on the trunks."""
    if axis not in groups:
        return shared
    own, expert = (groups.get(name, of.groups[name]) for name in (axis, "expert"))
    out = [part.copy() for part in shared]
    rows = [GRADIENTS, len(WINDOW_NAMES) + GRADIENTS]
    for part, alone in zip(out, gradients_s(axis, of.volumes, own, expert), strict=True):
        part[rows] = alone
    return out


def queue(
    stages: StageWork, ends: StageEnds, pieces: Floats, busy_s: Floats, carried: Floats, pace_s: Floats
) -> ChunkWindows:
    """The trunks' queue as a window of every rank, whose traffic takes ``pace_s`` alone: one row.

    Args:
        stages, ends, pieces: as of ``Ranks``.
        busy_s: of the trunks by every rank's gradients, (ranks,); ``carried``: parameters whose gradients those are.
    """
    count = pieces.astype(np.int64)
    stage = np.repeat(np.arange(len(count)), count)
    left = 1 - (np.arange(len(stage)) - np.repeat(np.cumsum(count) - count, count) + 1) / count[stage]
    rank = stages.rank[stage]
    ready = ends.total_s - ends.last_end_s[stage] + left * (ends.last_end_s - ends.last_start_s)[stage]
    share = (stages.dense_parameters + stages.expert_parameters)[stage] / count[stage] / carried[rank]
    order = np.argsort(ready, kind="stable")
    waiting = np.cumsum((busy_s[rank] * share)[order])
    worst = int((waiting - ready[order]).argmax())
    nothing = np.zeros((1, len(carried)))
    return ChunkWindows(waiting[worst] / np.maximum(pace_s, TINY_S)[None], nothing, nothing + ready[order][worst])
