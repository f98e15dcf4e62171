"""Rows within a bound between ranks: values, order, gradients and bytes, on gloo and on the bundled backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_pool import RankPool, join_job

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import bounded_cases as cases
import torch

from scaleacross.errors import InputError
from scaleacross.row_codec.message import RowCodec, as_it_is
from scaleacross.runtime import bounded_rows
from scaleacross.runtime.device_rows import read_rows_on


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


@pytest.mark.parametrize("by_device", [False, True])
def test_cut_messages_of_several_tables_are_refused(by_device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    host = torch.device("cpu")
    if by_device:  # the reader of an accelerator, on tensors of the host
        monkeypatch.setattr(bounded_rows, "_read", read_rows_on)
    first, second = torch.rand(4, 3), torch.rand(4, 2)
    data = bounded_rows._joined([as_it_is(first.numpy()), RowCodec(0.1, "packed").write(second.numpy())])
    assert bounded_rows._columns(data, 4, host).shape == (4, 5)
    whole = len(bounded_rows._joined([as_it_is(first.numpy())]))
    for end in set(range(1, len(data))) - {whole}:  # cut there, the bytes are those of one table less
        with pytest.raises(InputError, match="messages of coded rows are cut"):
            bounded_rows._columns(data[:end], 4, host)
    with pytest.raises(InputError, match="damaged"):
        bounded_rows._columns(data[:-1] + bytes([data[-1] ^ 1]), 4, host)
    with pytest.raises(InputError, match="4 samples: 5 are due"):
        bounded_rows._columns(data, 5, host)
