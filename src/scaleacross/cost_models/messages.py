"""Messages between pipeline neighbours: their delay inside a building, across buildings and across regions."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.groups import GroupShape, RelaxedShape
from scaleacross.cost_models.levels import CAMPUS, REGION
from scaleacross.cost_models.links import Links, stream_bandwidth


class Boundary(NamedTuple):
    """Delay of one message between pipeline neighbours, (...), for three kinds of boundary between ranks.

    Near boundaries lie inside a building. Far ones cross regions, or buildings where a pipeline leaves no region. Those
    in between cross buildings of a pipeline that also crosses regions.

    Attributes:
        *_latency_s: time that does not occupy the link.
        *_occupancy_s: bytes over bandwidth.
        num_between, num_crossing: boundaries of these kinds in a pipeline.
        tail: ranks after the last far boundary.
        spacing: ranks between two far boundaries.
        back: 1 where pipelines cross at most once for certain, so that messages from the last rank back to the first
            pass the same inter-building link.
    """

    near_latency_s: Floats
    near_occupancy_s: Floats
    between_latency_s: Floats
    between_occupancy_s: Floats
    crossing_latency_s: Floats
    crossing_occupancy_s: Floats
    num_between: Floats
    num_crossing: Floats
    tail: Floats
    spacing: Floats
    back: Floats

    @property
    def slowest_s(self) -> Floats:
        """Delay of the slowest message."""
        near, between = self.near_latency_s + self.near_occupancy_s, self.between_latency_s + self.between_occupancy_s
        return np.maximum(np.maximum(near, between), self.crossing_latency_s + self.crossing_occupancy_s)

    @property
    def busiest_s(self) -> Floats:
        """Seconds for which a message occupies the busiest link."""
        return np.maximum(np.maximum(self.near_occupancy_s, self.between_occupancy_s), self.crossing_occupancy_s)


def neighbour_messages(size_bytes: Floats, shape: GroupShape, links: Links) -> Boundary:
    """Delays of sending ``size_bytes`` from every rank to its successor on the axis.

    A message has its own NIC (bandwidth_l). Where all crossing groups send at once, it has its share of the uplink
    (capacity_l / crossing_l) and of the uplinks on its way (``links.stream_bandwidth``). The near delay is that of the
    slowest inner level that any neighbour pair uses. For a relaxed shape it is that of the fastest, with the whole
    uplink, because pairs that it counts on an outer level may be far ones.
    """
    used, crossing = shape.pairs > 0, shape.crossing
    if isinstance(shape, RelaxedShape):
        inner = np.arange(used.shape[-1]) < CAMPUS
        crossing = np.where(inner, 1.0, crossing)
        # of the inner levels keep only the innermost one in use
        used = used & (~inner | (np.cumsum(used, axis=-1) == 1))
    rate = np.minimum(links.bandwidth, links.capacity / np.where(used, crossing, 1.0))
    rate = np.minimum(rate, stream_bandwidth(shape, links))
    occupancy = np.where(used, np.asarray(size_bytes)[..., None] / rate, 0.0)
    latency = np.where(used, links.latency, 0.0)
    near, beyond = slice(None, CAMPUS), shape.pairs[..., REGION] > 0
    outer = {
        name: np.where(beyond, part[..., REGION], part[..., CAMPUS])
        for name, part in (("latency", latency), ("occupancy", occupancy), ("pairs", shape.pairs))
    }
    between = np.where(beyond, shape.pairs[..., CAMPUS], 0.0)
    back = links.two_buildings if isinstance(shape, RelaxedShape) else outer["pairs"] + between <= 1
    return Boundary(
        latency[..., near].max(axis=-1),
        occupancy[..., near].max(axis=-1),
        np.where(beyond, latency[..., CAMPUS], 0.0),
        np.where(beyond, occupancy[..., CAMPUS], 0.0),
        outer["latency"],
        outer["occupancy"],
        between,
        outer["pairs"],
        shape.tail,
        shape.spacing,
        np.broadcast_to(np.where(back, 1.0, 0.0), shape.tail.shape),
    )


NO_DELAYS: Final = (*(0.0,) * 8, 1.0, 1.0, 0.0)
"""A ``Boundary`` without delay."""


def boundary_times(pp: int, boundary: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Latency and occupancy between rank r and r+1, the last entry from rank pp−1 back to rank 0, seconds, each (pp,).

    A boundary may be far for some pipelines and near for others. It has the longer delay and the longer occupancy of
    both. Boundaries between buildings of a pipeline that also crosses regions are spread over the remaining ones.
    """
    near, between, outer = boundary[:2], boundary[2:4], boundary[4:6]
    kinds = np.array([near, _slower(near, between), _slower(near, outer)])
    latency, occupancy = kinds[boundary_kinds(pp, boundary)].T
    return latency, occupancy


def boundary_kinds(pp: int, boundary: tuple[float, ...]) -> Ints:
    """Kind of each boundary of ``boundary_times``, (pp,): 0 where it is near for all pipelines, 1 between, 2 far."""
    num_between, num_crossing, tail, spacing = boundary[6:10]
    positions = [pp - 1 - int(tail) - int(spacing) * index for index in range(int(num_crossing))]
    kind = np.zeros(pp, dtype=np.int64)
    kind[[max(0, position) for position in positions]] = 2
    kind[-1] = 2 * bool(positions)  # the way back from the last rank to the first crosses whatever the pipeline crosses
    left = np.flatnonzero(kind == 0)
    some = min(int(num_between), len(left))
    # the boundaries in between lie at equal distances
    kind[left[(np.arange(some) * len(left) + len(left) // 2) // max(1, some)]] = 1
    return kind


def _slower(near: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, float]:
    """Latency and occupancy of a boundary that is near for some pipelines and ``other`` for the rest."""
    occupancy = max(near[1], other[1])
    return max(sum(near), sum(other)) - occupancy, occupancy
