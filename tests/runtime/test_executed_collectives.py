"""Every collective, algorithm, number of ranks, type and size equals torch; equal bits everywhere; nothing hangs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_pool import RankPool

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import collective_cases as cases

SIZES = (2, 3, 4, 8)
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    ranks = RankPool(8)
    ranks.run(cases.set_up, SIZES)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_equals_torch(pool: RankPool, operation: str, size: int) -> None:
    counts = pool.run(cases.check_operation, operation, size, True)
    assert counts[:size] == [counts[0]] * size
    assert counts[0] >= 2 * (8 + 3 + 5)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_equals_torch_when_payloads_travel_in_the_stream(pool: RankPool, operation: str) -> None:
    assert pool.run(cases.check_operation, operation, 3, False)[0] > 0


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("operation", OPERATIONS[:-1])
def test_equals_torch_over_send_and_receive(pool: RankPool, operation: str, size: int) -> None:
    assert pool.run(cases.check_operation, operation, size, None)[0] > 0


@pytest.mark.parametrize("size", SIZES)
def test_sums_are_equal_on_all_ranks_and_whenever_they_run(pool: RankPool, size: int) -> None:
    sums = pool.run(cases.bits_of_random_sums, size, 3)[:size]
    assert sums[0] and all(one == sums[0] for one in sums)


def test_every_reduction(pool: RankPool) -> None:
    pool.run(cases.reductions, 4)


def test_lists_and_strides(pool: RankPool) -> None:
    pool.run(cases.shapes_and_lists, 3)


def test_a_hundred_in_flight(pool: RankPool) -> None:
    pool.run(cases.repeated, 4, 100)


def test_two_groups_at_once(pool: RankPool) -> None:
    pool.run(cases.two_groups_at_once, 4)
