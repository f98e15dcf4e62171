"""Slowdown of exposed collectives by the concurrent gradients and parameters of a placed decision.

Exposed calls over tp, cp and ep meet the traffic of a window on a link. Both get their share of it. The traffic, which
would otherwise be concurrent with computation, uses the calls' time. The link where passes lose most counts: a call
that another link or its connections limit lasts twice its time on this one, where that is longer.

A pass computes for w seconds. Its calls keep the link busy for b, and h seconds of attention overlap with them (those
of keys and values; h = 0 for all others). Alone it lasts w + (b − h)⁺. With concurrent traffic its calls last twice as
long, and it lasts w + (2b − h)⁺, of which b are the calls' own. So traffic of N seconds overlaps with
N / (w + (2b − h)⁺ − b) passes, each longer by (2b − h)⁺ − (b − h)⁺. The traffic has n buckets, one of which travels
alone:

    slowed = (1 − 1/n) · N · ((2b − h)⁺ − (b − h)⁺) / (w + (2b − h)⁺ − b)

For tp and ep only calls count that the job does not overlap with computation. Traffic counts as if not encoded.
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
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.crossing_gradients import CrossingGradients
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.least_waits import cp_waits_s
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
from scaleacross.spec.network_choice import ALGORITHM_NAMES
from scaleacross.spec.parallelism import SHARD_LEVELS, PipelineChoice
from scaleacross.workloads.equal_copies import EVERY_COPY, EqualCopies

ADAPTER: Final = 0
"""Row 0 of ``link_seconds``: the network adapter, which all levels beyond the scale-up domain share."""
CALL: Final = NUM_LEVELS
"""Last row of ``link_seconds``: the call itself."""
ENDLESS: Final = 2.0**50
"""Bytes of a call that takes no longer for its latencies."""


PASSES: Final = ("backward", "forward")
"""Passes that overlap with gradients and with parameters, in this order."""
WHOLE_STREAM: Final = ("ring", "tree")
"""Algorithms that leave a building over the adapters of one scale-up domain."""


class LayerOverlap(NamedTuple):
    """Corrections to ``overlap.windows`` by pipeline rank.

    Attributes:
        slowed_s: slowdown of exposed collectives per occurrence of each window, (windows, ranks).
        chunks: for each window, the windows of single chunks.
        endless: windows whose traffic overlaps only with ``chunks``.
        shapes: groups of every rank that reduce gradients alone on inter-building links, one row each, by communicator.
    """

    slowed_s: Floats
    chunks: tuple[ChunkWindows, ...]
    endless: frozenset[int] = frozenset()
    shapes: Mapping[str, GroupShape] = MappingProxyType({})

    def later(self, longer_s: Floats) -> LayerOverlap:
        """A copy with ``slowed_s`` at least ``longer_s``, (2, ranks), by which passes are late (``late_passes``)."""
        slowed_s = self.slowed_s.copy()
        slowed_s[: len(longer_s)] = np.maximum(slowed_s[: len(longer_s)], longer_s)
        return self._replace(slowed_s=slowed_s)

    def in_chunks(self, gradients: ChunkWindows) -> LayerOverlap:
        """A copy for gradients computed apart from the rest of a backward pass: their chunks limit the overlap, too."""
        return self._in_chunks({GRADIENTS: gradients})

    def in_passes(self, gradients: ChunkWindows) -> LayerOverlap:
        """A copy for gradients of sharded parameters, which overlap only with their chunks."""
        return self._in_chunks({GRADIENTS: gradients}, endless={GRADIENTS})

    def over_links(self, gradients: CrossingGradients) -> LayerOverlap:
        """A copy for gradients, and parameters that cross buildings, which overlap only with their chunks."""
        own = {GRADIENTS: gradients.chunks, PARAMETERS: gradients.parameters}
        crossing = {window: chunks for window, chunks in own.items() if chunks is not None}
        return self._in_chunks(crossing, endless=crossing.keys())._replace(shapes=gradients.shapes)

    def _in_chunks(self, own: Mapping[int, ChunkWindows], endless: AbstractSet[int] = frozenset()) -> LayerOverlap:
        """A copy with the chunks in ``own`` by window; traffic of ``endless`` windows overlaps with nothing else."""
        chunks = tuple(own.get(window, chunks) for window, chunks in enumerate(self.chunks))
        return self._replace(chunks=chunks, endless=self.endless | endless)

    def on(self, over: Sequence[Window]) -> tuple[Window, ...]:
        """The windows ``over`` with these corrections."""
        return tuple(
            one._replace(
                length_s=np.full_like(one.length_s, np.inf) if window in self.endless else one.length_s,
                slowed_s=slowed,
                chunks=chunks,
            )
            for window, (one, slowed, chunks) in enumerate(zip(over, self.slowed_s, self.chunks, strict=True))
        )


def overlap_of_layers(
    volumes: Volumes,
    groups: Mapping[str, Group],
    exchanges: RankGroups,
    pipeline: PipelineChoice,
) -> LayerOverlap:
    """Slowdown of exposed collectives by concurrent traffic on the same links, as ``LayerOverlap`` without chunks.

    Args:
        volumes: a row for every pipeline rank.
        groups: of all communicators, one row each.
        exchanges: the groups of all-to-alls that each rank waits for.
    """
    return LayerOverlap(_sharing_links(volumes, groups, exchanges, pipeline), (NO_CHUNKS,) * len(WINDOW_NAMES))


def pieces_of_stages(volumes: Volumes, stages: StageWork) -> Floats:
    """Number of buckets of every virtual stage, (p·v,)."""
    held = stages.dense_parameters + stages.expert_parameters
    candidates = volumes.candidates.take(stages.rank)
    one_chunk = replace(candidates, num_chunks=np.ones_like(stages.rank))
    return num_buckets(volumes.job.overlap, one_chunk, stages.num_layers.astype(float), held)


def _sharing_links(
    volumes: Volumes, groups: Mapping[str, Group], waits: RankGroups, pipeline: PipelineChoice
) -> Floats:
    """Slowdown in seconds of exposed collectives per occurrence of each window, (windows, ranks)."""
    links, work = (CALL + 1, len(volumes.candidates)), volumes.work
    calls = {"tp": work.tp_gathers, "cp": work.layers, "ep": work.moe_layers}
    if all(int(groups[axis].shape.span[0]) < RACK for axis in calls):
        return np.zeros((len(WINDOW_NAMES), links[1]))
    # calls are timed once, on a rank that has all kinds of them, and scaled to the others by their counts
    at = np.lexsort((work.layers, work.moe_layers))[-1:]  # a rank that has all kinds of calls
    shard, pieces = SHARD_LEVELS[int(volumes.candidates.shard[0])], float(work.buckets[at][0])
    overlapped = {"tp": volumes.job.overlap.tp_fraction, "ep": volumes.job.experts.overlap_fraction}
    busy, keys, apart = np.zeros((len(WINDOW_NAMES), *links)), np.zeros((2, *links)), np.zeros((2, *links))

    def busy_s(flow: Flow, group: Group) -> Floats:
        return link_seconds(flow, group, volumes.equal_copies, pipeline)

    for flow in flows(volumes.take(at)):
        found = windows_of(flow, shard)
        for window in found:
            busy[window] += busy_s(flow, groups[flow.shape])[:, None] * pieces
        if flow.axis in calls and not found:
            own = waits.each(partial(busy_s, flow)) if flow.axis == "ep" else busy_s(flow, groups[flow.shape])[:, None]
            often = np.array([flow.phases.get(phase, 0.0) for phase in PASSES])
            often *= (1 - overlapped.get(flow.axis, 0.0)) / float(volumes.candidates.num_micro_batches[0])
            into = keys if flow.axis == "cp" and flow.op != "all_to_all" else apart
            into += often[:, None, None] * own * (calls[flow.axis] / calls[flow.axis][at])
    return _slowed_s(volumes, keys, apart, busy)


def _slowed_s(volumes: Volumes, keys: Floats, apart: Floats, busy: Floats) -> Floats:
    """Slowdown in seconds of passes while the traffic of windows travels, (windows, ranks).

    Args:
        keys, apart: seconds for which a backward and a forward pass keep every link busy, (2, links, ranks): by keys
            and values, which overlap with attention, and by all other calls.
        busy: seconds for which the traffic of every window keeps them busy, (windows, links, ranks).
    """
    work, over = volumes.work, windows(volumes.candidates, volumes.work)
    at = (apart + keys).argmax(axis=1)[:, None]  # the link that limits the calls
    once = slice(EVERY_PASS.start)
    b, own = (np.take_along_axis(each, at, 1)[:, 0] for each in (keys, apart))
    computed = np.stack([work.backward_s, work.forward_s])
    alone = _keys_wait_s(volumes, b)
    slowed = np.zeros((len(WINDOW_NAMES), len(volumes.candidates)))
    beside = 1 - np.stack([one.first_fraction for one in over[once]])
    for link in range(NUM_LEVELS):
        met = busy[once, link]
        if met.any():
            # sharing a link doubles the time of calls on it; another link may still limit them
            twice = _keys_wait_s(volumes, np.maximum(b, 2 * keys[:, link]))
            longer = np.maximum(own, 2 * apart[:, link])
            # time of a pass in which the link is left to the traffic: w + (2b − h)⁺ − b
            left = computed + longer + twice - keys[:, link] - apart[:, link]
            slowed[once] = np.maximum(slowed[once], beside * met * (longer - own + twice - alone) / left)
    return slowed


def _keys_wait_s(volumes: Volumes, busy_s: Floats) -> Floats:
    """Exposed seconds of backward and forward passes for keys and values that travel for ``busy_s``, (2, ranks)."""
    back, forward = busy_s
    again, one = volumes.keys_again, np.ones_like(forward)
    waits = cp_waits_s(volumes, forward, back - again * forward, None, one, volumes.work.attention_s, again)
    return np.stack(waits[::-1])


def link_seconds(flow: Flow, group: Group, copies: EqualCopies, pipeline: PipelineChoice) -> Floats:
    """Seconds for which one call of all groups of its axis keeps the adapter (row 0) and each level's links busy.

    The last row are the seconds in which the bytes of the call move, latencies left out. They are more than those of its
    links where its connections limit it.
    """
    code = int(time_of(flow, group, copies).algorithm[0])
    algorithm, attained = ALGORITHM_NAMES[code], group.attained(flow.op, code, flow.what)[0]
    shape = group.shape.take(0)
    out, farther = np.zeros(CALL + 1), 0.0  # bytes per rank that pass on their way farther out
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
            out[level] = carried / attained[level]
    out[ADAPTER] = farther / group.links.bandwidth[RACK]
    endless = time_of(replace(flow, size_bytes=ENDLESS), group, copies)
    out[CALL] = max(float(endless.time_s[0]) * flow.size_bytes / ENDLESS, out.max())
    return out
