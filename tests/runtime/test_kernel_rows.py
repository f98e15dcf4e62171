"""Rows coded on an accelerator: kernels, torch and the host agree to the bit, and the bound holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import same_bits  # sets the interpreter, so it stands first

import torch  # isort: skip

from scaleacross.errors import InputError
from scaleacross.row_codec.message import Coded, RowCodec, message_of, read_rows
from scaleacross.row_codec.quantiser import quantise, step_of
from scaleacross.row_codec.stages import STAGES, written
from scaleacross.runtime import device_rows
from scaleacross.runtime.device_rows import (
    pack_reference,
    quantise_reference,
    read_rows_on,
    unpack_reference,
    write_rows,
)
from scaleacross.runtime.kernels.row_codec import pack_by_kernel, quantise_by_kernel, unpack_by_kernel

HOST = torch.device("cpu")


def rows_of(seed: int, num_rows: int = 40, width: int = 24) -> torch.Tensor:
    """Rows of which some are equal, with denormals, a huge element and constant rows."""
    generator = torch.Generator().manual_seed(seed)
    distinct = torch.randn(num_rows // 2, width, generator=generator)
    out = distinct[torch.randint(len(distinct), (num_rows,), generator=generator)]
    out[3], out[5, 2], out[7, 1] = 0.25, 1e-40, 3e30 if seed % 2 else 5.0
    return out


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bound", [1e-6, 0.03, 0.5])
def test_kernel_reference_and_host_quantise_alike(seed: int, bound: float) -> None:
    rows = rows_of(seed)
    step = step_of(float(rows.abs().max()), bound)
    codes, off = quantise_by_kernel(rows, step, bound, block=256)
    expected, missed = quantise_reference(rows, step, bound)
    assert torch.equal(codes, expected) and torch.equal(off, missed)
    host = quantise(rows.numpy(), bound)
    assert np.array_equal(host.codes[host.index], codes.numpy())
    assert np.array_equal(host.places, np.flatnonzero(off.numpy()))


def test_ties_go_to_even() -> None:
    values = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    assert quantise_by_kernel(values, 1.0, 1.0)[0].tolist() == [0, 2, 2, 0, -2, -2]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 200), st.integers(1, 25), st.integers(0, 2**31))
def test_packing_is_that_of_the_host(count: int, width: int, seed: int) -> None:
    numbers = torch.randint(2**width, (count,), generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    numbers[0] = 2**width - 1
    words = pack_by_kernel(numbers, width, groups=4)
    assert same_bits(words, pack_reference(numbers, width))
    host = STAGES["packed"].write(numbers.numpy().astype(np.uint32))
    assert host is not None and host[1:] == words.numpy().tobytes()[: len(host) - 1]
    assert torch.equal(unpack_by_kernel(words, width, count, groups=4), numbers)
    assert torch.equal(unpack_reference(words, width, count), numbers)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_messages_are_read_here_and_on_the_host(seed: int, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rows, "runs_kernels", lambda _: kernels)
    rows, bound = rows_of(seed, 64), 0.05
    data = write_rows(rows, RowCodec(bound, "packed"))
    here, there = read_rows_on(data, HOST), torch.from_numpy(read_rows(data))
    assert same_bits(here, there)
    assert float((here.double() - rows.double()).abs().max()) <= bound
    assert len(data) == len(RowCodec(bound, "packed").write(rows.numpy()))
    by_host = RowCodec(bound, "deflate").write(rows.numpy())
    assert same_bits(read_rows_on(by_host, HOST), torch.from_numpy(read_rows(by_host)))


def test_empty_constant_and_hopeless_rows() -> None:
    for rows in (torch.zeros(0, 4), torch.full((9, 4), 7.25), torch.randn(5, 4) * 1e30):
        data = write_rows(rows, RowCodec(1e-3, "packed"))
        assert (
            float((read_rows_on(data, HOST).double() - rows.double()).abs().max().nan_to_num() if rows.numel() else 0)
            <= 1e-3
        )
    few = torch.arange(6.0).reshape(
        1, 6
    )  # coded rows and a header are larger than these rows, and smaller with one row more
    assert len(write_rows(few, RowCodec(0.1, "packed"))) == len(RowCodec(0.1, "packed").write(few.numpy()))
    with pytest.raises(InputError, match="65,535"):
        write_rows(torch.zeros(1, 70_000), RowCodec(1e-3, "packed"))
    with pytest.raises(InputError, match="1 elements are infinite or NaN"):
        write_rows(torch.tensor([[1.0, float("inf")]]), RowCodec(1e-3, "packed"))


@pytest.mark.parametrize("index", [[0, 3], [0, 2**31]])
def test_messages_that_refer_to_rows_they_do_not_have_are_refused(index: list[int]) -> None:
    codes, rows = (written(np.array(own, np.uint32), "packed") for own in (range(12), index * 80))
    nothing = np.zeros(0, np.int64), np.zeros(0, np.float32)
    data = message_of(Coded(0.1, 0, (160, 3, 4), codes, rows, *nothing)) or b""
    with pytest.raises(InputError, match="refers to rows or elements that it does not have"):
        read_rows_on(data, HOST)


@pytest.mark.parametrize("codes", [b"", b"\x04", b"\x04" + bytes(60), b"\x21" + bytes(160)], ids=len)
def test_packed_numbers_of_another_length_are_refused(codes: bytes) -> None:
    nothing = np.zeros(0, np.int64), np.zeros(0, np.float32)
    data = message_of(Coded(0.1, 0, (40, 40, 4), ("packed", codes), ("packed", b""), *nothing)) or b""
    with pytest.raises(InputError, match="another length than its count and width say"):
        read_rows_on(data, HOST)
