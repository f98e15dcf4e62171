"""Compression of what crosses a slow level: fewer bytes on the link, time on the accelerator.

Encoding, the link and decoding work on different chunks at the same time, so the slowest of the three sets the pace, and the
first chunk pays for all three.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class CodecRates(NamedTuple):
    """A codec as the link sees it.

    Attributes:
        ratio: bytes before over bytes after, ≥ 1.
        encode_bytes_per_s, decode_bytes_per_s: of the uncompressed tensor.
    """

    ratio: float
    encode_bytes_per_s: float
    decode_bytes_per_s: float


def compressed_send_s(
    size_bytes: ArrayLike, link_bytes_per_s: ArrayLike, latency_s: ArrayLike, codec: CodecRates, num_chunks: ArrayLike
) -> Floats:
    """Seconds to encode, send and decode ``size_bytes`` in ``num_chunks`` chunks."""
    size = np.asarray(size_bytes, dtype=np.float64)
    parts = np.stack(
        np.broadcast_arrays(
            size / codec.encode_bytes_per_s,
            size / codec.ratio / np.asarray(link_bytes_per_s),
            size / codec.decode_bytes_per_s,
        )
    )
    slowest, chunks = parts.max(axis=0), np.asarray(num_chunks)
    return np.asarray(np.asarray(latency_s) + (parts.sum(axis=0) + (chunks - 1) * slowest) / chunks)


def pays(
    size_bytes: ArrayLike, link_bytes_per_s: ArrayLike, latency_s: ArrayLike, codec: CodecRates, num_chunks: ArrayLike
) -> NDArray[np.bool_]:
    """Whether ``compressed_send_s`` is less than sending as it is."""
    plain = np.asarray(latency_s) + np.asarray(size_bytes) / np.asarray(link_bytes_per_s)
    return np.asarray(compressed_send_s(size_bytes, link_bytes_per_s, latency_s, codec, num_chunks) < plain)
