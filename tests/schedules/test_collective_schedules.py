"""Every collective schedule, proved on small groups and unequal buildings.

test_collective_proofs covers all groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from oracles.volume import volume
from scaleacross.cost_models.collective_laws import ALL_LEVELS
from scaleacross.cost_models.collective_laws import laws as laws_of
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import NUM_LEVELS
from scaleacross.cost_models.links import Links
from scaleacross.errors import InputError, VerificationError
from scaleacross.schedules import collective as c
from scaleacross.schedules.collective.check import check, check_rank
from scaleacross.schedules.collective.transfer import CollectiveSchedule, Kind, Operation, Step, Steps

SIZES = (*range(1, 18), 32, 33)
REDUCTIONS = (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER)


def layouts(num_ranks: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Two and three buildings of equal and unequal size."""
    ranks = tuple(range(num_ranks))
    cuts = {(num_ranks // 2,), (1,), (num_ranks // 3, num_ranks - 1), (num_ranks // 4, num_ranks // 2)}
    for cut in sorted(cuts):
        bounds = (0, *cut, num_ranks)
        parts = tuple(ranks[a:b] for a, b in pairwise(bounds))
        if all(parts):
            yield parts


@pytest.mark.parametrize("algorithm", c.PHASES)
@pytest.mark.parametrize("operation", REDUCTIONS)
def test_flat(operation: Operation, algorithm: str) -> None:
    for n in SIZES:
        check(c.flat(operation, algorithm, n))
    check(c.flat(operation, algorithm, 6, num_channels=3, order=[5, 0, 3, 1, 4, 2]))


@pytest.mark.parametrize("operation", REDUCTIONS)
@pytest.mark.parametrize("outer", c.PHASES)
def test_hierarchical_on_unequal_buildings(operation: Operation, outer: str) -> None:
    for n in (2, 3, 4, 5, 7, 8, 12, 13, 24, 33):
        for layout in layouts(n):
            for inner in ("ring", "halving_doubling"):
                check(c.layered(operation, layout, [outer, inner], num_channels=2 if n < 8 else 1))


@pytest.mark.parametrize("operation", REDUCTIONS)
def test_three_levels(operation: Operation) -> None:
    unequal = (((0, 1), (2, 3, 4)), ((5,), (6, 7, 8), (9, 10)), ((11, 12),))
    even = tuple(tuple(tuple(range(8 * b + 4 * h, 8 * b + 4 * h + 4)) for h in range(2)) for b in range(4))
    for layout in (unequal, even):
        for outer in c.PHASES:
            check(c.layered(operation, layout, [outer, "direct", "ring"]))


def test_the_rest() -> None:
    for n in SIZES:
        for chunks in (1, 3):
            check(c.tree_all_reduce(n, chunks))
            check(c.broadcast(n, "tree", chunks))
            check(c.broadcast(n, "chain", chunks))
        if n <= 33:
            for algorithm in ("direct", "pairwise", "two_level"):
                check(c.all_to_all([range(n)], algorithm))
            for layout in layouts(n):
                check(c.all_to_all(layout, "two_level"))
    check(c.flat(Operation.ALL_REDUCE, "ring", 5, order=[0, 2, 4, 1, 3]))


def test_sent_is_what_the_steps_say() -> None:
    for operation in REDUCTIONS:
        schedule = c.flat(operation, "direct", 5)
        plain = replace(schedule, sends=None)
        pairs = [(s, d) for s in range(5) for d in range(5)]
        assert [list(schedule.sent(s, d)) for s, d in pairs] == [list(plain.sent(s, d)) for s, d in pairs]
    for algorithm in ("direct", "pairwise"):
        schedule = c.all_to_all([range(5)], algorithm)
        plain = replace(schedule, sends=None)
        assert [list(schedule.sent(s, d)) for s, d in pairs] == [list(plain.sent(s, d)) for s, d in pairs]


def large() -> dict[str, CollectiveSchedule]:
    n = 4096
    buildings = tuple(tuple(range(1024 * b, 1024 * b + 1024)) for b in range(4))
    hosts = tuple(tuple(tuple(range(a, a + 8)) for a in range(b[0], b[-1], 8)) for b in buildings)
    return {
        "ring": c.flat(Operation.ALL_REDUCE, "ring", n),
        "halving_doubling": c.flat(Operation.ALL_REDUCE, "halving_doubling", n),
        "direct": c.flat(Operation.ALL_REDUCE, "direct", n),
        "bruck": c.flat(Operation.ALL_GATHER, "bruck", n),
        "tree": c.tree_all_reduce(n),
        "two levels": c.layered(Operation.ALL_REDUCE, buildings, ["ring", "ring"]),
        "three levels": c.layered(Operation.ALL_REDUCE, hosts, ["direct", "ring", "direct"]),
        "uneven": c.layered(Operation.ALL_REDUCE, (tuple(range(1000)), tuple(range(1000, n))), ["direct", "ring"]),
    }


@pytest.mark.parametrize("name", large())
def test_one_rank_of_thousands(name: str) -> None:
    """One rank of thousands is generated alone, with its buffers.

    It buffers one block on a ring, both children's blocks on a tree, and everything in a direct exchange.
    """
    schedule = large()[name]
    buffered = {check_rank(schedule, rank) for rank in (0, 2049)}
    known = {"ring": {1}, "tree": {2}, "direct": {4095}, "halving_doubling": {2048}, "bruck": {2048}}
    assert buffered == known.get(name, buffered)


# --- bytes ----------------------------------------------------------------------------------------------------------------


def test_hierarchical_meets_the_cut_bound() -> None:
    """Hierarchical schedules meet the cut bound.

    (K−1)/K·S enter each building in an all-gather. A flat ring in the same order carries (G−1)/G·S over the same cut.
    """
    num_buildings, num_local = 4, 8
    n = num_buildings * num_local
    layout = tuple(tuple(range(num_local * b, num_local * b + num_local)) for b in range(num_buildings))
    building = [lambda rank: rank, lambda rank: rank // num_local]
    for outer in c.PHASES:
        schedule = c.layered(Operation.ALL_GATHER, layout, [outer, "ring"], num_channels=2)
        far = volume(schedule, building, lambda _: 1 / n)[1]
        assert far.entering_bytes == pytest.approx((num_buildings - 1) / num_buildings)
    ring = volume(c.flat(Operation.ALL_GATHER, "ring", n), building, lambda _: 1 / n)[1]
    assert ring.entering_bytes == pytest.approx((n - 1) / n)
    strided = [local + num_local * b for local in range(num_local) for b in range(num_buildings)]
    worst = volume(c.flat(Operation.ALL_GATHER, "ring", n, order=strided), building, lambda _: 1 / n)[1]
    assert worst.entering_bytes == pytest.approx(num_local * (n - 1) / n)


def test_two_level_all_to_all_sends_the_same_bytes_in_fewer_messages() -> None:
    layout = (range(4), range(4, 8), range(8, 12))
    building = [lambda rank: rank, lambda rank: rank // 4]
    direct, two_level = (
        volume(c.all_to_all(layout, name), building, lambda _: 1.0)[1] for name in ("direct", "two_level")
    )
    assert two_level.entering_bytes == direct.entering_bytes
    assert (direct.messages, two_level.messages) == (12 * 8, 12 * 2)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
@pytest.mark.parametrize("slow", [0, 2, 4])
def test_cost_model_counts_the_bytes_of_the_schedule(algorithm: str, slow: int) -> None:
    """The cost model counts the bytes of the schedule.

    There are 2 buildings × 3 zones × 4 accelerators, and one level of finite bandwidth. Its time is its bytes over its
    bandwidth. The 4 of a zone are one scale-up domain, and a ring leaves the building over its adapters too.
    """
    fanout = np.ones(NUM_LEVELS)
    fanout[[0, 2, 4]] = 4, 3, 2
    members, crossing, pairs = np.ones(NUM_LEVELS), np.ones(NUM_LEVELS), np.zeros(NUM_LEVELS)
    members[[1, 2, 4]] = 4, 4, 12
    exchanged = members * (24 - members) / 24
    loads, taken = (np.array(1.0), exchanged, crossing), (fanout - 1) / fanout
    farthest = fanout, members, taken, taken, np.array(0.0), np.zeros((0, 4, NUM_LEVELS))
    shape = GroupShape(np.array(24.0), fanout, members, crossing, pairs, np.array(24.0), *loads, *farthest)
    bandwidth = np.full(NUM_LEVELS, np.inf)
    bandwidth[slow] = 1.0
    links = Links(bandwidth, np.full(NUM_LEVELS, np.inf), np.zeros(NUM_LEVELS))
    laws = laws_of(shape, links, ALL_LEVELS)
    zones = tuple(tuple(tuple(range(4 * z, 4 * z + 4)) for z in range(3 * b, 3 * b + 3)) for b in range(2))
    units = {0: lambda rank: rank, 2: lambda rank: rank // 4, 4: lambda rank: rank // 12}
    if algorithm == "ring":
        schedule, s_per_byte = c.flat(Operation.ALL_GATHER, "ring", 24), laws.ring_s_per_byte
    else:
        schedule = c.layered(Operation.ALL_GATHER, zones, ["ring", "direct", "ring"])
        s_per_byte = laws.hierarchical_s_per_byte
    counted = dict(zip(units, volume(schedule, list(units.values()), lambda _: 1 / 24), strict=True))[slow]
    lanes = min(members[slow], 4) if algorithm == "ring" else members[slow]
    assert s_per_byte == pytest.approx(counted.entering_bytes / lanes)


# --- the check itself -----------------------------------------------------------------------------------------------------


def ring_with(change: Callable[[int, Steps], Iterator[Step]]) -> CollectiveSchedule:
    """A ring all-reduce of four ranks whose steps pass through ``change``."""
    ring = c.flat(Operation.ALL_REDUCE, "ring", 4)
    return replace(ring, program=lambda rank, channel: change(rank, ring.program(rank, channel)))


def drop_last_of_rank_2(rank: int, steps: Steps) -> Iterator[Step]:
    all_steps = list(steps)
    return iter(all_steps[:-1] if rank == 2 else all_steps)


def receive_first(rank: int, steps: Steps) -> Iterator[Step]:
    """Every receive in a step of its own, before the send."""
    for step in steps:
        yield tuple(t for t in step if t.kind is not Kind.SEND)
        yield tuple(t for t in step if t.kind is Kind.SEND)


def claim_more(rank: int, steps: Steps) -> Iterator[Step]:
    for step in steps:
        yield tuple(t._replace(contributors=0b0111) if rank == 1 and t.contributors == 0b0010 else t for t in step)


def add_twice(rank: int, steps: Steps) -> Iterator[Step]:
    for step in steps:
        yield step
        if rank == 0:
            yield step


def other_block(rank: int, steps: Steps) -> Iterator[Step]:
    for step in steps:
        yield tuple(t._replace(blocks=(0,)) if rank == 3 and t.kind is Kind.RECV else t for t in step)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_last_of_rank_2, "rank 2"),
        (receive_first, "4 ranks never end: rank 0 waits for rank 3"),
        (claim_more, "rank 1, channel 0, send with rank 2: says the contributions of ranks 0, 1, 2 for block 0"),
        (add_twice, "rank 0"),
        (other_block, "rank 3, channel 0, recv with rank 2: expects blocks"),
    ],
)
def test_a_broken_schedule_is_refused_by_name(change: Callable[[int, Steps], Iterator[Step]], message: str) -> None:
    with pytest.raises(VerificationError, match=re.escape(message)):
        check(ring_with(change))
    if change is not receive_first:  # a single rank cannot have a cycle
        with pytest.raises(VerificationError):
            for rank in range(4):
                check_rank(ring_with(change), rank)


@pytest.mark.parametrize(
    "make",
    [
        lambda: c.flat(Operation.ALL_REDUCE, "no-such", 4),
        lambda: c.flat(Operation.ALL_REDUCE, "ring", 0),
        lambda: c.flat(Operation.ALL_REDUCE, "ring", 4, num_channels=0),
        lambda: c.flat(Operation.ALL_REDUCE, "ring", 4, order=[0, 1, 1, 2]),
        lambda: c.layered(Operation.ALL_REDUCE, ((0, 1), (3, 4)), ["ring", "ring"]),
        lambda: c.layered(Operation.ALL_REDUCE, ((0, 1), (2, 3)), ["ring"]),
        lambda: c.layered(Operation.ALL_REDUCE, ((0, (1, 2)), (3, 4)), ["ring", "ring"]),
        lambda: c.broadcast(4, "ring"),
        lambda: c.all_to_all([range(4)], "ring"),
    ],
)
def test_bad_input_is_an_input_error(make: Callable[[], CollectiveSchedule]) -> None:
    with pytest.raises(InputError):
        make()
