"""The codecs of ``runtime.block_codec`` on an accelerator: the reference's bytes, in one pass over memory.

The scale is a power of two found in the bits of the largest element. Both roundings (to integers, to e4m3) add and
subtract a constant. So nothing depends on how a device casts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from scaleacross.errors import InputError
from scaleacross.runtime.encoding import GRAIN
from scaleacross.runtime.kernels.launching import NUM_WARPS, check_on_one_device, num_programs
from scaleacross.runtime.kernels.rounding import power_of_two, round_to_integer

if TYPE_CHECKING:
    from scaleacross.runtime.block_codec import BlockCodec

ROWS = 16
"""Number of blocks of one program on an accelerator."""
_SMALLEST = tl.constexpr(-126)
_NOT_FINITE = tl.constexpr(127)
_INFINITE_BITS = tl.constexpr(0x7F800000)


def encode(codec: BlockCodec, values: torch.Tensor, out: torch.Tensor, *, rows: int = ROWS) -> None:
    """Encode ``values`` (fp32) into ``out`` (uint8 of ``codec.most_bytes``), as ``codec.write`` does in torch."""
    check_on_one_device(values, out)
    numel = values.numel()
    _check_bytes(codec, out, numel)
    if numel:
        num_blocks = -(-numel // GRAIN)
        encode_kernel[(num_programs(num_blocks, rows),)](
            values, out, out[num_blocks:], numel, *_constants(codec), rows, GRAIN, num_warps=NUM_WARPS
        )


def decode(codec: BlockCodec, data: torch.Tensor, out: torch.Tensor, *, rows: int = ROWS) -> None:
    """Decode ``data`` (uint8) into ``out`` (fp32), as ``codec.read`` does in torch."""
    check_on_one_device(data, out)
    numel = out.numel()
    _check_bytes(codec, data, numel)
    if numel:
        num_blocks = -(-numel // GRAIN)
        decode_kernel[(num_programs(num_blocks, rows),)](
            data, data[num_blocks:], out, numel, *_constants(codec)[3:], rows, GRAIN, num_warps=NUM_WARPS
        )


@triton.jit
def _coded_integer(scaled, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the bits of the int8 or int4 nearest to ``scaled``, |scaled| ≤ 127 or 7."""
    LARGEST: tl.constexpr = 2.0 ** (BITS - 1) - 1.0
    whole = tl.minimum(tl.maximum(round_to_integer(scaled), -LARGEST), LARGEST)
    return whole.to(tl.int32) & (2**BITS - 1)


