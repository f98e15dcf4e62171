"""In a ring only the slowest hop's latency is exposed, in the estimate and in a simulation of every block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import allocation, building, topology, trunk

from scaleacross.cost_models.collective_laws import ALL_LEVELS, laws, ring_fixed_s
from scaleacross.cost_models.groups import GroupShape, exact_shape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, RACK, build_levels
from scaleacross.cost_models.links import Links, links_of, ring_bandwidth
from scaleacross.simulation.patterns import ring_fixed_s as simulated_fixed_s

NEAR_S = (1e-6, 3e-6, 7e-6, 12e-6)


def regular(*fanout: float) -> GroupShape:
    """A group with equally many children on each level, alone on its links."""
    f = np.array(fanout)
    members = np.cumprod([1.0, *fanout[:-1]])
    pairs = (f - 1) * np.cumprod([1.0, *fanout[:0:-1]])[::-1]
    ones, outermost = np.ones(NUM_LEVELS), int(np.flatnonzero(f > 1)[-1])
    tail = members[outermost] if outermost >= CAMPUS else f.prod()
    farthest = f, members, (f - 1) / f, (f - 1) / f, np.array(0.0), np.zeros((0, 4, NUM_LEVELS))
    return GroupShape(f.prod(), f, members, ones, pairs, tail, np.array(1.0), np.zeros(NUM_LEVELS), ones, *farthest)


def hops(shape: GroupShape) -> np.ndarray:
    """Level of every hop; the last one closes the ring."""
    ahead = np.arange(1, int(shape.degree))[:, None]
    crossed = (shape.fanout > 1) & (ahead % shape.members == 0)
    return np.append(NUM_LEVELS - 1 - np.argmax(crossed[:, ::-1], axis=1), int(shape.span))


def ring_s(shape: GroupShape, links: Links, size: float) -> float:
    law = laws(shape, links, ALL_LEVELS)
    return float(law.ring_s_per_byte * size + ring_fixed_s(np.array(size), law))


@given(
    fanout=st.tuples(st.sampled_from([1.0, 2.0, 4.0]), st.sampled_from([2.0, 4.0, 8.0])),
    far=st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([1.0, 2.0, 3.0])),
    outermost_s=st.tuples(st.sampled_from([25e-6, 250e-6]), st.sampled_from([2.5e-3, 25e-3])),
    rates=st.tuples(st.sampled_from([45e9, 90e9]), st.sampled_from([10e9, 45e9]), st.sampled_from([0.17e9, 2e9, 10e9])),
    exponent=st.floats(5.0, 10.0),
)
def test_a_ring_takes_what_its_blocks_take(
    fanout: tuple[float, float],
    far: tuple[float, float],
    outermost_s: tuple[float, float],
    rates: tuple[float, float, float],
    exponent: float,
) -> None:
    shape, size = regular(*fanout, 1.0, 1.0, *far), 10**exponent
    near, campus, region = rates
    bandwidth = np.array([335e9, near, 45e9, 45e9, campus, region])
    links = Links(bandwidth, np.full(NUM_LEVELS, np.inf), np.array([*NEAR_S, *outermost_s]))
    levels = hops(shape)
    rate, latency = ring_bandwidth(shape, links)[levels], links.latency[levels]
    simulated = (1 - 1 / shape.degree) * size / rate.min() + simulated_fixed_s(
        size / float(shape.degree), rate, latency
    )
    assert ring_s(shape, links, size) == pytest.approx(simulated, rel=0.03)


def test_large_blocks_hide_the_latencies_of_fast_hops_and_small_ones_do_not() -> None:
    """Large blocks overlap the latencies of fast hops, and small blocks do not.

    16 hosts have two ranks each. Blocks of 1 MB take 100 µs between hosts and 10 µs inside. The latencies of 1 µs
    inside are not exposed.
    """
    shape = regular(2.0, 16.0, 1.0, 1.0, 1.0, 1.0)
    bandwidth, latency = (
        np.where(np.arange(NUM_LEVELS) < RACK, 100e9, 5e9),
        np.where(np.arange(NUM_LEVELS) < RACK, 1e-6, 5e-6),
    )
    links = Links(bandwidth, np.full(NUM_LEVELS, np.inf), latency)
    assert ring_s(shape, links, 32e6) == pytest.approx(31 * 100e-6 + 5e-6)
    assert ring_s(shape, links, 32.0) == pytest.approx(16 * 5e-6 + 15 * 1e-6, rel=1e-3)


def test_distant_hops_that_follow_one_another_are_both_waited_for() -> None:
    """Two adjacent long-haul hops are both exposed.

    Three buildings are in one region and one is in another, with a rank each. Two hops take 1 s for 100 MB plus 0.5 s,
    one after the other.
    """
    near, far = {"latency_s": 1e-5}, {"latency_s": 0.5, "bandwidth_bytes_per_s": 1e8}
    hosts = [building(f"b{at}", 1, per_host=1) for at in range(4)]
    fleet = topology(
        hosts[:3],
        hosts[3:],
        trunks=[
            trunk("b0", "b1", **near),
            trunk("b1", "b2", **near),
            trunk("b2", "b3", **far),
            trunk("b3", "b0", **far),
        ],
    )
    levels = build_levels(fleet, allocation(*((host.name, 1) for host in hosts)))
    shape = exact_shape(4, 1, levels)
    assert ring_s(shape, links_of(levels), 400e6) == pytest.approx(3 * 1.0 + 2 * 0.5)
