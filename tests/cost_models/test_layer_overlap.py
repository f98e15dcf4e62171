"""Effects that windows ignore, by hand: busy seconds of links and overlap by chunk."""

from __future__ import annotations

import numpy as np
import pytest
from machines import allocation, building, topology, trunk

import scaleacross as sa
from instances import moe, plain_job, plain_topology
from oracles import exhaustive
from scaleacross.api.assemble import cost_of
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.crossing_gradients import CrossingGradients
from scaleacross.cost_models.groups import exact_shape
from scaleacross.cost_models.layer_overlap import ADAPTER, LayerOverlap, link_seconds
from scaleacross.cost_models.levels import CAMPUS, build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.overlap import GRADIENTS, NO_CHUNKS, PARAMETERS, ChunkWindows, Window, exposed_s
from scaleacross.cost_models.step import one_row
from scaleacross.cost_models.traffic import Flow, Op
from scaleacross.solvers.pools import pools
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import PipelineChoice
from scaleacross.workloads.equal_copies import EVERY_COPY
from scaleacross.workloads.problem import problem_of

GB = 1e9
PLAIN = PipelineChoice(schedule="1F1B", num_chunks=1)


def test_windows_never_expose_less_than_they_say_themselves() -> None:
    one, nothing = np.ones(2), np.zeros(2)
    over = [Window(one, one / 2, nothing, one, nothing, one < 0, NO_CHUNKS)] * 4
    found = LayerOverlap(np.full((4, 2), 0.1), (NO_CHUNKS,) * 4).on(over)
    assert found[3].slowed_s.tolist() == [0.1, 0.1]
    assert found[GRADIENTS].length_s.tolist() == [1.0, 1.0]


def test_chunks_of_gradients_that_come_apart_never_hide_more_than_their_window() -> None:
    """Chunks of separate gradients never overlap for longer than their window.

    10 s overlap with a window of 1 s, so 9 s are exposed. A chunk's own remainder counts if it is larger.
    """
    one, nothing = np.ones(1), np.zeros((4, 1))
    over = [Window(one, one / 10, one * 0, one, one * 0, one < 0, NO_CHUNKS)] * 4
    seconds = np.array([[10.0], *[[0.0]] * 3])
    for hidden_s, apart, in_passes in ((4.0, 9.0, 6.0), (0.5, 9.5, 9.5)):
        chunks = ChunkWindows(*np.array([[[1.0]], [[0.0]], [[hidden_s]]]))
        beside = LayerOverlap(nothing, (NO_CHUNKS,) * 4)
        assert exposed_s(seconds, seconds, beside.in_chunks(chunks).on(over)).tolist() == [apart]
        assert exposed_s(seconds, seconds, beside.in_passes(chunks).on(over)).tolist() == [in_passes]


def test_of_what_crosses_buildings_only_chunks_say_what_is_left() -> None:
    """For traffic across buildings only chunks decide what is exposed.

    The window does not count, and at least one of n buckets is exposed.
    """
    one, nothing = np.ones(2), np.zeros((4, 2))
    over = [Window(one, one / 4, one * 0, one, one * 0, one < 0, NO_CHUNKS)] * 4
    chunks = ChunkWindows(*np.array([[[0.5, 0.25]], [[0.0, 0.0]], [[2.0, 3.0]]]))
    beside = LayerOverlap(nothing, (NO_CHUNKS,) * 4)
    far = beside.over_links(CrossingGradients({}, chunks, None, {})).on(over)
    seconds = np.array([[10.0, 20.0], *[[0.0, 0.0]] * 3])
    assert exposed_s(seconds, seconds, far).tolist() == [3.0, 5.0]  # 10/2 − 2; a bucket of 20/4, as 20/4 − 3 is less
    both = beside.over_links(CrossingGradients({}, chunks, chunks, {})).on(over)
    assert both[PARAMETERS].chunks is chunks and far[PARAMETERS].length_s.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("op", "adapter", "campus"),
    [
        (
            "all_to_all",
            3 / 4 * 8 / 10,
            2 * 1 / 2 * 8 / 5,
        ),  # to 3 of 4 hosts; two ranks send half of theirs to the other building
        ("all_gather", (1 / 2 * 8 + 1 / 2 * 8 / 2) / 10, 1 / 2 * 8 / 5),  # level by level, two ranks share what leaves
    ],
)
def test_seconds_of_links(op: Op, adapter: float, campus: float) -> None:
    """Busy seconds of links for 8 GB among 4 hosts of one accelerator with 10 GB/s.

    Each building has two hosts, and the inter-building link has 5 GB/s.
    """
    shape = {"per_host": 1, "hosts_per_rack": 1, "racks_per_zone": 2, "rates": (100 * GB, 10 * GB, 10 * GB, 10 * GB)}
    sites = [building(name, 2, **shape) for name in ("a", "b")]  # type: ignore[arg-type]
    pool = topology(sites, trunks=[trunk("a", "b", 0.1, bandwidth_bytes_per_s=5 * GB)])
    levels = build_levels(pool, allocation(("a", 2), ("b", 2)))
    group = Group(one_row(exact_shape(4, 1, levels)), links_of(levels), 0.0)
    axis = "ep" if op == "all_to_all" else "dp_shard"
    found = link_seconds(Flow(axis, op, "x", axis, 8 * GB, {"gradients": 1.0}), group, EVERY_COPY, PLAIN)
    assert found[ADAPTER] == pytest.approx(adapter)
    assert found[CAMPUS] == pytest.approx(campus)


