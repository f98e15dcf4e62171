"""What gradients and parameters of a placed decision cost overlapped with its layers: links shared with all-to-alls.

All-to-alls that the step waits for meet the traffic of the window on the link that limits them. Both get their share, and the
traffic, which would have travelled concurrently with computation, takes the all-to-alls' time:

    slowed = (share of the pass in which all-to-alls keep that link busy) · (1 − 1/n) · (seconds of it that the window's
    traffic takes)

of n buckets, one of which travels alone. Traffic of N seconds overlaps with passes of w seconds of computation and e of
all-to-alls: at full speed with the former, at half speed with the latter, which last twice as long. That makes N / (w + e)
passes, each longer by e. Traffic counts as if not encoded, and passes without what they wait for over tp and cp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.buckets import num_buckets
from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.chunk_work import StageWork
from scaleacross.cost_models.collectives import ALGORITHM_NAMES, Group
from scaleacross.cost_models.far_gradients import FarGradients
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, RACK
from scaleacross.cost_models.overlap import (
    EVERY_PASS,
    GRADIENTS,
    NO_CHUNKS,
    PARAMETERS,
    WINDOW_NAMES,
    ChunkWindows,
    Window,
    windows,
)
from scaleacross.cost_models.plan_traffic import bytes_out, carried_bytes, time_of
from scaleacross.cost_models.traffic import Flow, Volumes, flows
from scaleacross.cost_models.waiting_groups import RankGroups
from scaleacross.cost_models.window_traffic import windows_of
from scaleacross.spec.parallelism import SHARD_LEVELS, PipelineChoice
from scaleacross.workloads.equal_copies import EVERY_COPY, EqualCopies

ADAPTER: Final = 0
"""Row of ``link_seconds`` of what is no level: the network adapter, which all levels beyond the scale-up domain share."""


WHOLE_STREAM: Final = ("ring", "tree")
"""Algorithms that leave a building over the adapters of one scale-up domain."""


class BesideLayers(NamedTuple):
    """Beyond what ``overlap.windows`` know, by pipeline rank.

    Attributes:
        slowed_s: seconds per occurrence of each window, (windows, ranks).
        chunks: of each window, what single chunks leave its traffic.
        endless: windows of which only chunks hide anything.
        shapes: of every rank's groups that reduce gradients on the trunks for themselves, by communicator, one row each.
    """

    slowed_s: Floats
    chunks: tuple[ChunkWindows, ...]
    endless: frozenset[int] = frozenset()
    shapes: Mapping[str, GroupShape] = MappingProxyType({})

    def behind_chunks(self, gradients: ChunkWindows) -> BesideLayers:
        """With gradients that come apart from the rest of a backward pass: chunks hide no more of them than their window."""
        return self._in_chunks({GRADIENTS: gradients})

    def behind_passes(self, gradients: ChunkWindows) -> BesideLayers:
        """With gradients of sharded parameters, which only their chunks hide."""
        return self._in_chunks({GRADIENTS: gradients}, endless={GRADIENTS})

    def behind_trunks(self, gradients: FarGradients) -> BesideLayers:
        """With gradients, and parameters that cross buildings, which only their chunks hide."""
        own = {GRADIENTS: gradients.chunks, PARAMETERS: gradients.parameters}
        crossing = {window: chunks for window, chunks in own.items() if chunks is not None}
        return self._in_chunks(crossing, endless=crossing.keys())._replace(shapes=gradients.shapes)

    def _in_chunks(self, own: Mapping[int, ChunkWindows], endless: AbstractSet[int] = frozenset()) -> BesideLayers:
        """With the chunks of some windows, and of ``endless`` ones nothing but these."""
        chunks = tuple(own.get(window, chunks) for window, chunks in enumerate(self.chunks))
        return self._replace(chunks=chunks, endless=self.endless | endless)

    def on(self, over: Sequence[Window]) -> tuple[Window, ...]:
        """The windows with all of it."""
        return tuple(
            one._replace(
                length_s=np.full_like(one.length_s, np.inf) if window in self.endless else one.length_s,
                slowed_s=slowed,
                chunks=chunks,
            )
            for window, (one, slowed, chunks) in enumerate(zip(over, self.slowed_s, self.chunks, strict=True))
        )


def beside_layers(
    volumes: Volumes,
    groups: Mapping[str, Group],
    exchanges: RankGroups,
    pipeline: PipelineChoice,
) -> BesideLayers:
    """``volumes`` has a row for every pipeline rank, ``groups`` of all communicators one row; ``exchanges`` are the groups of
    all-to-alls that each rank waits for."""
    return BesideLayers(_sharing_links(volumes, groups, exchanges, pipeline), (NO_CHUNKS,) * len(WINDOW_NAMES))


def pieces_of_stages(volumes: Volumes, stages: StageWork) -> Floats:
    """Buckets of every virtual stage, (p·v,)."""
    held = stages.dense_parameters + stages.expert_parameters
    candidates = volumes.candidates.take(stages.rank)
    one_chunk = replace(candidates, num_chunks=np.ones_like(stages.rank))
    return num_buckets(volumes.job.overlap, one_chunk, stages.num_layers.astype(float), held)


def _sharing_links(
    volumes: Volumes, groups: Mapping[str, Group], waits: RankGroups, pipeline: PipelineChoice
) -> Floats:
    """``slowed_s``, (windows, ranks)."""
    row = np.array([volumes.work.moe_layers.argmax()])  # the first ranks may have no experts
    sent, pieces = flows(volumes.take(row)), float(volumes.work.buckets[row][0])
    exchange = next((flow for flow in sent if flow.axis == "ep"), None)
    shard = SHARD_LEVELS[int(volumes.candidates.shard[0])]
    nothing = np.zeros((len(WINDOW_NAMES), len(volumes.candidates)))
    if exchange is None:
        return nothing

    def busy_s(flow: Flow, group: Group) -> Floats:
        return link_seconds(flow, group, volumes.equal_copies, pipeline)

    over, taken = windows(volumes.candidates, volumes.work), np.zeros((NUM_LEVELS, *nothing.shape))
    for flow in sent:  # seconds of every link that the traffic of a window takes
        for window in windows_of(flow, shard):
            taken[:, window] += busy_s(flow, groups[flow.shape])[:, None] * pieces
    return _slowed_s(volumes, waits.each(partial(busy_s, exchange)), taken, over)


def _slowed_s(volumes: Volumes, busy: Floats, taken: Floats, over: Sequence[Window]) -> Floats:
    """By which all-to-alls, which keep links ``busy`` (links, ranks), last longer beside traffic that has ``taken`` some."""
    met = taken[busy.argmax(axis=0), :, np.arange(busy.shape[1])].T
    slowed, once = np.zeros_like(met), slice(EVERY_PASS.start)
    beside = 1 - np.stack([one.first_fraction for one in over[once]])
    slowed[once] = _share_of_passes(volumes, busy.max(axis=0)) * beside * met[once]
    return slowed


def _share_of_passes(volumes: Volumes, busy_s: Floats) -> Floats:
    """Share of a backward and a forward pass in which all-to-alls, of ``busy_s`` each, keep a link busy, (2, ranks)."""
    work = volumes.work
    waited = (1 - volumes.job.experts.overlap_fraction) * work.moe_layers * busy_s
    ahead, back = 2 * waited, (2 + 2 * volumes.tokens_again) * waited
    return np.stack([back / (work.backward_s + back), ahead / (work.forward_s + ahead)])


def link_seconds(flow: Flow, group: Group, copies: EqualCopies, pipeline: PipelineChoice) -> Floats:
    """Seconds for which one call, run by all groups of its axis, keeps the adapter (row 0) and each level's links busy."""
    algorithm = ALGORITHM_NAMES[int(time_of(flow, group, copies).algorithm[0])]
    shape, links = group.shape.take(0), group.links
    out, farther = np.zeros(NUM_LEVELS), 0.0  # bytes per rank that pass on their way farther out
    for level in range(NUM_LEVELS - 1, RACK - 1, -1):
        if shape.fanout[level] > 1:
            sent = bytes_out(flow, algorithm, shape, level, pipeline)
            carried = carried_bytes(flow, algorithm, shape, level, pipeline)
            if flow.op == "all_to_all":
                equal = copies if flow.axis == "ep" else EVERY_COPY
                share = float(equal.distinct_share(shape.degree / shape.members[level]))
                sent, carried = sent * share, carried * share
            own = sent / float(shape.members[RACK if algorithm in WHOLE_STREAM else level])
            # a level's own children exchange what is theirs; all other algorithms count what goes farther themselves
            farther = own + farther if algorithm == "hierarchical" else own
            if algorithm == "hierarchical":
                passing = own if level >= CAMPUS else farther  # trunks between regions are others than those inside one
                carried = passing * float(shape.members[level]) * float(shape.crossing[level])
            out[level] = carried / links.capacity[level]
    out[ADAPTER] = farther / links.bandwidth[RACK]
    return out
