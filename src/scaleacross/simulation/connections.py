"""How a collective runs (``Way``), and the rate of its connections: channels, windows, loss, hashing onto links.

A rank has one connection to each peer. Its rate is

    min(line rate, channels · CHANNEL_BYTES_PER_S, window / round trip) · goodput

where go-back-N sends a whole window W (packets of one queue pair in flight) again for each lost packet: goodput =
(1−p) / (1−p+p·W) (Bertsekas and Gallager, Data Networks, 1992, section 2.4).

A switch hashes queue pairs onto the parallel links of an inter-building link. The fullest of them sets the pace of all,
since a collective ends with its slowest flow. The seed of the simulation draws the links; equal numbers of flows and
links give equal draws. Without a seed the load is the mean of ``DRAWS`` draws, so that a plan does not depend on one
draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from scaleacross.errors import InputError
from scaleacross.simulation.fabric import CAMPUS, NUM_LEVELS, RACK, Fabric, Haul
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.network_choice import (
    CHANNEL_BYTES_PER_S,
    ENGINE_SHARE,
    ENGINE_START_S,
    LIBRARY_OUTSTANDING,
    LIBRARY_SEGMENT_BYTES,
    CommunicatorChoice,
    Driver,
    held_by,
)

IDEAL: Final = math.inf
DRAWS: Final = 64
"""Draws of hashed flows that are averaged. For 1,024 flows on 156 links one draw is 10 % off the mean (standard
deviation), the mean of 64 draws 1.3 %."""


class Connection(NamedTuple):
    """Settings of the connections across one level.

    Attributes:
        channel_bytes_per_s: copy rate of the thread blocks that drive the connection.
        window_bytes: most bytes in flight to one peer.
        queue_pairs: flows that switches can distinguish.
        hashed: whether each flow stays on the link that it is hashed onto; else packets are sprayed.
    """

    channel_bytes_per_s: float
    window_bytes: float
    queue_pairs: int
    hashed: bool


class Coding(NamedTuple):
    """A codec as the plan states it.

    Attributes:
        levels: levels on which messages are encoded.
        ratio: bytes of a message over bytes sent.
        s_per_byte: seconds per byte before encoding, to encode and decode on one accelerator.
    """

    levels: tuple[int, ...] = ()
    ratio: float = 1.0
    s_per_byte: float = 0.0

    def ratio_on(self, level: int) -> float:
        """Return the compression ratio on a level; 1 where messages are not encoded."""
        return self.ratio if level in self.levels else 1.0


class Drive(NamedTuple):
    """Driver of a collective: kernels, copy engines or the host.

    Attributes:
        held_fraction: share of multiprocessors that it takes from concurrent computation.
        inside_share: its rate within a scale-up domain over the rate of kernels.
        port_bytes_per_s: largest rate at which an accelerator sends.
        start_s: seconds to start beyond the start of kernels.
    """

    held_fraction: float = 0.0
    inside_share: float = 1.0
    port_bytes_per_s: float = IDEAL
    start_s: float = 0.0

    @classmethod
    def of(cls, driver: Driver, accelerators: Sequence[Accelerator]) -> Drive:
        """Return the drive on accelerators of several types, with the worst of every figure.

        Raises:
            InputError: the host drives it, and no host is stated.
        """
        held = max(held_by(driver, one.collective_multiprocessors) / one.num_multiprocessors for one in accelerators)
        if driver == "multiprocessors":
            return cls(held)
        if driver == "copy_engines":
            return cls(held, ENGINE_SHARE, IDEAL, ENGINE_START_S)
        if any(one.host is None for one in accelerators):
            raise InputError("a collective is driven by the host, and the topology states no host of its accelerators")
        rate = min(one.host.relay_bytes_per_s for one in accelerators if one.host is not None)
        return cls(held, 1.0, rate, 2 * LIBRARY_SEGMENT_BYTES / rate)

    @property
    def by_kernels(self) -> bool:
        """Whether kernels move the bytes; measured curves hold for them unchanged."""
        return not self.start_s

    def inside_bytes_per_s(self, line_bytes_per_s: float) -> float:
        """Return the rate of one accelerator within a scale-up domain."""
        return min(self.inside_share * line_bytes_per_s, self.port_bytes_per_s)


BY_KERNELS: Final = Drive()
"""Kernels that take no multiprocessors from computation."""


class Way(NamedTuple):
    """How a kind of collective runs.

    Attributes:
        algorithm: name of the algorithm in the plan.
        num_chunks, chunk_bytes: number and size of the chunks that are pipelined through the levels.
        connections: (level, settings) of levels where connections limit the rate.
        halving: levels that run halving and doubling instead of a ring.
        coding: codec of messages on some levels.
        drive: driver of the collective.
    """

    algorithm: str
    num_chunks: int = 1
    chunk_bytes: float = 0.0
    connections: tuple[tuple[int, Connection], ...] = ()
    halving: tuple[int, ...] = ()
    coding: Coding = Coding()
    drive: Drive = BY_KERNELS

    def at(self, level: int) -> Connection | None:
        """Return the connection settings of a level; None where connections do not limit it."""
        return dict(self.connections).get(level)

    def rate(self, level: int, latency_s: float, line_bytes_per_s: float = IDEAL, haul: Haul | None = None) -> float:
        """Return the rate from one rank to one peer across a level, bytes/s.

        Args:
            latency_s: one-way latency.
            line_bytes_per_s: line rate of the rank's adapter.
            haul: packet loss between the two buildings, if they differ.
        """
        settings, line_bytes_per_s = self.at(level), min(line_bytes_per_s, self.drive.port_bytes_per_s)
        if settings is None:
            return line_bytes_per_s
        window = settings.window_bytes / (2 * latency_s) if latency_s > 0 else IDEAL
        rate = min(line_bytes_per_s, settings.channel_bytes_per_s, window)
        if haul is None or not haul.loss_fraction or not math.isfinite(rate):
            return rate
        in_flight = min(settings.window_bytes, rate * 2 * latency_s) / settings.queue_pairs
        packets = max(1.0, in_flight / haul.packet_bytes)
        return rate * (1 - haul.loss_fraction) / (1 - haul.loss_fraction + haul.loss_fraction * packets)


def library_way(algorithm: str, fabric: Fabric, drive: Drive = BY_KERNELS) -> Way:
    """Return the library's defaults: enough channels to saturate a port, each with its own queue pair and buffer."""
    connections = []
    for level in range(RACK, NUM_LEVELS):
        line = float(fabric.rates[min(level, CAMPUS - 1)].min())
        channels = max(1, math.ceil(line / CHANNEL_BYTES_PER_S))
        window = channels * LIBRARY_SEGMENT_BYTES * LIBRARY_OUTSTANDING
        connections.append((level, Connection(channels * CHANNEL_BYTES_PER_S, float(window), channels, True)))
    return Way(algorithm, connections=tuple(connections), drive=drive)


