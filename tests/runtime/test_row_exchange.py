"""Rows to the ranks that they are meant for: as torch's all_to_all_single leaves them, with a flag."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_pool import RankPool, join_job

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import exchange_cases as cases


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    ranks = RankPool(4)
    ranks.run(join_job)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("name", ["gloo", "scaleacross"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_straight_equals_torch(name: str, size: int, pool: RankPool) -> None:
    for good in pool.run(cases.straight, name, size)[:size]:
        assert good == [True] * len(good)
