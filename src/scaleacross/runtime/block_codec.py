"""Block codecs in torch: the references that the kernels equal bit for bit, which run on a CPU.

Blocks of 256 elements share a scale that is a power of two, 2^e with qmax · 2^(e−1) < max|x| ≤ qmax · 2^e. That loses
up to one bit against a free scale, but it is exact: whatever has been decoded is encoded again without any change,
whatever part of the block is left. So ranks that decode a message may pass it on, and all ranks end with equal bits.
Decoding multiplies by a power of two, which is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scaleacross.runtime.encoding import GRAIN
from scaleacross.runtime.requirement import kernels, runs_kernels

_SMALLEST, _NOT_FINITE = -126, 127
"""Exponents that are stored: 2^-126 is the smallest normal fp32; 127 marks a block that is not finite."""


@dataclass(frozen=True)
class BlockCodec:
    """A codec with an exponent of one byte per block, followed by the elements of one byte or half a byte each.

    Attributes:
        name: name in plans.
        dtype: type of an encoded element, before two of 4 bits share a byte (the even one in the low half).
        largest: largest value that it represents, qmax.
        bits: bits of an encoded element, 8 or 4.
    """

    name: str
    dtype: torch.dtype
    largest: float
    bits: int = 8

    def most_bytes(self, num_elements: int) -> int:
        """Return the bytes of all elements, and one byte for each block that they begin."""
        return -(-num_elements * self.bits // 8) + -(-num_elements // GRAIN)

    def write(self, values: torch.Tensor, out: torch.Tensor) -> int:
        """Encode; ties round to even."""
        if runs_kernels(values):
            kernels("block_codec").encode(self, values.to(torch.float32), out)
            return out.numel()
        blocks = _blocks(values)
        exponents = self._exponents(blocks)
        num_blocks = exponents.numel()
        scaled = torch.ldexp(blocks, -exponents.clamp(max=_NOT_FINITE - 1).to(torch.float32)[:, None])
        if not self.dtype.is_floating_point:
            scaled = scaled.round_()
        coded = scaled.nan_to_num_(0.0, 0.0, 0.0).clamp_(-self.largest, self.largest).to(self.dtype)
        out[:num_blocks].view(torch.int8).copy_(exponents)
        flat = coded.view(-1).view(torch.uint8)
        if self.bits == 4:
            flat = (flat[::2] & 15) | (flat[1::2] << 4)
        out[num_blocks:].copy_(flat[: out.numel() - num_blocks])
        return out.numel()

    def read(self, data: torch.Tensor, num_elements: int) -> torch.Tensor:
        """Decode to fp32."""
        if runs_kernels(data):
            decoded = torch.empty(num_elements, dtype=torch.float32, device=data.device)
            kernels("block_codec").decode(self, data, decoded)
            return decoded
        num_blocks = -(-num_elements // GRAIN)
        exponents = data[:num_blocks].view(torch.int8).to(torch.float32)
        values = _blocks(self._elements(data[num_blocks:], num_elements))
        out = torch.ldexp(values, exponents[:, None])
        out[exponents == _NOT_FINITE] = torch.nan
        return out.view(-1)[:num_elements]

    def bytes_of(self, values: torch.Tensor) -> torch.Tensor | None:
        """Return None: elements never travel unchanged."""
        del values
        return None

    def _elements(self, codes: torch.Tensor, num_elements: int) -> torch.Tensor:
        """Return one entry of ``dtype`` per element."""
        if self.bits == 8:
            return codes.view(self.dtype)
        low, high = (codes << 4).view(torch.int8) >> 4, codes.view(torch.int8) >> 4
        return torch.stack((low, high), 1).view(-1)[:num_elements]

    def _exponents(self, blocks: torch.Tensor) -> torch.Tensor:
        """Return the smallest e with max|x| ≤ largest · 2^e, per block."""
        most = blocks.abs().amax(1)
        fraction, exponents = torch.frexp(most / self.largest)  # fraction · 2^exponent, fraction in [1/2, 1)
        exponents = exponents - (fraction == 0.5).to(exponents.dtype)
        # the quotient above is rounded: add one if largest · 2^e turns out too small
        exponents = exponents + (torch.ldexp(torch.full_like(most, self.largest), exponents.float()) < most)
        exponents = exponents.clamp(_SMALLEST, _NOT_FINITE - 1)
        return torch.where(torch.isfinite(most), exponents, _NOT_FINITE)


def _blocks(values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` as fp32 in rows of ``GRAIN``, the last one padded with zeros."""
    wide = values.to(torch.float32)
    missing = -values.numel() % GRAIN
    return (torch.nn.functional.pad(wide, (0, missing)) if missing else wide.clone()).view(-1, GRAIN)
