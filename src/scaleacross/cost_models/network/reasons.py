"""Bottleneck of a collective: each figure of the network is improved by a tenth; the one that saves most is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, RACK, SCALE_UP
from scaleacross.cost_models.links import Links
from scaleacross.cost_models.network.compression import Best
from scaleacross.cost_models.network.resources import crossed_beyond
from scaleacross.cost_models.plan_traffic import time_of
from scaleacross.cost_models.traffic import Flow
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.network_choice import CommunicatorChoice
from scaleacross.workloads.equal_copies import EqualCopies

BETTER: Final = 1.1
ADAPTER: Final = "network adapter"
"""Every link beyond the scale-up domain: ports, and all links that they feed."""
NARROWER: Final = 0.99
"""Factor on savings of the adapter, which stands for all links, and of latency, which also renews a window more
often. The narrower figure is named where it saves as much."""
WORTH_NAMING: Final = 1e-3
"""Least share of the time that a tenth must save."""


def decided_by(flow: Flow, group: Group, equal_copies: EqualCopies) -> str:
    """Name of the figure with the largest effect on the time of one call; "launch" if none has any. ``group`` has
    one row and its network."""
    own = _seconds(flow, group, equal_copies)
    saved = {name: own - _seconds(flow, better, equal_copies) for name, better in _improved(flow, group)}
    if not saved:
        return "launch"
    most = max(saved, key=lambda name: saved[name] * (NARROWER if name.startswith((ADAPTER, "latency")) else 1.0))
    return most if saved[most] > WORTH_NAMING * own else "launch"


def _seconds(flow: Flow, group: Group, equal_copies: EqualCopies) -> float:
    return float(time_of(flow, group, equal_copies).time_s[0])


def _improved(flow: Flow, group: Group) -> Iterator[tuple[str, Group]]:
    """Yield the name of each figure and the group with that figure improved."""
    links = group.links
    if links.curves is not None:
        yield "scale-up domain", replace(group, links=links._replace(curves=links.curves / BETTER))
    elif group.shape.fanout[0, SCALE_UP] > 1:
        wider = np.where(np.arange(NUM_LEVELS) == SCALE_UP, BETTER, 1.0)
        own = links._replace(bandwidth=links.bandwidth * wider, capacity=links.capacity * wider)
        yield "scale-up domain", replace(group, links=own)
    beyond = crossed_beyond(group.shape)
    if beyond:
        faster = np.where(np.arange(NUM_LEVELS) >= RACK, BETTER, 1.0)
        wide = links._replace(bandwidth=links.bandwidth * faster)
        yield ADAPTER, replace(group, links=_roomier(wide, faster))
    for level in beyond:
        name, scale = LINK_LEVELS[level], np.where(np.arange(NUM_LEVELS) == level, BETTER, 1.0)
        shared = f"trunks of {name}" if level >= CAMPUS else f"uplinks of {name}"
        yield shared, replace(group, links=_roomier(links, scale))
        yield f"latency of {name}", replace(group, links=links._replace(latency=links.latency / scale))
        more = _wider_window(flow, group, level)
        if more is not None:
            yield f"window across {name}", more


def _roomier(links: Links, scale: Floats) -> Links:
    """Links whose shared capacities (uplinks and inter-building links) are ``scale`` times as large."""
    uplink = None if links.uplink is None else links.uplink * scale
    return links._replace(capacity=links.capacity * scale, uplink=uplink)


def _wider_window(flow: Flow, group: Group, level: int) -> Group | None:
    """The group with more bytes in flight across a level; None where no choice states how many there are."""
    own = None if isinstance(group.network, str | Best) else group.network.get((flow.op, flow.what))
    if own is None:
        return None
    connections = tuple(
        one.model_copy(update={"segment_bytes": round(one.segment_bytes * BETTER)})
        if one.level == LINK_LEVELS[level]
        else one
        for one in own.connections
    )
    wider: dict[tuple[str, str], CommunicatorChoice] = {
        (flow.op, flow.what): own.model_copy(update={"connections": connections})
    }
    return replace(group, network=wider)
