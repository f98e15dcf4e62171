"""Codecs for what crosses a thin level: references in torch, which a kernel must equal bit for bit.

Blocks of 256 elements share a scale that is a power of two, 2^e with qmax · 2^(e−1) < max|x| ≤ qmax · 2^e. That costs up to
one bit against a free scale and buys exactness: what has been decoded is encoded again without any change, whatever part of the
block is left, so a message may be passed on by ranks that decode it, and all ranks end with equal bits. Decoding multiplies by a
power of two, which is exact.

=============  ======================  =====================================================
codec          bytes per element       error of an element, m = largest of its block
=============  ======================  =====================================================
``bf16``       2                       2^-8 · |x|
``fp8_block``  1 + 1/256               2^-4 · |x| + m · 2^-17
``int8_block`` 1 + 1/256               m / 127
=============  ======================  =====================================================

A block with an element that is not finite decodes to NaN. Errors of partial sums add up over the crossings of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Final

import torch

from scaleacross.runtime.encoding import GRAIN, Encoding, Plain
from scaleacross.runtime.requirement import runs_kernels

_SMALLEST, _NOT_FINITE = -126, 127
"""exponents that are stored: 2^-126 is the smallest normal fp32; 127 marks a block that is not finite"""


@dataclass(frozen=True)
class BlockCodec:
    """Elements of one byte and an exponent per block: first the exponents, then the elements.

    Attributes:
        name: as plans call it.
        dtype: of an encoded element.
        largest: the largest value that it holds, qmax.
    """

    name: str
    dtype: torch.dtype
    largest: float

    def num_bytes(self, num_elements: int) -> int:
        """One byte per element and one per begun block."""
        return num_elements + -(-num_elements // GRAIN)

    def num_elements(self, num_bytes: int) -> int:
        """The inverse."""
        return num_bytes - -(-num_bytes // (GRAIN + 1))

    def write(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """Encode; ties round to even."""
        if runs_kernels(values):
            block_codec_kernels().encode(self, values.to(torch.float32), out)
            return
        blocks = _blocks(values)
        exponents = self._exponents(blocks)
        num_blocks = exponents.numel()
        scaled = torch.ldexp(blocks, -exponents.clamp(max=_NOT_FINITE - 1).to(torch.float32)[:, None])
        if not self.dtype.is_floating_point:
            scaled = scaled.round_()
        coded = scaled.nan_to_num_(0.0, 0.0, 0.0).clamp_(-self.largest, self.largest).to(self.dtype)
        out[:num_blocks].view(torch.int8).copy_(exponents)
        out[num_blocks:].copy_(coded.view(-1)[: values.numel()].view(torch.uint8))

    def read(self, data: torch.Tensor, num_elements: int) -> torch.Tensor:
        """Decode to fp32."""
        if runs_kernels(data):
            decoded = torch.empty(num_elements, dtype=torch.float32, device=data.device)
            block_codec_kernels().decode(self, data, decoded)
            return decoded
        num_blocks = -(-num_elements // GRAIN)
        exponents = data[:num_blocks].view(torch.int8).to(torch.float32)
        values = _blocks(data[num_blocks:].view(self.dtype))
        out = torch.ldexp(values, exponents[:, None])
        out[exponents == _NOT_FINITE] = torch.nan
        return out.view(-1)[:num_elements]

    def bytes_of(self, values: torch.Tensor) -> torch.Tensor | None:
        """Never as they are."""
        del values
        return None

    def _exponents(self, blocks: torch.Tensor) -> torch.Tensor:
        """Smallest e with max|x| ≤ largest · 2^e, per block."""
        most = blocks.abs().amax(1)
        fraction, exponents = torch.frexp(most / self.largest)  # fraction · 2^exponent, fraction in [1/2, 1)
        exponents = exponents - (fraction == 0.5).to(exponents.dtype)
        exponents = exponents + (torch.ldexp(torch.full_like(most, self.largest), exponents.float()) < most)
        exponents = exponents.clamp(_SMALLEST, _NOT_FINITE - 1)
        return torch.where(torch.isfinite(most), exponents, _NOT_FINITE)


CODECS: Final[Mapping[str, Encoding]] = {
    "bf16": Plain(torch.bfloat16, "bf16"),
    "fp8_block": BlockCodec("fp8_block", torch.float8_e4m3fn, 448.0),
    "int8_block": BlockCodec("int8_block", torch.int8, 127.0),
}
"""Codecs by the name that a plan gives them."""


def settling(codec: Encoding) -> Callable[[torch.Tensor], None]:
    """Rounds fp32 values in place to what ``codec`` carries."""

    def settle(values: torch.Tensor) -> None:
        data = torch.empty(codec.num_bytes(values.numel()), dtype=torch.uint8, device=values.device)
        codec.write(values, data)
        values.copy_(codec.read(data, values.numel()))

    return settle


def block_codec_kernels() -> ModuleType:
    """The kernels of these codecs, which are imported where they are used because they need triton."""
    return import_module("scaleacross.runtime.kernels.block_codec")


def _blocks(values: torch.Tensor) -> torch.Tensor:
    """As fp32 in rows of ``GRAIN``, the last one filled up with zeros."""
    wide = values.to(torch.float32)
    missing = -values.numel() % GRAIN
    return (torch.nn.functional.pad(wide, (0, missing)) if missing else wide.clone()).view(-1, GRAIN)
