"""Rows to the ranks that they are meant for: as torch's all_to_all_single leaves them, once per building, with a flag."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_pool import RankPool, join_job

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import exchange_cases as cases
import torch

from scaleacross.errors import InputError
from scaleacross.runtime.row_exchange import exchange_rows_by_building


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


@pytest.mark.parametrize("name", ["gloo", "scaleacross"])
@pytest.mark.parametrize("buildings", [((0, 1), (2, 3)), ((3, 0), (1,), (2,)), ((0,), (3, 1, 2)), ((2, 0, 1, 3),)])
def test_by_building_equals_torch(name: str, buildings: tuple[tuple[int, ...], ...], pool: RankPool) -> None:
    for num_each in (1, 3):
        for good in pool.run(cases.by_building, name, 4, buildings, num_each):
            assert good == [True] * len(good)


def test_a_row_crosses_once_per_building_and_so_does_its_result(pool: RankPool) -> None:
    for straight, by_building in pool.run(cases.crossing_bytes):
        assert by_building == pytest.approx([one / 2 for one in straight], rel=0.05)


def test_refuses_buildings_that_leave_a_rank_out() -> None:
    class Group:
        rank = staticmethod(lambda: 0)
        size = staticmethod(lambda: 3)

    with pytest.raises(InputError, match=r"buildings \[\[0\], \[1\]\] do not hold each of 3 ranks"):
        exchange_rows_by_building(Group(), ((0,), (1,)), torch.zeros(1, 2), torch.zeros(1, 1, dtype=torch.int64), 1)  # type: ignore[arg-type]
