"""Calls of passes that wait while messages between pipeline ranks pass the same inter-building links.

Where a building ends inside groups of cp or ep, the calls of these few groups cross a link that the messages of all
pipelines cross, too. (Where the groups of all ranks cross, they crowd it themselves: ``shared_links``.) All flows get
the same share of it. Take a call that keeps an empty link busy for b seconds over n flows. It lasts b·N/n seconds more
while N flows of messages pass, but no longer than until these have passed. A layer computes for a seconds before its
call, and h seconds of the call's delay overlap with computation. So a layer that begins M seconds before they have
passed is longer by

    max(0, min(M, a + b·N/n) − (a + h))

* keys and values   forward a = 0, backward a = the layer without attention; h = attention's seconds beyond the call
* heads, tokens     a = 0 (tokens of a forward pass: its attention), h = 0: they overlap with nothing

``sharing_loop`` times these layers. Messages that go the same way (``shared_links``) pass one after another. A call
waits for the way with most messages due, because rings and exchanges use both directions. Of several links it is
assumed to cross the busiest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.axes import axis_calls
from scaleacross.cost_models.candidates import ALL_TO_ALL, Bools, Floats, Ints
from scaleacross.cost_models.chunk_work import StageWork
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.compute import ATTENTION_BACKWARD_RATIO
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import CAMPUS
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.waiting_groups import RankGroups
from scaleacross.cost_models.window_traffic import crosses_buildings, on_trunks
from scaleacross.schedules.pipeline import Kind


class MessageWaits(NamedTuple):
    """Layers whose calls may wait for messages, for F, B, I and W of every virtual stage, (4, p·v).

    Attributes:
        layers: number of such layers of an action, 0 where none of its calls crosses buildings.
        ahead_s, hidden_s, more_s: a, h and b·N/n of each.
    """

    layers: Ints
    ahead_s: Floats
    hidden_s: Floats
    more_s: Floats

    def behind(self, occupancy_s: Floats, crossing: Bools) -> MessageWaits | None:
        """These waits, or None where no layer may wait for messages that occupy a link for ``occupancy_s``."""
        longest = float(np.where(crossing, occupancy_s, 0.0).max(initial=0.0))
        may_wait = (self.layers > 0) & (longest > self.ahead_s + self.hidden_s) & (self.more_s > self.hidden_s)
        return self if may_wait.any() else None


def message_waits(
    volumes: Volumes, work: StageWork, groups: Mapping[str, Group], waits: Mapping[str, RankGroups]
) -> MessageWaits | None:
    """Waits for messages in the passes of one decision; None where no messages or no calls cross buildings.

    Args:
        work: work of its virtual stages on one accelerator type.
        groups: of the pipeline rank whose calls cross farthest, one row each.
        waits: groups of ranks that wait for their own alone (``waiting_groups``).
    """
    if not crosses_buildings(groups["pp"].shape).any():
        return None
    messages = _rings(groups["pp"].shape)
    layers, ahead_s, hidden_s, more_s = np.zeros((4, len(Kind), len(work.rank)))
    for name, often, each in (
        ("cp_outer" if int(volumes.candidates.cp_inner[0]) > 1 else "cp", work.attention_layers, _keys),
        ("ep", work.moe_layers, _tokens),
    ):
        if name not in waits:
            continue
        here = _crosses(waits[name], work)
        layers[:3] = np.maximum(layers[:3], here * often)
        for total, own in zip((ahead_s, hidden_s, more_s), each(volumes, work, groups[name], messages), strict=True):
            total[:3] += here * own
    if not layers.any():
        return None
    return MessageWaits(layers.astype(np.int64), ahead_s, hidden_s, more_s)


def _keys(volumes: Volumes, work: StageWork, group: Group, messages: float) -> tuple[Floats, Floats, Floats]:
    """a, h and b·N/n of the calls over cp of a layer of F, B and I, (3, p·v) or (3, 1)."""
    calls, alone = (axis_calls("cp", volumes, each) for each in (group, on_trunks(group)))
    if calls.gather_s is None or calls.both_s is None or alone.busy_s is None:
        raise ValueError("calls over cp have seconds of both passes")
    busy_s = alone.busy_s[[0, 1, 1]] * messages
    if int(volumes.candidates.context[0]) == ALL_TO_ALL:
        return np.zeros((3, 1)), np.zeros((3, 1)), busy_s / _exchanges(group.shape)
    attention_s = _each(float(volumes.beside_attention[0]) * work.attention_s, work.attention_layers)
    attention_s = np.outer([1, ATTENTION_BACKWARD_RATIO, ATTENTION_BACKWARD_RATIO], attention_s)
    layer_s = np.stack([0 * work.forward_s, work.backward_s, work.backward_s - work.weight_s])
    lasts_s = np.concatenate([calls.gather_s, calls.both_s, calls.both_s])[:, None]
    ahead_s = np.maximum(0.0, _each(layer_s, work.num_layers) - attention_s)
    return ahead_s, np.maximum(0.0, attention_s - lasts_s), busy_s / _rings(group.shape)


def _tokens(volumes: Volumes, work: StageWork, group: Group, messages: float) -> tuple[Floats, Floats, Floats]:
    """a, h and b·N/n of the two all-to-alls of a layer with experts, shaped as those of ``_keys``."""
    alone = axis_calls("dp_shard", volumes, on_trunks(group), on_trunks(group)).busy_s
    if alone is None:
        raise ValueError("calls over ep have seconds on trunks")
    ahead_s = np.outer([1, 0, 0], _each(work.attention_s, work.attention_layers))
    return ahead_s, 0 * ahead_s, 2 * alone[[0, 1, 1]] * messages / _exchanges(group.shape)


def _each(seconds: Floats, layers: Floats | Ints) -> Floats:
    """``seconds`` of a stage divided by its ``layers``; 0 where there are none."""
    out: Floats = np.where(layers > 0, seconds / np.maximum(1, layers), 0.0)
    return out


def _crosses(ranks: RankGroups, work: StageWork) -> Bools:
    """Which virtual stages have groups that cross buildings, (p·v,)."""
    crosses = np.array([crosses_buildings(kind.shape).any() for kind in ranks.kinds])
    return np.asarray(crosses[ranks.of[work.rank]])


def _rings(shape: GroupShape) -> float:
    """Flows that neighbours of the groups put on the busiest inter-building link, at least 1."""
    crossed = np.where(shape.fanout[0, CAMPUS:] > 1, shape.crossing[0, CAMPUS:], 0.0)
    return max(1.0, float(crossed.max()))


def _exchanges(shape: GroupShape) -> float:
    """Flows that all-to-alls put on the busiest inter-building link, one for every pair of ranks, at least 1."""
    return max(1.0, float(shape.exchanged[0, CAMPUS:].max() * shape.degree[0]))
