"""Uplinks carry the traffic of their level and of all outer levels: by hand, and in the simulation."""

from __future__ import annotations

import numpy as np
import pytest

import instances
from scaleacross.cost_models.collective_laws import ALL_LEVELS, laws
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.groups import GroupShape, exact_shape
from scaleacross.cost_models.levels import BUILDING, RACK, ZONE, build_levels
from scaleacross.cost_models.links import Links, group_bandwidth, links_of, ring_bandwidth, stream_bandwidth
from scaleacross.spec.placement import BuildingShare
from scaleacross.workloads.problem import problem_of

RATE = 8e9
RATIO = 4.0


def oversubscribed_racks(degree: int, stride: int) -> tuple[GroupShape, Links]:
    """Two zones of two racks of one host with two accelerators. Racks are oversubscribed, outer levels are not."""
    topology = instances.plain_topology(4, accelerators_per_host=2, hosts_per_rack=1, racks_per_zone=2)
    for building in topology["regions"][0]["buildings"]:
        names = ("rack", "zone", "building")
        wide = {name: instances.link(RATE / 0.8e9, 1.0, RATIO if name == "zone" else 1.0) for name in names}
        building["links"] = building["links"] | wide
    problem = problem_of(instances.plain_job(topology=topology))
    levels = build_levels(problem.topology, [BuildingShare(building="b0", num_accelerators=8)])
    return exact_shape(degree, stride, levels), links_of(levels)


def test_a_group_that_leaves_its_zone_leaves_its_rack_first() -> None:
    """A group that leaves its zone uses its rack's uplink first.

    Members a zone apart share no rack, but each still has only a share of the uplink.
    """
    shape, links = oversubscribed_racks(2, 4)
    assert shape.fanout[BUILDING] == 2 and shape.fanout[ZONE] == 1
    for bandwidth in (group_bandwidth, ring_bandwidth, stream_bandwidth):
        assert bandwidth(shape, links)[BUILDING] == pytest.approx(RATE / RATIO)  # type: ignore[index]
    message = Group(shape, links, 0.0).neighbour_messages(np.array([RATE]))
    assert message.near_occupancy_s == pytest.approx(RATIO)


def test_chunks_of_two_levels_share_the_uplink_that_both_pass() -> None:
    """Chunks of two levels share the uplink that both use.

    One rank per rack is in each group, and both groups use every rack. Half of S crosses zones and half racks. Each
    rank has b/4 of its rack's uplink. Phases take S/2 over b/4, and S/2 over 2·b/4 because two ranks of a zone send.
    The rack's uplink is busy during both.
    """
    shape, links = oversubscribed_racks(4, 2)
    law = laws(shape, links, ALL_LEVELS)
    assert law.hierarchical_s_per_byte == pytest.approx((2 + 1) / RATE)
    assert law.busiest_s_per_byte == pytest.approx((2 + 1) / RATE)
    assert law.ring_s_per_byte == pytest.approx(3 / 4 * RATIO / RATE)


def test_uplinks_wider_than_all_that_passes_them_change_nothing() -> None:
    shape, links = oversubscribed_racks(4, 2)
    assert links.uplink is not None
    assert np.isinf(links.uplink[[RACK, BUILDING]]).all()
    wide = links._replace(uplink=np.full_like(links.uplink, np.inf), capacity=links.capacity * RATIO)
    for one, other in zip(
        laws(shape, wide, ALL_LEVELS), laws(shape, wide._replace(uplink=None), ALL_LEVELS), strict=True
    ):
        assert np.array_equal(one, other)
