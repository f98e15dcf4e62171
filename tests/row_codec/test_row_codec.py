"""Coded rows: every element is exactly within its bound for any input.

Ratios are checked on two real batches, and damage is refused.
"""

from __future__ import annotations

import lzma
import os
import zlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scaleacross.errors import InputError
from scaleacross.row_codec import quantiser
from scaleacross.row_codec.message import HEAD_BYTES, Coded, RowCodec, as_it_is, message_of, read_rows
from scaleacross.row_codec.quantiser import absolute_bound, distinct_rows, quantise
from scaleacross.row_codec.stages import STAGES, has_zstd, stages_here, written

FOLDER = Path(os.environ.get("SCALEACROSS_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
HERE = stages_here()
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
BOUNDS = st.floats(min_value=5e-324, max_value=1e300)


@st.composite
def batches(draw: st.DrawFn) -> NDArray[np.float32]:
    width = draw(st.integers(1, 5))
    row = st.lists(FLOATS, min_size=width, max_size=width)
    rows = draw(st.lists(row, max_size=12))
    repeats = draw(st.integers(1, 3))
    return np.array(rows * repeats, np.float32).reshape(-1, width)


def assert_within(rows: NDArray[np.float32], back: NDArray[np.float32], bound: float) -> None:
    """Check bounds in exact arithmetic, so that no rounding of the test itself masks an error."""
    assert back.dtype == np.float32 and back.shape == rows.shape
    for x, y in zip(rows.reshape(-1).tolist(), back.reshape(-1).tolist(), strict=True):
        assert np.isfinite(y) and abs(Fraction(x) - Fraction(y)) <= Fraction(bound)


def sealed(data: bytearray) -> bytes:
    """Return the message with the checksum of what it holds now."""
    sum_ = zlib.crc32(data[HEAD_BYTES:], zlib.crc32(data[: HEAD_BYTES - 4]))
    return bytes(data[: HEAD_BYTES - 4]) + sum_.to_bytes(4, "little") + bytes(data[HEAD_BYTES:])


@settings(max_examples=150, deadline=None)
@given(rows=batches(), bound=BOUNDS, stage=st.sampled_from(HERE))
@example(rows=np.array([[1e-45, -1e-45]], np.float32), bound=7e-46, stage="packed")  # half of the least denormal
@example(rows=np.array([[3.4028235e38, -3.4028235e38]], np.float32), bound=1e38, stage="rans")
@example(rows=np.array([[1.0, 1.0 + 2**-23]], np.float32), bound=2**-24, stage="rans")  # half an ulp
@example(rows=np.array([[16777217.0, 0.5]], np.float32), bound=0.1, stage="packed")
@example(rows=np.full((9, 4), 0.3, np.float32), bound=0.1, stage="deflate")
@example(rows=np.zeros((0, 3), np.float32), bound=0.1, stage="rans")
@example(rows=np.full((1, 1), 1e-30, np.float32), bound=1e300, stage="packed")
def test_every_element_is_within_the_bound(rows: NDArray[np.float32], bound: float, stage: str) -> None:
    data = RowCodec(bound, stage).write(rows)
    assert_within(rows, read_rows(data), bound)
    assert len(data) <= HEAD_BYTES + rows.nbytes


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), digits=st.integers(0, 9))
def test_elements_at_the_middle_of_two_codes_are_within_the_bound(seed: int, digits: int) -> None:
    bound, generator = float(np.float32(10.0**-digits)), np.random.default_rng(seed)
    middles = (generator.integers(-9999, 9999, 64) + 0.5) * 2 * bound
    rows = np.nextafter(middles.astype(np.float32), generator.choice([-np.inf, np.inf], 64).astype(np.float32))
    assert_within(rows.reshape(8, 8), read_rows(RowCodec(bound).write(rows.reshape(8, 8))), bound)


def test_the_bound_is_used_up() -> None:
    rows = np.random.default_rng(3).normal(size=(300, 16)).astype(np.float32)
    for bound in (0.01, 0.013, 0.019):
        assert 0.99 * bound < np.abs(read_rows(RowCodec(bound).write(rows)) - rows).max() <= bound
        assert not len(quantise(rows, bound).places)


@settings(max_examples=150, deadline=None)
@given(
    numbers=st.lists(st.one_of(st.integers(0, 7), st.integers(0, 70000), st.integers(0, 2**32 - 1)), max_size=700),
    repeats=st.integers(1, 4),
    stage=st.sampled_from(HERE),
)
def test_stages_lose_nothing(numbers: list[int], repeats: int, stage: str) -> None:
    own = np.array(numbers * repeats, np.uint32)
    used, data = written(own, stage)
    assert used in (stage, "packed")
    assert np.array_equal(STAGES[used].read(data, own.size), own)


def test_entropy_stage_comes_near_the_entropy() -> None:
    numbers = np.random.default_rng(0).binomial(40, 0.5, 60_000).astype(np.uint32)
    share = np.bincount(numbers)[np.bincount(numbers) > 0] / numbers.size
    entropy_bytes = -(share * np.log2(share)).sum() * numbers.size / 8
    assert len(STAGES["rans"].write(numbers) or b"") < 1.03 * entropy_bytes


