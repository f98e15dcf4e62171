"""A collective lasts as long as the slowest of its groups, however their tiles lie."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from machines import allocation, building, topology, trunk
from test_groups import lying

from one_collective import all_reduce, gather
from scaleacross.cost_models.groups import NOWHERE, GroupShape, exact_shape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, Levels, build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.network.collective_bound import Tiling, least_s
from scaleacross.spec.network import CurveOp

SLACK = 1.08
"""The parts of a kind are those of several groups. Of these, the pairs are those of one group, and other groups may have
more pairs farther inwards."""


@st.composite
def tilings(draw: st.DrawFn) -> Tiling:
    """Groups of random degree and stride on two buildings; hosts may hold parts of several tiles."""
    per_host = draw(st.sampled_from([2, 4, 8]))
    shape = {"per_host": per_host, "hosts_per_rack": draw(st.integers(1, 3)), "racks_per_zone": draw(st.integers(1, 3))}
    sizes = draw(st.lists(st.integers(2, 8), min_size=2, max_size=2))
    made = [building(f"b{i}", size, **shape) for i, size in enumerate(sizes)]
    rate = draw(st.sampled_from([20e9, 2e12]))
    wires = [trunk(a.name, b.name, 1e-6, bandwidth_bytes_per_s=rate) for a, b in pairwise(made)]
    fleet, most = topology(made, trunks=wires), sum(one.num_accelerators for one in made)
    degree, stride = draw(st.integers(3, 30)), draw(st.integers(1, 3))
    assume(degree * stride <= most)
    left, shares = most // (degree * stride) * degree * stride, []
    for one in made:
        shares += [(one.name, min(left, one.num_accelerators))] if left else []
        left -= shares[-1][1] if left else 0
    used = allocation(*shares)
    return Tiling(fleet, used, build_levels(fleet, used), degree, stride)


def alone(shape: GroupShape, group: list[int], levels: Levels) -> GroupShape:
    """The shape of one group, on links that all groups of ``shape`` share."""
    home = [[p, *(int((cut <= p).sum()) for cut in levels.cuts[1:]), 0] for p in range(levels.num_ranks)]
    fanout, members, taken, pairs = np.array(lying([group], home))
    own = {"fanout": fanout, "members": members, "taken": taken, "pairs": pairs}
    farthest = {"farthest_fanout": fanout, "farthest_members": members, "farthest_taken": taken}
    none = np.broadcast_to(NOWHERE, (NUM_LEVELS - 1, 4, NUM_LEVELS))
    tail = shape.tail if fanout[CAMPUS] > 1 else shape.degree
    return replace(shape, **own, **farthest, tail=tail, nearer=none)


@settings(max_examples=40)
@given(tilings(), st.sampled_from([1e6, 1e9]))
def test_no_group_takes_longer_than_its_communicator(tiling: Tiling, size: float) -> None:
    levels, links = tiling.levels, links_of(tiling.levels)
    shape = exact_shape(tiling.degree, tiling.stride, levels)
    apart = {tuple(np.diff(levels.children(1)[:, group]).ravel()): group for group in tiling.groups}
    for time in (gather, all_reduce):
        whole = float(time(np.array(size), shape, links, 0.0).time_s)
        each = [alone(shape, group.tolist(), levels) for group in apart.values()]
        assert max(float(time(np.array(size), one, links, 0.0).time_s) for one in each) <= whole * SLACK


@settings(max_examples=40)
@given(tilings())
def test_no_estimate_is_below_the_bound_of_two_buildings(tiling: Tiling) -> None:
    op: CurveOp
    for op, time in (("all_gather", gather), ("all_reduce", all_reduce)):
        shape = exact_shape(tiling.degree, tiling.stride, tiling.levels)
        found = float(time(np.array(1e8), shape, links_of(tiling.levels), 0.0).time_s)
        assert found >= least_s(op, 1e8, tiling, None)[0] * (1 - 1e-9)


def test_a_group_with_one_rank_in_a_host_takes_longer_than_one_across_buildings() -> None:
    """Tiles of 25 lie on hosts of 24. One group has 1 rank in its second host, and one has 14 and 11 in two buildings.

    The first brings 24/25 of the bytes over one adapter of 20 GB/s there. The second brings 14/25 over 11 adapters.
    """
    shape = {"per_host": 24, "hosts_per_rack": 1, "racks_per_zone": 9}
    made = [building("a", 3, **shape), building("b", 2, **shape)]
    fleet = topology(made, trunks=[trunk("a", "b", 0.0, bandwidth_bytes_per_s=2e12)])
    used = allocation(("a", 64), ("b", 36))
    levels = build_levels(fleet, used)
    links = links_of(levels)._replace(latency=np.zeros(NUM_LEVELS), message_overhead=None, uplink=None)
    found = exact_shape(25, 1, levels)
    near = gather(np.array(1e9), found, links, 0.0).time_s
    far = gather(np.array(1e9), found.alike(), links, 0.0).time_s
    assert near == pytest.approx(24 / 25 * 1e9 / 20e9, rel=0.01) and near > 3 * far
