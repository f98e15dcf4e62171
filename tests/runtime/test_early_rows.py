"""Rows fetched early equal those of a synchronous run and of one process, bit by bit, with any collisions of batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_pool import RankPool, join_job

torch = pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import early_cases as cases  # noqa: E402


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    ranks = RankPool(4)
    ranks.run(join_job)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("name", ["gloo", "scaleacross"])
@pytest.mark.parametrize(("size", "share"), [(1, 0.5), (2, 0.0), (3, 0.5), (4, 1.0)])
def test_equal_to_a_synchronous_run(name: str, size: int, share: float, pool: RankPool) -> None:
    early, plain = (pool.run(cases.trained, name, size, share, mode)[:size] for mode in (True, False))
    whole = cases.oracle(size, share)
    for rank, ((rows, asked, late), (same, _, all_late)) in enumerate(zip(early, plain, strict=True)):
        assert torch.equal(rows, same)
        assert torch.equal(rows, whole[rank::size])
        assert all_late == asked
        assert 0 < late < asked or (share == 1.0 and late > 0)


def test_calls_out_of_order_are_refused(pool: RankPool) -> None:
    for said in pool.run(cases.refused):
        assert ["update batch 0" in said[0], "after it is collected" in said[1]] == [True, True]
        assert all("from 0 to 7" in one for one in said[2:]) and len(said) == 4
