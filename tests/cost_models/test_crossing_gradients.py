"""Gradients of pipeline ranks use inter-building links one after another.

The tests count whose groups cross and how long the links are busy.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from machines import allocation, building, flat, topology, trunk

from scaleacross.cost_models.crossing_gradients import queue
from scaleacross.cost_models.crossing_shapes import shapes_of_ranks
from scaleacross.cost_models.groups import exact_shape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, REGION, Levels, build_levels
from scaleacross.cost_models.pipeline.stage_ends import StageEnds, chained_ends
from scaleacross.cost_models.step import one_row
from scaleacross.spec.parallelism import Degrees, GridAxis
from scaleacross.spec.placement import strides

UNALIGNED = flat(3, 40)
SMALL = {"per_host": 1, "hosts_per_rack": 24, "racks_per_zone": 1}
TWO_REGIONS = topology(
    [building("b0", 24, **SMALL), building("b1", 24, **SMALL)],
    [building("b2", 24, **SMALL)],
    trunks=[trunk("b0", "b1"), trunk("b1", "b2"), trunk("b0", "b2")],
)
THREE_REGIONS = topology(
    *([building(name, 48, **SMALL) for name in names] for names in (("b0",), ("b1", "b2"), ("b3",))),
    trunks=[trunk(*pair) for pair in combinations(("b0", "b1", "b2", "b3"), 2)],
)
FILLS = [
    (build_levels(UNALIGNED, allocation(("b0", 24), ("b1", 40), ("b2", 32))), 96),
    (build_levels(UNALIGNED, allocation(("b0", 32), ("b1", 32), ("b2", 32))), 96),
    (build_levels(TWO_REGIONS, allocation(("b0", 12), ("b1", 24), ("b2", 12))), 48),
    # some groups cross more regions, others more buildings inside one
    (build_levels(THREE_REGIONS, allocation(("b0", 48), ("b1", 40), ("b2", 4), ("b3", 4))), 96),
]
ORDERS: list[tuple[GridAxis, ...]] = [
    ("tp", "dp_shard", "pp", "dp_replicate"),
    ("tp", "pp", "dp_shard", "dp_replicate"),
    ("dp_shard", "tp", "dp_replicate", "pp"),
    ("pp", "tp", "dp_shard", "dp_replicate"),
]


def literal(levels: Levels, axis: tuple[int, int], pipeline: tuple[int, int], rank: int, level: int) -> dict[str, int]:
    """Figures of one rank's groups on a long-haul level, counted group by group.

    They are the fan-out, that of the groups that cross farthest, and the neighbour pairs of the group with most of them
    farthest out. Others are the groups that leave the busiest child and the rings on the busiest path between two
    buildings.
    """
    home = [[*(int((cut <= at).sum()) for cut in levels.cuts[1:]), 0] for at in range(levels.num_ranks)]
    degree, stride = axis
    starts = (b + j for b in range(0, levels.num_ranks, degree * stride) for j in range(stride))
    mine = [start for start in starts if start // pipeline[1] % pipeline[0] == rank]
    every = [[home[start + i * stride] for i in range(degree)] for start in mine]
    steps = [
        [sum(a[at - 1] != b[at - 1] and a[at] == b[at] for a, b in pairwise(one)) for at in (REGION, CAMPUS)]
        for one in every
    ]
    out, busy, ways = {"fanout": 1, "farthest_fanout": 1}, Counter[int](), Counter[tuple[int, int]]()
    out["pairs"] = max(steps)[REGION - level]
    leaves_region = [len({one[REGION - 1] for one in places}) > 1 for places in every]
    for places, leaves in zip(every, leaves_region, strict=True):
        inside = Counter(parent for _, parent in {(one[level - 1], one[level]) for one in places})
        out["fanout"] = max(out["fanout"], *inside.values())
        if leaves or not any(leaves_region):
            out["farthest_fanout"] = max(out["farthest_fanout"], *inside.values())
        busy.update({one[level - 1] for one in places} if max(inside.values()) > 1 else ())
        for a, b in pairwise([*places, places[0]]):
            farthest = max((at for at in (CAMPUS, REGION) if a[at - 1] != b[at - 1]), default=None)
            ways.update([(a[CAMPUS - 1], b[CAMPUS - 1])] if farthest == level else [])
    return out | {"leaving": max(busy.values(), default=1), "crossing": max(ways.values(), default=1)}


def all_to_all(levels: Levels, axis: tuple[int, int], pipeline: tuple[int, int], rank: int) -> np.ndarray:
    """Bytes that all-to-alls of one rank's groups send between any two buildings, relative to what one member sends."""
    home = [int((levels.cuts[CAMPUS] <= at).sum()) - 1 for at in range(levels.num_ranks)]
    (degree, stride), out = axis, np.zeros((max(home) + 1,) * 2)
    for start in (b + j for b in range(0, levels.num_ranks, degree * stride) for j in range(stride)):
        if start // pipeline[1] % pipeline[0] == rank:
            places = [home[start + i * stride] for i in range(degree)]
            for one, other in product(places, repeat=2):
                out[one, other] += 1 / degree
    return out


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("levels", "world"), FILLS)
def test_shapes_of_ranks_are_those_of_their_groups(levels: Levels, world: int, order: tuple[GridAxis, ...]) -> None:
    degrees = Degrees(tp=2, pp=4, dp_shard=3, dp_replicate=world // 24)
    stride = strides(degrees, order)
    pipeline = degrees.pp, stride["pp"]
    for name in ("dp_shard", "dp_replicate"):
        axis = degrees.of(name), stride[name]
        whole = exact_shape(*axis, levels)
        found = shapes_of_ranks(one_row(whole), axis, pipeline, levels)
        assert (found.fanout[:, :CAMPUS] == whole.fanout[:CAMPUS]).all()
        for rank in range(degrees.pp):
            for level in (CAMPUS, REGION):
                expected = literal(levels, axis, pipeline, rank, level)
                assert {key: int(getattr(found, key)[rank, level]) for key in expected} == expected, (name, rank, level)
            sent = all_to_all(levels, axis, pipeline, rank)
            assert found.exchanged[rank, CAMPUS:] == pytest.approx(levels.routes.fullest(sent)), (name, rank)
    assert NUM_LEVELS == REGION + 1


def test_only_the_stage_on_the_border_crosses_it() -> None:
    """Only the stage on the border crosses it.

    Four stages of 24 are on buildings of 36 and 60, and the second one straddles the border.
    """
    levels = build_levels(flat(2, 60), allocation(("b0", 36), ("b1", 60)))
    shape = exact_shape(24, 1, levels)
    assert shape.fanout[CAMPUS] == 2
    found = shapes_of_ranks(one_row(shape), (24, 1), (4, 24), levels)
    assert found.fanout[:, CAMPUS].tolist() == [1, 2, 1, 1]
    assert found.span.tolist()[1] == CAMPUS
    assert max(found.span.tolist()[::2]) < CAMPUS


def served(ready_s: list[float], work_s: list[float]) -> float:
    """Time at which a server without idle time finishes its work."""
    now = 0.0
    for ready, work in sorted(zip(ready_s, work_s, strict=True)):
        now = max(now, ready) + work
    return now


@pytest.mark.parametrize("seed", range(20))
def test_the_queue_is_that_of_one_server(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, v = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    busy, pieces = rng.uniform(0.2, 3, p * v), rng.integers(1, 5, p * v).astype(float)
    start = rng.uniform(0, 5, p * v)
    end = start + rng.uniform(0.1, 1, p * v)
    total = float(end.max())
    busy_s, left_s = queue(StageEnds(0 * start, 0 * start, start, end, total), pieces, busy)
    ready = [start[k] + (end[k] - start[k]) * (i + 1) / pieces[k] for k in range(p * v) for i in range(int(pieces[k]))]
    work = [busy[k] / pieces[k] for k in range(p * v) for _ in range(int(pieces[k]))]
    assert busy_s - left_s == pytest.approx(served(ready, work) - total)


def test_micro_batches_pass_all_stages_before_and_go_back_through_them() -> None:
    ends = chained_ends(np.array([1.0, 1.5, 2.0]), np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.25]))
    assert ends.first_start_s == pytest.approx([0.0, 1.5, 3.25])
    assert ends.first_end_s - ends.first_start_s == pytest.approx([1.0, 1.5, 2.0])
    assert ends.total_s - ends.last_end_s == pytest.approx([0.0, 1.5, 3.75])
    assert ends.last_end_s - ends.last_start_s == pytest.approx([1.0, 2.0, 3.0])
