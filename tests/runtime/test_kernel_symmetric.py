"""Symmetric-memory all-reduce across processes: right bits on all ranks, epochs beyond 32 bits, a missing peer named."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import symmetric_cases as cases  # sets the interpreter, so it stands first
import torch

from scaleacross.errors import InputError
from scaleacross.runtime.kernels.symmetric import one_shot_all_reduce


def _on_ranks(world_size: int, function, *arguments):  # type: ignore[no-untyped-def]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(world_size, mp_context=context) as pool:
        futures = [pool.submit(function, rank, *arguments) for rank in range(world_size)]
        return [future.result(timeout=240) for future in futures]


@pytest.mark.parametrize(("world_size", "first_epoch"), [(2, 0), (3, 2**31 - 2), (4, 2**32 - 3)])
def test_all_ranks_get_the_bits_of_the_reference(world_size: int, first_epoch: int, tmp_path: Path) -> None:
    cases.prepare(str(tmp_path), world_size, first_epoch)
    results = _on_ranks(world_size, cases.reduces, str(tmp_path), world_size, first_epoch)
    assert [good for good, _ in results] == [[True] * 4] * world_size
    assert len({checksum for _, checksum in results}) == 1


def test_a_missing_peer_is_named(tmp_path: Path) -> None:
    cases.prepare(str(tmp_path), 3, 0)
    told = _on_ranks(3, cases.misses_a_peer, str(tmp_path), 3, 2)
    assert "rank 0 of 3 waited in vain for rank 2:" in told[0]
    assert "rank 1 of 3 waited in vain for rank 2:" in told[1]


def test_refuses_what_does_not_fit(tmp_path: Path) -> None:
    cases.prepare(str(tmp_path), 1, 0)
    memory, _held = cases.mapped(str(tmp_path), 0, 1, 0)
    with pytest.raises(InputError, match="do not fit into symmetric buffers"):
        one_shot_all_reduce(memory, torch.empty(cases.NUMEL + 1))
    with pytest.raises(InputError, match="takes contiguous"):
        one_shot_all_reduce(memory, torch.empty(4, dtype=torch.int32))
