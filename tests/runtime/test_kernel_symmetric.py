"""Symmetric-memory all-reduce across processes: right bits on all ranks, epochs beyond 32 bits, a missing peer named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import symmetric_cases as cases  # sets the interpreter, so it stands first
import torch
from rank_pool import RankPool

from scaleacross.errors import InputError
from scaleacross.runtime.kernels.put_rows import put_rows
from scaleacross.runtime.kernels.symmetric import one_shot_all_reduce
from scaleacross.runtime.rows import lay_out


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    ranks = RankPool(4)
    yield ranks
    ranks.close()


@pytest.mark.parametrize(("world_size", "first_epoch"), [(2, 0), (3, 2**31 - 2), (4, 2**32 - 3)])
def test_all_ranks_get_the_bits_of_the_reference(
    world_size: int, first_epoch: int, pool: RankPool, tmp_path: Path
) -> None:
    cases.prepare(str(tmp_path), world_size, first_epoch)
    results = pool.run(cases.reduces, str(tmp_path), world_size, first_epoch)[:world_size]
    assert [good for good, _ in results] == [[True] * 4] * world_size
    assert len({checksum for _, checksum in results}) == 1


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_rows_are_put_where_they_are_meant_to_be(world_size: int, pool: RankPool, tmp_path: Path) -> None:
    cases.prepare(str(tmp_path), world_size, 0)
    results = pool.run(cases.puts_rows, str(tmp_path), world_size, 7 * world_size)[:world_size]
    assert results == [[True] * 9] * world_size


def test_a_missing_peer_is_named(pool: RankPool, tmp_path: Path) -> None:
    cases.prepare(str(tmp_path), 3, 0)
    told = pool.run(cases.misses_a_peer, str(tmp_path), 3, 2)
    assert "rank 0 of 3 waited in vain for rank 2:" in told[0]
    assert "rank 1 of 3 waited in vain for rank 2:" in told[1]


def test_refuses_what_does_not_fit(tmp_path: Path) -> None:
    cases.prepare(str(tmp_path), 1, 0)
    memory, _held = cases.mapped(str(tmp_path), 0, 1, 0)
    with pytest.raises(InputError, match="do not fit into symmetric buffers"):
        one_shot_all_reduce(memory, torch.empty(cases.NUMEL + 1))
    with pytest.raises(InputError, match="takes contiguous"):
        one_shot_all_reduce(memory, torch.empty(4, dtype=torch.int32))
    rows = torch.zeros(10, 200)
    with pytest.raises(InputError, match=r"1 ranks · 10 rows of 200 torch.float32 and their counts take 8008 bytes"):
        put_rows(memory, rows, lay_out(torch.zeros(10, dtype=torch.int64), 1, 10))
    with pytest.raises(InputError, match="a layout for 2 ranks in a group of 1"):
        put_rows(memory, rows, lay_out(torch.zeros(10, dtype=torch.int64), 2, 10))
