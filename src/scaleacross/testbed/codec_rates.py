"""Measures how fast a rank's share of a core encodes and decodes gradients. Runs on ranks: needs torch."""

from __future__ import annotations

import statistics
import time
from typing import Final

import torch

from scaleacross.runtime.codecs import CODECS
from scaleacross.runtime.encoding import Encoding

NUM_ELEMENTS: Final = 1 << 20
RUNS: Final = 5


def codec_rates() -> dict[str, float]:
    """Return bytes/s of fp32 values by codec, the median of some runs.

    Encoding and decoding the values once takes 2 · bytes / rate.
    """
    values = torch.randn(NUM_ELEMENTS, generator=torch.Generator().manual_seed(0))
    return {
        name: 2 * values.nbytes / statistics.median(_there_and_back_s(codec, values) for _ in range(RUNS))
        for name, codec in CODECS.items()
    }


def _there_and_back_s(codec: Encoding, values: torch.Tensor) -> float:
    """Return the seconds to encode and to decode into fp32.

    The copy into fp32 counts, because what decodes as a view is converted only when it is added up.
    """
    data, decoded = torch.zeros(codec.most_bytes(values.numel()), dtype=torch.uint8), torch.zeros_like(values)
    began = time.perf_counter()
    decoded.copy_(codec.read(data[: codec.write(values, data)], values.numel()))
    return time.perf_counter() - began
