"""Rows within a bound between ranks: values, order, gradients and bytes, on gloo and on the bundled backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_pool import RankPool, join_job

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import bounded_cases as cases


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    ranks = RankPool(4)
    ranks.run(join_job)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("name", ["gloo", "scaleacross"])
@pytest.mark.parametrize(("size", "stage"), [(2, "rans"), (3, "packed"), (4, "smallest")])
def test_rows_are_within_the_bound_or_exact(name: str, size: int, stage: str, pool: RankPool) -> None:
    for good in pool.run(cases.rows_within, name, size, stage)[:size]:
        assert good == [True] * len(good)


@pytest.mark.parametrize("name", ["gloo", "scaleacross"])
@pytest.mark.parametrize("size", [2, 4])
def test_vectors_of_all_tables_arrive_and_gradients_return(name: str, size: int, pool: RankPool) -> None:
    for good in pool.run(cases.vectors_within, name, size)[:size]:
        assert good == [True] * len(good)


def test_bytes_on_the_wire_are_those_of_the_messages(pool: RankPool) -> None:
    for coded, plain, sent in pool.run(cases.fewer_bytes):
        assert plain >= 300 * 32 * 4 and 10 * coded < plain
        assert sent == pytest.approx(coded + plain, rel=0.02)


def test_infinities_are_refused_before_anything_travels(pool: RankPool) -> None:
    for said in pool.run(cases.refused):
        assert "infinite or NaN" in said