@triton.jit
def _coded_e4m3(scaled):  # type: ignore[no-untyped-def]
    """Return the bits of the e4m3 nearest to ``scaled``, |scaled| ≤ 448.

    The grid of e4m3 around x has the step of the last place of x, at least 2^-9.
    """
    bits = scaled.to(tl.int32, bitcast=True)
    magnitude = (bits & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    exponent = tl.maximum(((bits >> 23) & 0xFF) - 127, -6)
    rounder = 12582912.0 * power_of_two(exponent - 3)
    rounded = tl.minimum((magnitude + rounder) - rounder, 448.0)
    rounded_bits = rounded.to(tl.int32, bitcast=True)
    # the exponent bias changes from 127 in fp32 to 7 in e4m3
    normal = (((rounded_bits >> 23) - 120) << 3) | ((rounded_bits >> 20) & 7)
    # below 2^-6 e4m3 is subnormal, with steps of 2^-9
    code = tl.where(rounded < 0.015625, (rounded * 512.0).to(tl.int32), normal)
    return code | ((bits >> 24) & 0x80)


@triton.jit
def _encoded(  # type: ignore[no-untyped-def]
    x,
    MANTISSA: tl.constexpr,
    EXPONENT: tl.constexpr,
    VANISHING: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    BITS: tl.constexpr,
):
    """Encode fp32 (rows, GRAIN) to int32 (exponents (rows,), codes (rows, GRAIN)); constants: see ``_constants``."""
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    most = tl.max(bits, 1)
    exponents = (most >> 23) - 127 - EXPONENT + ((most & 0x7FFFFF) > MANTISSA).to(tl.int32)
    exponents = tl.where(most <= VANISHING, 0, tl.maximum(exponents, _SMALLEST))
    exponents = tl.where(most >= _INFINITE_BITS, _NOT_FINITE, exponents)
    finite = tl.where(bits >= _INFINITE_BITS, 0.0, x)
    scaled = finite * power_of_two(-tl.minimum(exponents, 126))[:, None]
    return exponents, _coded_e4m3(scaled) if IS_FLOAT else _coded_integer(scaled, BITS)


@triton.jit
def _decoded(exponents, wide, IS_FLOAT: tl.constexpr, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Decode int8 exponents (rows,) and int32 codes (rows, GRAIN) to fp32."""
    exponents = exponents.to(tl.int8, bitcast=True).to(tl.int32)
    if IS_FLOAT:
        normal = (((((wide >> 3) & 15) + 120) << 23) | ((wide & 7) << 20)).to(tl.float32, bitcast=True)
        magnitude = tl.where((wide & 0x78) == 0, (wide & 7).to(tl.float32) * 0.001953125, normal)
        signed = magnitude.to(tl.int32, bitcast=True) | ((wide & 0x80) << 24)
        values = tl.where((wide & 0x7F) == 0x7F, 0x7FC00000, signed).to(tl.float32, bitcast=True)
    else:
        values = ((wide << (32 - BITS)) >> (32 - BITS)).to(tl.float32)
    out = values * power_of_two(tl.minimum(exponents, 126))[:, None]
    nan = tl.full(out.shape, 0x7FC00000, tl.int32).to(tl.float32, bitcast=True)
    return tl.where((exponents == _NOT_FINITE)[:, None], nan, out)


@triton.jit
def _places(numel, ROWS: tl.constexpr, GRAIN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return (blocks of this program, which of them exist, elements, which of them exist)."""
    blocks = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = blocks[:, None] * GRAIN + tl.arange(0, GRAIN)[None, :]
    return blocks, blocks * GRAIN < numel, at, at < numel


@triton.jit
def _bytes_at(blocks, numel, GRAIN: tl.constexpr, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return (bytes of the codes of ``blocks``, which of them exist). A byte holds one element, or two of 4 bits."""
    PER_BYTE: tl.constexpr = 8 // BITS
    at = blocks[:, None] * (GRAIN // PER_BYTE) + tl.arange(0, GRAIN // PER_BYTE)[None, :]
    return at, at * PER_BYTE < numel


@triton.jit
def _load_decoded(  # type: ignore[no-untyped-def]
    exponents_in, codes_in, numel, IS_FLOAT: tl.constexpr, BITS: tl.constexpr, ROWS: tl.constexpr, GRAIN: tl.constexpr
):
    """Return the blocks of this program as fp32, (ROWS, GRAIN)."""
    blocks, is_block, _, _ = _places(numel, ROWS, GRAIN)
    at, inside = _bytes_at(blocks, numel, GRAIN, BITS)
    exponents = tl.load(exponents_in + blocks, is_block, 0)
    codes = tl.load(codes_in + at, inside, 0).to(tl.int32)
    if BITS == 4:
        halves = (codes[:, :, None] >> (4 * tl.arange(0, 2))[None, None, :]) & 15
        codes = tl.reshape(halves, (ROWS, GRAIN))
    return _decoded(exponents, codes, IS_FLOAT, BITS)


@triton.jit
def _store_encoded(  # type: ignore[no-untyped-def]
    x,
    exponents_out,
    codes_out,
    numel,
    MANTISSA: tl.constexpr,
    EXPONENT: tl.constexpr,
    VANISHING: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """Encode (ROWS, GRAIN) fp32 to the blocks of this program."""
    blocks, is_block, _, _ = _places(numel, ROWS, GRAIN)
    at, inside = _bytes_at(blocks, numel, GRAIN, BITS)
    exponents, codes = _encoded(x, MANTISSA, EXPONENT, VANISHING, IS_FLOAT, BITS)
    if BITS == 4:
        halves = tl.reshape(codes, (ROWS, GRAIN // 2, 2))
        codes = tl.sum(halves << (4 * tl.arange(0, 2))[None, None, :], 2)
    tl.store(exponents_out + blocks, (exponents & 0xFF).to(tl.uint8), is_block)
    tl.store(codes_out + at, codes.to(tl.uint8), inside)


@triton.jit
def encode_kernel(  # type: ignore[no-untyped-def]
    values,
    exponents_out,
    codes_out,
    numel,
    MANTISSA: tl.constexpr,
    EXPONENT: tl.constexpr,
    VANISHING: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """Encode ROWS blocks per program."""
    _, _, at, inside = _places(numel, ROWS, GRAIN)
    x = tl.load(values + at, inside, 0.0).to(tl.float32)
    _store_encoded(x, exponents_out, codes_out, numel, MANTISSA, EXPONENT, VANISHING, IS_FLOAT, BITS, ROWS, GRAIN)


@triton.jit
def decode_kernel(  # type: ignore[no-untyped-def]
    exponents_in,
    codes_in,
    out,
    numel,
    IS_FLOAT: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """Decode ROWS blocks per program."""
    _, _, at, inside = _places(numel, ROWS, GRAIN)
    tl.store(out + at, _load_decoded(exponents_in, codes_in, numel, IS_FLOAT, BITS, ROWS, GRAIN), inside)


def _constants(codec: BlockCodec) -> tuple[int, int, int, bool, int]:
    """Return (mantissa bits and exponent of the largest code, vanishing bits, whether codes are floats, code bits).

    A block whose largest magnitude has at most the vanishing bits is so small that magnitude / largest is 0 in fp32.
    """
    fraction, exponent = math.frexp(codec.largest)
    mantissa, vanishing = int((2 * fraction - 1) * (1 << 23)), int(codec.largest // 2)
    return mantissa, exponent - 1, vanishing, codec.dtype.is_floating_point, codec.bits


def _check_bytes(codec: BlockCodec, data: torch.Tensor, numel: int) -> None:
    if data.dtype != torch.uint8 or data.numel() != codec.most_bytes(numel):
        raise InputError(
            f"{codec.name} of {numel} elements takes {codec.most_bytes(numel)} bytes of uint8; "
            f"got {data.numel()} of {data.dtype}"
        )
