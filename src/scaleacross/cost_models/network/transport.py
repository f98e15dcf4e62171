"""Effect of a connection's settings on a level: channels, window, hashing and loss, for arrays of groups.

    rate      min(bandwidth, h · CHANNEL_BYTES_PER_S, window / RTT) · goodput       of one rank, h channels
    goodput   (1−p) / (1−p+p·W), W packets of a queue pair in flight (go-back-N; 1 for selective repeat)
    capacity  · ``load_balance.ecmp_efficiency_fraction`` of crossing · members · q flows, where queue pairs are hashed.
              A ring or tree leaves a building over one domain: crossing · ring_lanes · q (``Links.ring_share``). In an
              all-to-all, ranks have a flow to every peer: all pairs · q (``Links.egress``)

Only levels beyond the scale-up domain have connections. Inside a building the share of line rate that a technology
attains already includes hashing. So hashing is modelled on inter-building links alone (``Levels.num_links``).

Defaults of NCCL 2.31: 4 MiB of buffer per channel in 8 steps (NCCL_BUFFSIZE, NCCL_STEPS), one queue pair per channel
(NCCL_IB_QPS_PER_CONNECTION); as many channels as saturate the port.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Bools, Floats
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import NUM_LEVELS, RACK
from scaleacross.cost_models.links import Links, ring_lanes
from scaleacross.cost_models.network.load_balance import ecmp_efficiency_fraction
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.network_choice import (
    CHANNEL_BYTES_PER_S,
    LIBRARY_OUTSTANDING,
    LIBRARY_SEGMENT_BYTES,
    CommunicatorChoice,
)

BEYOND: Final = np.arange(NUM_LEVELS) >= RACK


class Settings(NamedTuple):
    """Settings of the connections of each level, arrays (..., NUM_LEVELS) or scalars.

    Attributes:
        num_channels: blocks of threads.
        queue_pairs: of one connection.
        window_bytes: largest number of bytes in flight to one peer.
        sprayed: whether queue pairs are fed as fast as they drain, so that no link waits for another.
    """

    num_channels: Floats
    queue_pairs: Floats
    window_bytes: Floats
    sprayed: Bools


def window_rate_bytes_per_s(window_bytes: Floats, one_way_latency_s: Floats) -> Floats:
    """Largest rate of one connection with so many bytes in flight, window / RTT; inf without latency."""
    with np.errstate(divide="ignore", over="ignore"):
        return window_bytes / (2 * one_way_latency_s)


def go_back_n_fraction(loss_fraction: Floats, window_packets: Floats) -> Floats:
    """Goodput over rate under loss, (1−p) / (1−p+p·W), W packets in flight: go-back-N sends a whole window again.

    W = 1 is selective repeat. Source: Bertsekas and Gallager, Data Networks (1992), section 2.4.
    """
    return (1 - loss_fraction) / (1 - loss_fraction + loss_fraction * window_packets)


def channels_of(bandwidth: Floats) -> Floats:
    """Channels that saturate a port, ⌈bandwidth / CHANNEL_BYTES_PER_S⌉; 1 where there is no port."""
    filled: Floats = np.ceil(np.where(np.isfinite(bandwidth), bandwidth, 0.0) / CHANNEL_BYTES_PER_S)
    return np.maximum(1.0, filled)


def library_settings(links: Links) -> Settings:
    """The library's defaults on these links."""
    channels = channels_of(links.bandwidth)
    window = channels * LIBRARY_SEGMENT_BYTES * LIBRARY_OUTSTANDING
    return Settings(channels, channels, window, np.zeros(NUM_LEVELS, dtype=bool))


def stated_settings(*choices: CommunicatorChoice) -> Settings:
    """The settings of a choice, or of several, one row each; levels without a connection are not limited."""
    if len(choices) > 1:
        return Settings(*map(np.stack, zip(*map(stated_settings, choices), strict=True)))
    [choice] = choices
    pairs, window, sprayed = np.ones(NUM_LEVELS), np.full(NUM_LEVELS, np.inf), np.ones(NUM_LEVELS, dtype=bool)
    for one in choice.connections:
        level = LINK_LEVELS.index(one.level)
        pairs[level], window[level] = one.queue_pairs, one.window_bytes
        sprayed[level] = one.load_balancing == "spray"
    channels = np.where(window < np.inf, float(max(1, choice.num_channels)), np.inf)
    return Settings(channels, pairs, window, sprayed)


def connected(links: Links, shape: GroupShape, settings: Settings) -> Links:
    """``links`` as limited by these settings for the groups of ``shape``; levels not crossed are unchanged."""
    crossed = BEYOND & (shape.fanout > 1)
    rate = _flow_rate(links, settings)
    if links.loss is not None and links.packet_bytes is not None and np.any(links.loss > 0):
        in_flight = np.minimum(settings.window_bytes, rate * 2 * links.latency) / settings.queue_pairs
        with np.errstate(invalid="ignore"):
            packets = np.where(np.isfinite(rate), np.maximum(1.0, in_flight / links.packet_bytes), 1.0)
        rate = rate * go_back_n_fraction(links.loss, packets)
    bandwidth = np.where(crossed, rate, links.bandwidth)
    # ``_hashed`` multiplies by crossing again, which gives the pairs of ranks on the fullest link
    pairs = shape.exchanged * shape.degree[..., None] / shape.crossing
    members, lanes, peers = (
        _hashed(links, shape, each, settings, crossed) for each in (shape.members, ring_lanes(shape), pairs)
    )
    return links._replace(
        bandwidth=bandwidth,
        capacity=links.capacity * members,
        adapter=links.bandwidth,
        egress=(links.capacity if links.egress is None else links.egress) * peers,
        ring_share=lanes / members,
    )


def connected_at_best(links: Links, settings: Settings) -> Links:
    """Upper bound on ``links`` under these settings for any group: losses and hashing of flows are left out.

    The result stays monotone where ``links`` are (bandwidths fall and latencies rise outwards), as bounds on relaxed
    shapes need it.
    """
    rate = np.where(BEYOND, _flow_rate(links, settings), links.bandwidth)
    return links._replace(bandwidth=rate, adapter=links.bandwidth)


def _flow_rate(links: Links, settings: Settings) -> Floats:
    """Largest rate of a rank over every level with these channels and windows, bytes/s, as wide as ``links``."""
    with np.errstate(invalid="ignore"):
        rate = np.minimum(links.bandwidth, settings.num_channels * CHANNEL_BYTES_PER_S)
        return np.minimum(rate, window_rate_bytes_per_s(settings.window_bytes, links.latency))


def _hashed(links: Links, shape: GroupShape, senders: Floats, settings: Settings, crossed: Bools) -> Floats:
    """Share of a level's capacity that hashed flows of ``senders`` in a child attain; 1 where nothing is hashed."""
    if links.num_links is None or not np.any(links.num_links > 0):
        return np.ones(())
    flows = shape.crossing * senders * settings.queue_pairs
    flows, num_links, hashed = np.broadcast_arrays(
        np.round(flows), links.num_links, crossed & (links.num_links > 0) & ~settings.sprayed
    )
    share = np.ones(flows.shape)
    if hashed.any():
        # few distinct pairs occur, and each is a sum over many loads
        pairs, inverse = np.unique(np.stack([flows[hashed], num_links[hashed]]), axis=1, return_inverse=True)
        share[hashed] = ecmp_efficiency_fraction(pairs[0], pairs[1])[inverse.ravel()]
    return share