def stated_way(algorithm: str, choice: CommunicatorChoice, drive: Drive) -> Way:
    """Return the way that the plan's network decision states, with its driver."""
    channels = max(1, choice.num_channels) * CHANNEL_BYTES_PER_S
    connections = tuple(
        (
            LINK_LEVELS.index(one.level),
            Connection(channels, float(one.window_bytes), one.queue_pairs, one.load_balancing == "ecmp"),
        )
        for one in choice.connections
    )
    halving = tuple(LINK_LEVELS.index(step.level) for step in choice.steps if step.algorithm == "halving_doubling")
    return Way(algorithm, choice.num_chunks, choice.chunk_bytes, connections, halving, _coding(choice), drive)


def _coding(choice: CommunicatorChoice) -> Coding:
    own = choice.compression
    if own is None:
        return Coding()
    seconds = 1 / own.encode_bytes_per_s + 1 / own.decode_bytes_per_s
    return Coding(tuple(LINK_LEVELS.index(level) for level in own.levels), own.ratio, seconds)


@lru_cache(maxsize=4096)
def fullest_over_mean(num_flows: int, num_links: int, seed: int | None) -> float:
    """Return the fullest link's load over the mean load when ``num_flows`` equal flows are hashed onto ``num_links``.

    ``seed`` draws the links; None returns the mean of ``DRAWS`` draws.
    """
    if num_links <= 1 or num_flows <= 0:
        return 1.0
    draws, drawn = (DRAWS, 0) if seed is None else (1, seed)
    shares = np.full(num_links, 1 / num_links)
    loads = np.random.default_rng((drawn, num_flows)).multinomial(num_flows, shares, size=draws)
    return float(loads.max(axis=1).mean()) * num_links / num_flows