def test_what_crosses_regions_takes_no_trunks_inside_them() -> None:
    """Traffic across regions does not use the links inside them.

    8 GB are gathered over two buildings in each of two regions. Half crosses regions, and half uses the link inside a
    region.
    """
    shape = {"per_host": 1, "hosts_per_rack": 1, "racks_per_zone": 2, "rates": (100 * GB, 10 * GB, 10 * GB, 10 * GB)}
    sites = [building(name, 1, **shape) for name in "abcd"]  # type: ignore[arg-type]
    trunks = [trunk(*pair, 0.1, bandwidth_bytes_per_s=5 * GB) for pair in ("ab", "bc", "cd", "da")]
    levels = build_levels(topology(sites[:2], sites[2:], trunks=trunks), allocation(*((name, 1) for name in "abcd")))
    group = Group(one_row(exact_shape(4, 1, levels)), links_of(levels), 0.0)
    found = link_seconds(
        Flow("dp_shard", "all_gather", "x", "dp_shard", 8 * GB, {"gradients": 1.0}), group, EVERY_COPY, PLAIN
    )
    assert found[CAMPUS] == pytest.approx(1 / 2 * 8 / 5)
    assert found[ADAPTER] == pytest.approx((1 / 2 * 8 / 2 + 1 / 2 * 8) / 10)  # two ranks share what leaves a region


@pytest.mark.parametrize("buckets", [1, 8])
def test_a_bucket_alone_meets_no_exchanges(buckets: int) -> None:
    """A single bucket never overlaps with all-to-alls.

    The all-to-alls of a pass end before its only bucket starts. Of eight buckets seven overlap with them.
    """
    experts = {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 16, "dp_replicate": 1, "ep": 16}
    work = plain_job(4, workload=moe(num_experts=16), degrees=experts, shard="optimizer", schedules="1F1B")
    plan = sa.plan(work, overrides=[f"overlap.bucket_parameters={10**9 if buckets == 1 else 1}"], alternatives=False)
    gradients = cost_of(problem_of(plan.job), plan.decision).windows[GRADIENTS]
    assert (gradients.first_fraction == 1 / buckets).all()
    assert (gradients.slowed_s > 0).all() == (buckets > 1)


def test_traffic_meets_calls_on_links_that_do_not_limit_them() -> None:
    """Traffic shares links with calls that these links do not limit.

    tp crosses racks and gradients stay in one, so both use the adapter. An uplink that is 1 % slower than the adapter
    does not change this.
    """

    def job(oversubscription: float) -> Job:
        there = plain_topology(4)
        there["regions"][0]["buildings"][0]["links"]["zone"]["oversubscription_ratio"] = oversubscription
        degrees = {"tp": 2, "cp": 1, "pp": 1, "dp_shard": 8, "dp_replicate": 1}
        overlap = {"bucket_parameters": 1}
        return plain_job(topology=there, degrees=degrees, shard="optimizer", schedules="1F1B", overlap=overlap)

    plan = sa.plan(job(1.0), simulated=False, alternatives=False)
    [pool] = pools(problem_of(plan.job).topology)
    placed = next(one for one in exhaustive.placements(pool, plan.degrees) if one.axis_order[-1] == "tp")
    decision = plan.decision.model_copy(update={"placement": placed, "network": ()})
    slowed = [
        float(cost_of(problem_of(job(ratio)), decision).windows[GRADIENTS].slowed_s[0])
        for ratio in (1.0, 1.01, 1.5, 2.0)
    ]
    assert slowed[1] == pytest.approx(slowed[0], rel=0.02)
    assert slowed[0] > slowed[1] > slowed[2] > slowed[3] == 0
