"""Messages of ``row_codec``: quantised rows of an embedding table, equal rows once, with the numbers coded.

A message falls back to uncoded rows wherever coding does not make it shorter. ``runtime.bounded_rows`` and
``runtime.device_rows`` call this module.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleacross.errors import InputError
from scaleacross.row_codec.quantiser import Quantised, Rows, checked_bound, checked_rows, quantise
from scaleacross.row_codec.stages import STAGES, written

_MAGIC: Final = b"SR1"
_HEAD: Final = struct.Struct("<3sBBBHIIIdiII")
"""Header fields: magic, kind, stage of the codes, stage of the row index, width, rows, distinct rows, exceptions, step,
smallest code, bytes of the codes, bytes of the row index. A CRC-32 of the header and of the body follows."""
_SUM: Final = struct.Struct("<I")
_AS_IT_IS, _CODED = 0, 1
_NAMES: Final = tuple(STAGES)
HEAD_BYTES: Final = _HEAD.size + _SUM.size
OUTSIDE: Final = "a message of coded rows refers to rows or elements that it does not have"


@dataclass(frozen=True)
class RowCodec:
    """A codec for rows of an embedding table.

    Attributes:
        bound: largest error of an element, absolute.
        stage: lossless stage that codes the numbers (a name of ``stages.STAGES``), or ``smallest``.

    Raises:
        InputError: the bound is not positive and finite, or there is no such stage.
    """

    bound: float
    stage: str = "smallest"

    def __post_init__(self) -> None:
        checked_bound(self.bound)
        if self.stage not in (*STAGES, "smallest"):
            raise InputError(f"no stage '{self.stage}': choose from {', '.join((*STAGES, 'smallest'))}")

    def write(self, rows: NDArray[np.generic]) -> bytes:
        """Return the message of fp32 ``rows`` (rows, width), uncoded if coding does not make it shorter.

        Raises:
            InputError: infinities, NaN, another type or shape, more than 65,535 columns, or a stage whose package is
                missing.
        """
        own = checked_rows(rows)
        return _coded(quantise(own, self.bound), own.shape, self.stage) or as_it_is(own)


def as_it_is(rows: Rows) -> bytes:
    """Return the uncoded message of fp32 (rows, width). It is lossless; elements may be infinite or NaN.

    Raises:
        InputError: more than 65,535 columns, or 4 GiB of rows or more.
    """
    head = (_MAGIC, _AS_IT_IS, 0, 0, rows.shape[1], rows.shape[0], 0, 0, 0.0, 0, rows.nbytes, 0)
    return _sealed(head, rows.astype("<f4", copy=False).tobytes())


class Coded(NamedTuple):
    """The content of a coded message.

    Attributes:
        step: value of one code.
        least: smallest code, which is subtracted from every code.
        shape: rows, distinct rows, columns.
        codes: stage, and the bytes of the codes.
        row_index: stage, and the bytes of the row index; no bytes if all rows differ.
        places, values: flat positions and fp32 values of the elements that travel uncoded (exceptions).
    """

    step: float
    least: int
    shape: tuple[int, int, int]
    codes: tuple[str, bytes]
    row_index: tuple[str, bytes]
    places: NDArray[np.int64]
    values: Rows


def read_rows(data: bytes) -> Rows:
    """Return the fp32 rows (rows, width) of a message of any ``RowCodec``.

    Raises:
        InputError: the bytes are no such message, or they are damaged.
    """
    own = coded_of(data)
    if own is None:
        told = _HEAD.unpack_from(data)
        return np.frombuffer(data, "<f4", offset=HEAD_BYTES).reshape(told[5], told[4]).astype(np.float32, copy=True)
    num_rows, distinct, width = own.shape
    numbers = STAGES[own.codes[0]].read(own.codes[1], distinct * width)
    codes = (numbers.astype(np.int64) + own.least).astype(np.int32).reshape(distinct, width)
    index = np.arange(num_rows)
    if own.row_index[1]:
        index = STAGES[own.row_index[0]].read(own.row_index[1], num_rows).astype(np.int64)
    if np.any(index >= distinct):
        raise InputError(OUTSIDE)
    return Quantised(own.step, codes, index, own.places, own.values).rows()


def coded_of(data: bytes) -> Coded | None:
    """Return the parts of a message, or None if its rows are uncoded. Raises InputError as ``read_rows`` does."""
    if len(data) < HEAD_BYTES or data[:3] != _MAGIC:
        raise InputError("these bytes are no message of coded rows")
    head, body = data[: _HEAD.size], data[HEAD_BYTES:]
    told = _HEAD.unpack(head)
    _, kind, codes_by, index_by, width, num_rows, distinct, exceptions, step, least, codes_size, index_size = told
    whole = len(body) == codes_size + index_size + 8 * exceptions
    if not whole or _SUM.unpack_from(data, _HEAD.size)[0] != zlib.crc32(body, zlib.crc32(head)):
        raise InputError("a message of coded rows is damaged: its length or checksum does not match")
    if kind == _AS_IT_IS:
        if len(body) != 4 * num_rows * width:
            raise InputError(
                f"a message of {num_rows:,} uncoded rows of {width:,} columns has {len(body):,} bytes of them"
            )
        return None
    if kind != _CODED or max(codes_by, index_by) >= len(_NAMES):
        raise InputError(
            f"a message of coded rows of kind {kind}, stages {codes_by} and {index_by}: none of this version"
        )
    rest = body[codes_size + index_size :]
    places = np.frombuffer(rest, "<u4", exceptions).astype(np.int64)
    if np.any(places >= num_rows * width) or (not index_size and distinct != num_rows):
        raise InputError(OUTSIDE)
    return Coded(
        step,
        least,
        (num_rows, distinct, width),
        (_NAMES[codes_by], body[:codes_size]),
        (_NAMES[index_by], body[codes_size : codes_size + index_size]),
        places,
        np.frombuffer(rest, "<f4", exceptions, 4 * exceptions),
    )


def message_of(own: Coded) -> bytes | None:
    """Return the message of ``own``; None if exceptions lie beyond 32 bits, or uncoded rows take no more bytes.

    Raises:
        InputError: more than 65,535 columns.
    """
    num_rows, distinct, width = own.shape
    codes, index = own.codes[1], own.row_index[1]
    # an exception takes 8 bytes (position and value), an uncoded element 4
    if num_rows * width >= 2**32 or len(codes) + len(index) + 8 * len(own.places) >= 4 * num_rows * width:
        return None
    body = codes + index + own.places.astype("<u4").tobytes() + own.values.astype("<f4").tobytes()
    ids = _NAMES.index(own.codes[0]), _NAMES.index(own.row_index[0])
    sizes = num_rows, distinct, len(own.places)
    return _sealed((_MAGIC, _CODED, *ids, width, *sizes, own.step, own.least, len(codes), len(index)), body)


def _coded(own: Quantised, shape: tuple[int, ...], stage: str) -> bytes | None:
    """Return the message of quantised rows (``message_of``), coded by ``stage``."""
    num_rows, width = shape
    least = int(own.codes.min()) if own.codes.size else 0
    distinct = len(own.codes)
    codes = written((own.codes.reshape(-1).astype(np.int64) - least).astype(np.uint32), stage)
    index = ("packed", b"") if distinct == num_rows else written(own.index.astype(np.uint32), stage)
    return message_of(Coded(own.step, least, (num_rows, distinct, width), codes, index, own.places, own.values))


def _sealed(fields: tuple[object, ...], body: bytes) -> bytes:
    try:
        head = _HEAD.pack(*fields)
    except struct.error:
        raise InputError(
            f"{fields[5]:,} rows of {fields[4]:,} columns; a message has at most 65,535 columns, and less than 4 GiB"
        ) from None
    return head + _SUM.pack(zlib.crc32(body, zlib.crc32(head))) + body
