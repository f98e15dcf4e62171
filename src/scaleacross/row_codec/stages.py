"""Lossless stages: whole numbers to bytes and back. ``message`` codes quantised rows with them.

=========== ==================================================================================================
stage       what it does
=========== ==================================================================================================
``packed``  as many bits for each number as the largest needs
``rans``    numbers by their frequency (asymmetric numeral systems, Duda 2013), in lanes that numpy works on at once
``deflate`` repeats and Huffman codes (zlib, in every Python)
``zstd``    repeats and entropy codes; needs the package ``zstandard`` (extra ``codec``) at both ends
=========== ==================================================================================================
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleacross.errors import InputError
from scaleacross.row_codec.rans import read_rans, write_rans

Numbers = NDArray[np.uint32]
ZSTD_LEVEL: Final = 3


class Stage(NamedTuple):
    """A lossless stage. ``write`` returns None for numbers that it cannot code; ``read`` needs their count."""

    write: Callable[[Numbers], bytes | None]
    read: Callable[[bytes, int], Numbers]


def _write_packed(numbers: Numbers) -> bytes:
    width = int(numbers.max()).bit_length() if numbers.size else 0
    lanes = np.arange(width, dtype=np.uint32)
    bits = ((numbers[:, None] >> lanes) & np.uint32(1)).astype(np.uint8)
    return bytes([width]) + np.packbits(bits.reshape(-1), bitorder="little").tobytes()


def packed_width(data: bytes, count: int) -> int:
    """Return the bits of each of ``count`` numbers; raise InputError if ``data`` is no message of so many."""
    width = data[0] if data else 0
    if width > 32 or len(data) != 1 + -(-count * width // 8):
        raise InputError("a message of packed numbers has another length than its count and width say")
    return width


def _read_packed(data: bytes, count: int) -> Numbers:
    width = packed_width(data, count)
    bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=1), count=count * width, bitorder="little")
    lanes = np.arange(width, dtype=np.uint32)
    numbers: Numbers = (bits.reshape(count, width).astype(np.uint32) << lanes).sum(1, dtype=np.uint32)
    return numbers


def _as_bytes(numbers: Numbers) -> bytes:
    """Return the numbers in 1, 2 or 4 bytes each, the narrowest size that fits.

    The first byte states that size. Bytes of equal significance are stored together.
    """
    largest = int(numbers.max()) if numbers.size else 0
    size = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
    own = numbers.astype(f"<u{size}").view(np.uint8).reshape(-1, size).T
    return bytes([size]) + own.tobytes()


def _from_bytes(data: bytes, count: int) -> Numbers:
    size = data[0] if data else 0
    if size not in (1, 2, 4) or len(data) != 1 + size * count:
        raise InputError("a message of whole numbers has another length than its count says")
    planes = np.frombuffer(data, np.uint8, offset=1).reshape(size, count)
    return np.ascontiguousarray(planes.T).view(f"<u{size}").reshape(-1).astype(np.uint32)


def _write_deflate(numbers: Numbers) -> bytes:
    return zlib.compress(_as_bytes(numbers), 6)


def _read_deflate(data: bytes, count: int) -> Numbers:
    unpacker = zlib.decompressobj()
    try:
        return _from_bytes(unpacker.decompress(data, 4 * count + 1), count)
    except zlib.error as error:
        raise InputError(f"a deflated message cannot be read: {error}") from None


def _zstandard() -> Any:
    if not has_zstd():
        raise InputError(
            "stage zstd needs the package zstandard: pip install 'scaleacross[codec]', or name another stage"
        )
    return import_module("zstandard")


def has_zstd() -> bool:
    """Return whether the package of stage ``zstd`` is installed."""
    return find_spec("zstandard") is not None


def _write_zstd(numbers: Numbers) -> bytes:
    return bytes(_zstandard().ZstdCompressor(level=ZSTD_LEVEL).compress(_as_bytes(numbers)))


def _read_zstd(data: bytes, count: int) -> Numbers:
    library = _zstandard()
    try:
        return _from_bytes(library.ZstdDecompressor().decompress(data, max_output_size=4 * count + 1), count)
    except library.ZstdError as error:
        raise InputError(f"a message of stage zstd cannot be read: {error}") from None


STAGES: Final[Mapping[str, Stage]] = {
    "packed": Stage(_write_packed, _read_packed),
    "rans": Stage(write_rans, read_rans),
    "deflate": Stage(_write_deflate, _read_deflate),
    "zstd": Stage(_write_zstd, _read_zstd),
}


def stages_here() -> tuple[str, ...]:
    """Return the names of the stages that work on this machine."""
    return tuple(name for name in STAGES if name != "zstd" or has_zstd())


def written(numbers: Numbers, stage: str) -> tuple[str, bytes]:
    """Code ``numbers`` by one stage, or by ``packed`` if that stage cannot code them.

    Args:
        stage: a name of ``STAGES``, or ``smallest``, which tries all that work on this machine.

    Returns:
        (the stage that was used, its bytes).

    Raises:
        InputError: the stage's package is missing.
    """
    if stage == "smallest":
        tried = [(name, STAGES[name].write(numbers)) for name in stages_here()]
        return min(((name, data) for name, data in tried if data is not None), key=lambda pair: len(pair[1]))
    data = STAGES[stage].write(numbers)
    return (stage, data) if data is not None else ("packed", _write_packed(numbers))
