"""Every generator on groups of 2, 3, 5 and 8 ranks, over equal and unequal buildings.

The long proof adds all sizes up to 33, 64 and 128.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

import pytest

from cases import each
from scaleacross.schedules import collective as c
from scaleacross.schedules.collective.check import check
from scaleacross.schedules.collective.transfer import CollectiveSchedule, Operation

SIZES = (*range(1, 34), 64, 128)
CHUNKS = (1, 3)
LARGE = 33
"""Number of ranks above which each case uses one chunking, in turn."""
REDUCTIONS = (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER)


def chunkings(num_ranks: int, turn: int) -> tuple[int, ...]:
    return CHUNKS if num_ranks <= LARGE else (CHUNKS[turn % len(CHUNKS)],)


def unequal(num_ranks: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Buildings of equal and unequal size.

    They are one and the rest, a third and the rest but one, halves, and four buildings.
    """
    for cut in {(1,), (num_ranks // 2,), (num_ranks // 3, num_ranks - 1), (1, num_ranks // 4, num_ranks // 2)}:
        bounds = (0, *cut, num_ranks)
        if all(a < b for a, b in pairwise(bounds)):
            yield tuple(tuple(range(a, b)) for a, b in pairwise(bounds))


def flat(num_ranks: int) -> Iterator[CollectiveSchedule]:
    for turn, (operation, algorithm) in enumerate(product(REDUCTIONS, c.PHASES)):
        for chunks in chunkings(num_ranks, turn):
            yield c.flat(operation, algorithm, num_ranks, chunks)
    orders = [range(num_ranks), range(num_ranks)[::-1], [*range(0, num_ranks, 2), *range(1, num_ranks, 2)]]
    for operation, order in product(REDUCTIONS, orders[: 2 if num_ranks > LARGE else 3]):
        yield c.flat(operation, "ring", num_ranks, order=order)


def hierarchical(num_ranks: int) -> Iterator[CollectiveSchedule]:
    for turn, layout in enumerate(unequal(num_ranks)):
        for operation, (at, outer) in product(REDUCTIONS, enumerate(c.PHASES)):
            inner = list(c.PHASES)[(at + turn) % len(c.PHASES)]
            for chunks in chunkings(num_ranks, at + turn):
                yield c.layered(operation, layout, [outer, inner], chunks)


def others(num_ranks: int) -> Iterator[CollectiveSchedule]:
    for chunks in CHUNKS:
        yield c.tree_all_reduce(num_ranks, chunks)
        yield c.broadcast(num_ranks, "tree", chunks)
        yield c.broadcast(num_ranks, "chain", chunks)


def exchanges(num_ranks: int) -> Iterator[CollectiveSchedule]:
    """All-to-alls have n² blocks, so the two largest groups run in one chunk."""
    large = num_ranks > LARGE
    for algorithm in ("direct", "pairwise", "two_level"):
        for chunks in CHUNKS[:1] if large else CHUNKS:
            yield c.all_to_all([range(num_ranks)], algorithm, chunks)
    for layout in unequal(num_ranks):
        for chunks in CHUNKS[:1] if large else CHUNKS:
            yield c.all_to_all(layout, "two_level", chunks)


@pytest.mark.parametrize("family", [flat, hierarchical, others, exchanges], ids=lambda family: family.__name__)
@each("num_ranks", (2, 3, 5, 8), SIZES, size=8)
def test_every_rank_ends_with_what_it_was_promised(family: object, num_ranks: int) -> None:
    proved = 0
    for schedule in family(num_ranks):  # type: ignore[operator]
        check(schedule)
        proved += 1
    assert proved or (family is hierarchical and num_ranks == 1)  # one rank has no two buildings