@given(
    rows=st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=30), confused=st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_rows_are_numbered_as_they_appear(rows: list[list[int]], confused: bool) -> None:
    own = np.array(rows, np.int32)
    with pytest.MonkeyPatch.context() as patch:
        if confused:  # all hashes equal: rows are compared element by element
            patch.setattr(quantiser, "_multipliers", lambda width: np.zeros(width, np.uint64))
        first, index = distinct_rows(own)
    seen = list(dict.fromkeys(map(tuple, rows)))
    assert [tuple(row) for row in own[first].tolist()] == seen
    assert index.tolist() == [seen.index(tuple(row)) for row in rows]


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    rows = np.array([[0.0, bad]], np.float32)
    with pytest.raises(InputError, match="1 of 2 elements are infinite or NaN"):
        RowCodec(0.1).write(rows)


@pytest.mark.parametrize("bound", [0.0, -1.0, np.inf, np.nan])
def test_bounds_that_bind_nothing_are_refused(bound: float) -> None:
    with pytest.raises(InputError, match="positive and finite"):
        RowCodec(bound)


def test_other_types_and_stages_are_refused() -> None:
    with pytest.raises(InputError, match="float64"):
        RowCodec(0.1).write(np.zeros((2, 2)))
    with pytest.raises(InputError, match="of \\(4,\\)"):
        RowCodec(0.1).write(np.zeros(4, np.float32))
    with pytest.raises(InputError, match="no stage 'lz4': choose from packed"):
        RowCodec(0.1, "lz4")
    with pytest.raises(InputError, match="65,535"):
        RowCodec(0.1).write(np.zeros((1, 65536), np.float32))
    with pytest.raises(InputError, match="65,535"):
        as_it_is(np.zeros((1, 65536), np.float32))


@settings(max_examples=120, deadline=None)
@given(at=st.integers(0, 10**6), flip=st.integers(1, 255), cut=st.integers(0, 50), stage=st.sampled_from(HERE))
def test_damaged_messages_are_refused(at: int, flip: int, cut: int, stage: str) -> None:
    rows = np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32)
    data = bytearray(RowCodec(0.05, stage).write(rows))
    data[at % len(data)] ^= flip
    with pytest.raises(InputError, match=r"damaged|no message"):
        read_rows(bytes(data))
    with pytest.raises(InputError, match=r"damaged|no message"):
        read_rows(bytes(data[: len(data) - 1 - cut]))


@pytest.mark.parametrize("stage", HERE)
@pytest.mark.parametrize(
    ("index", "distinct", "place"), [([0, 3], 3, 0), ([], 2, 0), ([], 41, 0), ([0, 1], 3, 160), ([0, 1], 3, 2**32 - 1)]
)
def test_messages_that_refer_to_what_they_do_not_have_are_refused(
    index: list[int], distinct: int, place: int, stage: str
) -> None:
    codes = written(np.arange(4 * distinct, dtype=np.uint32) % 5, stage)
    rows = written(np.array(index * 20, np.uint32), stage) if index else ("packed", b"")
    elements = np.array([place]), np.ones(1, np.float32)
    data = message_of(Coded(0.1, 0, (40, distinct, 4), codes, rows, *elements)) or b""
    with pytest.raises(InputError, match="refers to rows or elements that it does not have"):
        read_rows(data)


def test_uncoded_messages_of_another_size_are_refused() -> None:
    data = bytearray(as_it_is(np.zeros((3, 4), np.float32)))
    data[8] = 4  # rows
    with pytest.raises(InputError, match="4 uncoded rows of 4 columns has 48 bytes"):
        read_rows(sealed(data))


@pytest.mark.parametrize("at", [3, 4, 5])  # kind, stage of the codes, stage of the row index
def test_messages_of_another_version_are_refused(at: int) -> None:
    rows = np.random.default_rng(1).integers(0, 2, (40, 4)).astype(np.float32)
    data = bytearray(RowCodec(0.05, "packed").write(rows))
    data[at] = len(STAGES)
    with pytest.raises(InputError, match="none of this version"):
        read_rows(sealed(data))


def test_without_the_package_zstd_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleacross.row_codec.stages.find_spec", lambda name: None)
    assert not has_zstd()
    with pytest.raises(InputError, match=r"scaleacross\[codec\]"):
        RowCodec(0.1, "zstd").write(np.zeros((2, 2), np.float32))
    RowCodec(0.1).write(np.zeros((2, 2), np.float32))  # the smallest of the others


@pytest.mark.parametrize(
    ("name", "stage", "least"),
    [
        ("terabyte_table1", "smallest", 15),
        ("terabyte_table1", "rans", 15),
        ("kaggle_table5", "smallest", 300),
        ("kaggle_table5", "packed", 300),
    ],
)
def test_ratio_on_real_batches_at_two_percent_of_the_range(name: str, stage: str, least: float) -> None:
    path = FOLDER / f"sc24_embedding_{name}.f32.xz"
    if not path.is_file():
        pytest.skip(f"no {path.name}: set SCALEACROSS_DATA to the folder that holds it")
    rows = np.frombuffer(lzma.decompress(path.read_bytes()), "<f4").reshape(-1, 64)
    bound = absolute_bound(rows, 0.02)
    data = RowCodec(bound, stage).write(rows)
    assert rows.nbytes / len(data) >= least
    assert (np.abs(read_rows(data).astype(np.float64) - rows) <= bound).all()
