"""Group shapes equal literal counts and hand arithmetic, and relaxed shapes are no worse than exact ones."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from machines import allocation, building, flat, topology, trunk

from one_collective import all_reduce, all_to_all, gather
from scaleacross.cost_models.groups import GroupShape, exact_shape, largest_children, relaxed_shape
from scaleacross.cost_models.levels import BUILDING, CAMPUS, NUM_LEVELS, RACK, REGION, SCALE_UP, ZONE, build_levels
from scaleacross.cost_models.levels import Levels as LinkLevels
from scaleacross.cost_models.links import group_bandwidth, links_of
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.topology import Topology
from scaleacross.verification import count_groups, places_of

ORDER = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
FIELDS = (
    "fanout",
    "members",
    "crossing",
    "leaving",
    "pairs",
    "tail",
    "spacing",
    "farthest_fanout",
    "farthest_members",
    "taken",
    "farthest_taken",
    "nearer",
)


def literal(levels: LinkLevels, degree: int, stride: int) -> dict[str, object]:
    """The definitions of ``groups``, evaluated one group at a time from the cuts."""
    world = levels.num_ranks
    home = [[p, *(int((cut <= p).sum()) for cut in levels.cuts[1:]), 0] for p in range(world)]  # child of every level
    groups = [
        [b + j + i * stride for i in range(degree)] for b in range(0, world, degree * stride) for j in range(stride)
    ]
    reach = [
        max((level for level in range(NUM_LEVELS) if len({home[p][level] for p in g}) > 1), default=-1) for g in groups
    ]
    outer = [group for group, level in zip(groups, reach, strict=True) if level == max(reach)]
    out: dict[str, list[float]] = {"fanout": [], "members": [], "leaving": []}
    out |= {"farthest_fanout": [], "farthest_members": [], "taken": [], "farthest_taken": []}
    for level in range(NUM_LEVELS):
        each = [Counter(home[p][level] for p in group) for group in outer]
        inside = [Counter({home[p][level]: home[p][level + 1] for p in group}.values()) for group in outer]
        crossing = [max(one.values()) > 1 for one in inside]
        of = [min(one.values()) for one, far in zip(each, crossing, strict=True) if far or not any(crossing)]
        out["farthest_fanout"].append(max(max(one.values()) for one in inside))
        out["farthest_members"].append(min(of))
        lacks = []
        for group in groups:
            own, parent = (Counter(home[p][one] for p in group) for one in (level, level + 1))
            pairs = {(home[p][level], home[p][level + 1]) for p in group}
            lacks.append(max((parent[of] - own[child]) / parent[of] for child, of in pairs))
        out["taken"].append(max(lacks))
        out["farthest_taken"].append(max(lack for lack, level in zip(lacks, reach, strict=True) if level == max(reach)))
        touched, runs, busy = 1, {True: [], False: []}, Counter[int]()
        for group in groups:
            children = Counter(home[p][level] for p in group)
            inside = Counter(parent for _, parent in {(home[p][level], home[p][level + 1]) for p in group})
            crosses = max(inside.values()) > 1
            touched = max(touched, *inside.values())
            runs[crosses].append(min(children.values()))
            busy.update(children.keys() if crosses else ())
        out["fanout"].append(touched)
        out["members"].append(min(runs[True] or runs[False]))
        out["leaving"].append(max(busy.values(), default=1))

    def link(a: int, b: int) -> int:
        return max(level for level in range(NUM_LEVELS) if home[a][level] != home[b][level])

    ways = Counter(
        (link(a, b), home[a][CAMPUS], home[b][CAMPUS])
        for group in groups
        for a, b in pairwise([*group, group[0]])
        if a != b
    )
    far = [max((n for way, n in ways.items() if way[0] == level), default=1) for level in (CAMPUS, REGION)]
    out["crossing"] = [*out["leaving"][:CAMPUS], *far]
    steps = [[link(a, b) for a, b in pairwise(group)] for group in groups]
    counts = [[row.count(level) for level in range(NUM_LEVELS)] for row in steps]
    farthest = max(CAMPUS, max((level for row in steps for level in row), default=CAMPUS))
    far = [[i + 1 for i, level in enumerate(row) if level == farthest] for row in steps]
    nearer = []
    for span in range(NUM_LEVELS - 1):
        near = [group for group, level in zip(groups, reach, strict=True) if level == span < max(reach)]
        nearer.append(lying(near, home) if near else [[1.0] * NUM_LEVELS] * 2 + [[0.0] * NUM_LEVELS] * 2)
    return out | {
        "nearer": nearer,
        "pairs": max(counts, key=lambda row: row[::-1]),
        "tail": min((degree - row[-1] for row in far if row), default=degree),
        "spacing": max((b - a for row in far for a, b in pairwise(row)), default=1),
    }


def lying(groups: list[list[int]], home: list[list[int]]) -> list[list[float]]:
    """Fanout, members, taken and pairs of some groups; ``home`` has the children of every global rank."""
    fanout, members, taken = [], [], []
    for level in range(NUM_LEVELS):
        each = [Counter((home[p][level], home[p][level + 1]) for p in group) for group in groups]
        parents = [Counter(home[p][level + 1] for p in group) for group in groups]
        siblings = [max(Counter(parent for _, parent in one).values()) for one in each]
        of = [min(one.values()) for one, n in zip(each, siblings, strict=True) if n > 1 or max(siblings) == 1]
        fanout.append(max(siblings))
        members.append(min(of))
        shares = [1 - m / whole[of] for one, whole in zip(each, parents, strict=True) for (_, of), m in one.items()]
        taken.append(max(shares))
    steps = [
        Counter(max(at for at in range(NUM_LEVELS) if home[a][at] != home[b][at]) for a, b in pairwise(group))
        for group in groups
    ]
    most = max(([one[level] for level in range(NUM_LEVELS)] for one in steps), key=lambda row: row[::-1])
    return [fanout, members, taken, most]


@st.composite
def allocations(draw: st.DrawFn) -> tuple[Topology, tuple[BuildingShare, ...]]:
    """Topologies of one to three random buildings in one or two regions, with an allocation of whole hosts."""
    per_host = draw(st.sampled_from([1, 2, 4]))
    shape = {"per_host": per_host, "hosts_per_rack": draw(st.integers(1, 3)), "racks_per_zone": draw(st.integers(1, 3))}
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    domain = draw(st.sampled_from(["host", "rack"]))
    made = [building(f"b{i}", size, domain=domain, **shape) for i, size in enumerate(sizes)]
    split = draw(st.integers(1, len(made)))
    wires = [trunk(a.name, b.name) for a, b in pairwise(made)]
    fleet = topology(*[part for part in (made[:split], made[split:]) if part], trunks=wires)
    return fleet, allocation(*((b.name, b.num_accelerators) for b in draw(st.permutations(made))))


@st.composite
def axes(draw: st.DrawFn) -> tuple[Topology, tuple[BuildingShare, ...], int, int]:
    """A topology with an allocation and an axis that tiles it: degree and stride."""
    fleet, shares = draw(allocations())
    world = sum(share.num_accelerators for share in shares)
    extent = draw(st.sampled_from([n for n in range(1, world + 1) if world % n == 0]))
    degree = draw(st.sampled_from([n for n in range(1, extent + 1) if extent % n == 0]))
    return fleet, shares, degree, extent // degree


@pytest.mark.heavy
@settings(max_examples=200)
@given(axes())
def test_exact_shape_equals_two_literal_counts(axis: tuple[Topology, tuple[BuildingShare, ...], int, int]) -> None:
    fleet, shares, degree, stride = axis
    levels = build_levels(fleet, shares)
    shape, expected = exact_shape(degree, stride, levels), literal(levels, degree, stride)
    walked = count_groups(places_of(fleet, Placement(axis_order=ORDER, fill=shares)), degree, stride, levels.routes)
    for field in FIELDS:
        assert getattr(shape, field) == pytest.approx(np.array(expected[field])), field
        assert getattr(shape, field).tolist() == getattr(walked, field).tolist(), field


@settings(max_examples=100)
@given(axes())
def test_a_gather_enters_a_building_over_all_of_its_links(
    axis: tuple[Topology, tuple[BuildingShare, ...], int, int],
) -> None:
    """A gather enters a building over all its links.

    Every group with m ranks there brings (d−m)/d, over one or two equal links of a chain. Other buildings of the region
    hold ranks too.
    """
    fleet, shares, degree, stride = axis
    levels = build_levels(fleet, shares)
    homes = [int((levels.cuts[CAMPUS] <= p).sum()) - 1 for p in range(levels.num_ranks)]
    lacking = [0.0] * len(shares)
    for base in range(0, levels.num_ranks, degree * stride):
        for first in range(base, base + stride):
            inside = Counter(homes[p] for p in range(first, first + degree * stride, stride))
            for place, ranks in inside.items():
                lacking[place] += (degree - ranks) / degree
    leading = [sum(share.building in wire.between for wire in fleet.trunks) for share in shares]
    own = [fleet.region_of(share.building) for share in shares]
    alone = [own[max(0, i - 1) : i + 2].count(region) == 1 for i, region in enumerate(own)]
    each = [0.0 if one else lack / links for lack, links, one in zip(lacking, leading, alone, strict=True) if links]
    walked = count_groups(places_of(fleet, Placement(axis_order=ORDER, fill=shares)), degree, stride, levels.routes)
    assert exact_shape(degree, stride, levels).entering == pytest.approx(max(each, default=0.0))
    assert walked.entering == pytest.approx(max(each, default=0.0))


@settings(max_examples=100)
@given(axes())
def test_an_all_to_all_is_counted_message_by_message(
    axis: tuple[Topology, tuple[BuildingShare, ...], int, int],
) -> None:
    """An all-to-all is counted message by message.

    Each rank sends 1/d to every other rank of its group, over all uplinks and links on the path of a chain.
    """
    fleet, shares, degree, stride = axis
    levels = build_levels(fleet, shares)
    homes = [[int((cut <= p).sum()) for cut in levels.cuts[1:]] for p in range(levels.num_ranks)]
    number = [int(share.building[1:]) for share in shares]  # b0, b1, …: their places in the chain
    sent: list[Counter[int]] = [Counter() for _ in range(NUM_LEVELS)]
    trunks, crossed = Counter[int](), {CAMPUS: set[int](), REGION: set[int]()}
    for base in range(0, levels.num_ranks, degree * stride):
        for first in range(base, base + stride):
            for here, there in permutations(range(first, first + degree * stride, stride), 2):
                for level in range(RACK, CAMPUS):
                    child, other = homes[here][level - 1], homes[there][level - 1]
                    sent[level][child] += child != other
                ends = [number[homes[one][CAMPUS - 1] - 1] for one in (here, there)]
                way = range(*ends)
                trunks.update(way)  # upwards only: as much goes down
                crossed[REGION if homes[here][REGION - 1] != homes[there][REGION - 1] else CAMPUS].update(way)
    expected = [0.0, *(max(sent[level].values(), default=0) / degree for level in range(RACK, CAMPUS))]
    expected[SCALE_UP] = (degree - 1) / degree
    expected += [max((trunks[wire] for wire in crossed[level]), default=0) / degree for level in (CAMPUS, REGION)]
    walked = count_groups(places_of(fleet, Placement(axis_order=ORDER, fill=shares)), degree, stride, levels.routes)
    assert exact_shape(degree, stride, levels).exchanged == pytest.approx(expected)
    assert walked.exchanged == pytest.approx(expected)


def relaxed_of(levels: LinkLevels, degree: int, stride: int) -> GroupShape:
    return relaxed_shape(np.array([degree]), np.array([stride]), largest_children(levels))


@settings(max_examples=200)
@given(axes())
def test_relaxed_shape_is_never_worse(axis: tuple[Topology, tuple[BuildingShare, ...], int, int]) -> None:
    """A relaxed shape is never worse than an exact one, definition by definition, on the levels that a group crosses."""
    fleet, shares, degree, stride = axis
    levels = build_levels(fleet, shares)
    exact, relaxed = exact_shape(degree, stride, levels), relaxed_of(levels, degree, stride)
    crossed = relaxed.fanout[0] > 1
    # pairs on a level or farther out, and children touched in all (a group of fanouts f touches at most their product)
    assert (np.cumsum(relaxed.pairs[0][::-1]) <= np.cumsum(exact.pairs[::-1])).all()
    assert (np.cumprod(relaxed.fanout[0][::-1]) <= np.cumprod(exact.fanout[::-1]) * (1 + 1e-9)).all()
    assert relaxed.span[0] <= exact.span
    both = crossed & (exact.fanout > 1)
    assert (relaxed.members[0] >= exact.members)[both].all()
    assert (relaxed.crossing[0] <= exact.crossing)[both].all()
    assert (relaxed.leaving[0] <= exact.leaving)[both].all()
    if relaxed.span[0] >= CAMPUS:
        assert relaxed.tail[0] >= 1
        assert relaxed.spacing[0] >= exact.spacing


@pytest.mark.heavy
@settings(max_examples=150)
@given(axes(), st.floats(0, 1e9))
def test_relaxed_shape_estimates_no_collective_above_the_exact_one(
    axis: tuple[Topology, tuple[BuildingShare, ...], int, int], size: float
) -> None:
    fleet, shares, degree, stride = axis
    assume(degree > 1)
    levels = build_levels(fleet, shares)
    links = links_of(levels)
    exact, relaxed = exact_shape(degree, stride, levels), relaxed_of(levels, degree, stride)
    for price in (gather, all_reduce, all_to_all):
        loose, tight = price(np.array([size]), relaxed, links, 0.0), price(np.array(size), exact, links, 0.0)
        assert loose.time_s[0] <= tight.time_s * (1 + 1e-9), price.__name__


def test_an_axis_inside_the_host() -> None:
    levels = build_levels(topology([building("a", 6)]), allocation(("a", 24)))
    shape = exact_shape(4, 1, levels)
    assert shape.fanout.tolist() == [4, 1, 1, 1, 1, 1]
    assert shape.pairs.tolist() == [3, 0, 0, 0, 0, 0]
    assert shape.span == SCALE_UP


def test_an_axis_of_racks() -> None:
    # racks of 8, zones of 24; 3 ranks with stride 8: one in each rack of the zone, 8 such groups
    levels = build_levels(topology([building("a", 6)]), allocation(("a", 24)))
    shape = exact_shape(3, 8, levels)
    assert shape.fanout.tolist() == [1, 1, 3, 1, 1, 1]
    assert (shape.members[ZONE], shape.crossing[ZONE], shape.pairs[ZONE]) == (1, 8, 2)


def test_an_axis_over_unequal_buildings() -> None:
    # 16 + 8 accelerators, groups of 6 with stride 4: ranks 0-3 of every group in a, ranks 4 and 5 in b
    fleet = topology([building("a", 4), building("b", 2)], trunks=[trunk("a", "b")])
    shape = exact_shape(6, 4, build_levels(fleet, allocation(("a", 16), ("b", 8))))
    assert shape.span == CAMPUS
    assert (shape.fanout[CAMPUS], shape.members[CAMPUS], shape.crossing[CAMPUS]) == (2, 2, 4)
    assert shape.pairs.tolist() == [0, 3, 1, 0, 1, 0]  # a: rack, zone, rack; the inter-building link; b: rack
    assert (shape.tail, shape.spacing) == (2, 1)


def test_a_pipeline_over_four_buildings() -> None:
    shape = exact_shape(8, 2, build_levels(flat(4, 4), allocation(*((f"b{i}", 4) for i in range(4)))))
    assert (shape.pairs[CAMPUS], shape.tail, shape.spacing) == (3, 2, 2)


def test_regions_count_their_buildings_apart() -> None:
    fleet = topology(
        [building("a", 2), building("b", 2)], [building("c", 2)], trunks=[trunk("a", "b"), trunk("b", "c")]
    )
    shape = exact_shape(3, 8, build_levels(fleet, allocation(("a", 8), ("b", 8), ("c", 8))))
    assert shape.fanout.tolist() == [1, 1, 1, 1, 2, 2]
    assert shape.span == REGION


def test_a_group_that_crosses_buildings_lies_in_no_more_places_than_it_has_hosts() -> None:
    """A group spans at most as many units as it has hosts.

    Most groups of two hosts are in one rack, some are in two racks or zones, and one crosses the border. It receives
    there as much as it sends. The largest fan-outs of all groups would turn its two hosts into eight.
    """
    shape = {"per_host": 4, "hosts_per_rack": 3, "racks_per_zone": 3}
    names = ("b0", "b1")
    levels = build_levels(
        topology(
            [building(name, 11, **shape) for name in names], trunks=[trunk(*names, 0.0, bandwidth_bytes_per_s=400e9)]
        ),
        allocation(("b0", 44), ("b1", 44)),
    )
    found = exact_shape(8, 1, levels)
    assert found.fanout.tolist() == [4, 2, 2, 2, 2, 1]
    assert found.farthest_fanout.tolist() == [4, 1, 1, 1, 2, 1]
    links = links_of(levels)._replace(latency=np.zeros(NUM_LEVELS), uplink=None, message_overhead=None)
    gathered = gather(np.array(8e9), found, links, 0.0).time_s
    assert gathered == pytest.approx(4e9 / (4 * 10e9), rel=0.02)  # over the adapters of a host, in 32 chunks


def test_a_group_of_one_has_no_span() -> None:
    shape = exact_shape(1, 4, build_levels(flat(2, 4), allocation(("b0", 4), ("b1", 4))))
    assert shape.span == -1
    assert shape.fanout.tolist() == [1] * NUM_LEVELS


def test_an_axis_that_does_not_tile_is_refused() -> None:
    with pytest.raises(ValueError, match="degree 3 with stride 1 does not tile 8 global ranks"):
        exact_shape(3, 1, build_levels(flat(2, 4), allocation(("b0", 4), ("b1", 4))))


def test_relaxed_shapes_of_many_axes_at_once() -> None:
    levels = build_levels(topology([building("a", 12)]), allocation(("a", 48)))
    degree, stride = np.array([2, 4, 8, 48, 6]), np.array([1, 4, 2, 1, 8])
    together = relaxed_shape(degree, stride, largest_children(levels))
    for row, pair in enumerate(zip(degree, stride, strict=True)):
        alone = relaxed_of(levels, *pair)
        for field in ("degree", *FIELDS):
            assert getattr(together, field)[row].tolist() == getattr(alone, field)[0].tolist()
    assert together.span.tolist() == [SCALE_UP, ZONE, ZONE, BUILDING, BUILDING]
    assert together.fanout[0, RACK] == 1


def test_rings_that_step_to_different_buildings_take_different_trunks() -> None:
    """Rings to different buildings use different links.

    18 accelerators in three buildings form pairs i, i + 9. Three of the first building's pairs end in the second, and
    three in the third. All six leave the building, and three share a link.
    """
    wires = [trunk(a, b, bandwidth_bytes_per_s=12e9) for a, b in (("b0", "b1"), ("b1", "b2"), ("b0", "b2"))]
    fleet = topology([building(f"b{i}", 6, per_host=1) for i in range(3)], trunks=wires)
    levels = build_levels(fleet, allocation(*((f"b{i}", 6) for i in range(3))))
    shape = exact_shape(2, 9, levels)
    assert (shape.leaving[CAMPUS], shape.crossing[CAMPUS]) == (6, 3)
    assert group_bandwidth(shape, links_of(levels))[CAMPUS] == pytest.approx(12e9 / 3)
