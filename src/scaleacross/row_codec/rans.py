"""Entropy coding by range asymmetric numeral systems (J. Duda, arXiv 1311.2540), in lanes that advance together.

States have 32 bits and words 16. A lane writes at most one word per number, so every step is a handful of array
operations on all lanes. Frequencies are scaled to 2^15. Step t codes the numbers t · lanes to (t + 1) · lanes − 1. The
encoder goes through the steps backwards, so that the decoder reads forwards.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleacross.errors import InputError

_BITS: Final = 15
_TOTAL: Final = 1 << _BITS
_LOWEST: Final = 1 << 16
_MOST_SYMBOLS: Final = 4096
_MOST_SPAN: Final = 1 << 16
_PER_LANE: Final = 512
"""Numbers per lane: a lane costs 4 bytes for its state, a step some microseconds however many lanes there are."""
_HEAD: Final = struct.Struct("<IH")

Numbers = NDArray[np.uint32]


def write_rans(numbers: Numbers) -> bytes | None:
    """Return the coded bytes of ``numbers``.

    It is None for more than 4,096 distinct numbers or a number of 2^16 or more.
    """
    if not numbers.size:
        return b""
    largest = int(numbers.max())
    if largest >= _MOST_SPAN:
        return None
    counts = np.bincount(numbers)
    present = np.flatnonzero(counts)
    if len(present) > _MOST_SYMBOLS:
        return None
    frequency = _scaled(counts[present])
    place = np.searchsorted(present, numbers)
    start = np.concatenate(([0], np.cumsum(frequency)[:-1])).astype(np.uint64)
    lanes = _lanes(numbers.size)
    words, state = _encoded(place, frequency.astype(np.uint64), start, lanes)
    gaps = np.diff(present, prepend=0).astype("<u2").tobytes()
    table = gaps + frequency.astype("<u2").tobytes()
    return _HEAD.pack(len(words), len(present)) + table + state.astype("<u4").tobytes() + words.astype("<u2").tobytes()


def read_rans(data: bytes, count: int) -> Numbers:
    """Return the ``count`` numbers, uint32. Raises InputError if the bytes are no such message."""
    if not count:
        return np.zeros(0, np.uint32)
    lanes = _lanes(count)
    if len(data) < _HEAD.size:
        raise InputError("a message of stage rans ends before its head")
    num_words, num_symbols = _HEAD.unpack_from(data)
    if not num_symbols or len(data) != _HEAD.size + 4 * num_symbols + 4 * lanes + 2 * num_words:
        raise InputError("a message of stage rans has another length than its head says")
    at = _HEAD.size
    present = np.cumsum(np.frombuffer(data, "<u2", num_symbols, at), dtype=np.uint32)
    frequency = np.frombuffer(data, "<u2", num_symbols, at + 2 * num_symbols).astype(np.uint64)
    state = np.frombuffer(data, "<u4", lanes, at + 4 * num_symbols).astype(np.uint64)
    words = np.frombuffer(data, "<u2", num_words, at + 4 * num_symbols + 4 * lanes).astype(np.uint64)
    if int(frequency.sum()) != _TOTAL:
        raise InputError("the frequencies of a message of stage rans do not add up")
    return present[_decoded(words, state, frequency, count)]


def _lanes(count: int) -> int:
    return -(-count // _PER_LANE)


def _scaled(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return frequencies that sum to 2^15, each at least 1. The largest absorbs the rounding, where it costs least."""
    scaled = np.maximum(1, counts * _TOTAL // int(counts.sum()))
    while excess := int(scaled.sum()) - _TOTAL:
        most = int(scaled.argmax())
        scaled[most] -= min(excess, int(scaled[most]) - 1)
    return scaled


def _encoded(
    place: NDArray[np.int64], frequency: NDArray[np.uint64], start: NDArray[np.uint64], lanes: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    state = np.full(lanes, _LOWEST, np.uint64)
    chunks = []
    for first in reversed(range(0, len(place), lanes)):
        own = place[first : first + lanes]
        x, f = state[: len(own)], frequency[own]
        # a state that would exceed 32 bits writes its low 16 bits first
        full = x >= f << np.uint64(32 - _BITS)
        if full.any():
            chunks.append(x[full] & np.uint64(0xFFFF))
            x = np.where(full, x >> np.uint64(16), x)
        quotient = x // f
        state[: len(own)] = (quotient << np.uint64(_BITS)) + (x - quotient * f) + start[own]
    words = np.concatenate(chunks[::-1]) if chunks else np.zeros(0, np.uint64)
    return words, state


def _decoded(
    words: NDArray[np.uint64], state: NDArray[np.uint64], frequency: NDArray[np.uint64], count: int
) -> NDArray[np.int64]:
    start = np.concatenate((np.zeros(1, np.uint64), np.cumsum(frequency)[:-1]))
    symbol_at = np.repeat(np.arange(len(frequency)), frequency.astype(np.int64))
    out, taken = np.empty(count, np.int64), 0
    for first in range(0, count, len(state)):
        own = min(len(state), count - first)
        x = state[:own]
        slot = x & np.uint64(_TOTAL - 1)
        place = symbol_at[slot]
        out[first : first + own] = place
        x = frequency[place] * (x >> np.uint64(_BITS)) + slot - start[place]
        # the inverse of the encoder's write: a state below 2^16 reads the next word
        low = x < _LOWEST
        wanted = int(np.count_nonzero(low))
        if taken + wanted > len(words):
            raise InputError("a message of stage rans has too few words")
        x[low] = (x[low] << np.uint64(16)) | words[taken : taken + wanted]
        state[:own], taken = x, taken + wanted
    return out
