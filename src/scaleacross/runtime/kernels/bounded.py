"""The error-bounded quantiser of ``runtime.bounded_codec`` on an accelerator: the same words as the reference there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from scaleacross.runtime.bounded_codec import Packed, room_for
from scaleacross.runtime.encoding import GRAIN
from scaleacross.runtime.kernels.launching import NUM_WARPS, check_on_one_device, num_programs
from scaleacross.runtime.kernels.rounding import power_of_two, round_to_integer

ROWS = 16
"""Number of blocks of one program on an accelerator."""


def pack_by_kernel(values: torch.Tensor, bound: float, *, rows: int = ROWS) -> Packed:
    """Compute ``pack`` in two passes: bits per block, then words. In between the device computes where blocks begin."""
    check_on_one_device(values)
    packed = room_for(values, bound)
    num_blocks = packed.widths.numel()
    if num_blocks:
        grid = (num_programs(num_blocks, rows),)
        shape = (packed.exponent, packed.num_elements, num_blocks, rows, GRAIN)
        widths_kernel[grid](values, packed.widths, *shape, num_warps=NUM_WARPS)
        pack_kernel[grid](values, packed.widths, packed.starts(), packed.words, *shape, num_warps=NUM_WARPS)
    return packed


def unpack_by_kernel(packed: Packed, *, rows: int = ROWS) -> torch.Tensor:
    """Compute ``unpack`` in one pass."""
    out = torch.empty(packed.num_elements, dtype=torch.float32, device=packed.words.device)
    num_blocks = packed.widths.numel()
    if num_blocks:
        shape = (packed.exponent, packed.num_elements, num_blocks, rows, GRAIN)
        unpack_kernel[(num_programs(num_blocks, rows),)](
            packed.words, packed.widths, packed.starts(), out, *shape, num_warps=NUM_WARPS
        )
    return out


@triton.jit
def _scaled(values, exponent, numel, blocks, GRAIN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return (x, x / step, which blocks are stored unchanged)."""
    at = blocks[:, None] * GRAIN + tl.arange(0, GRAIN)[None, :]
    x = tl.load(values + at, at < numel, 0.0)
    scaled = x * power_of_two(-exponent)
    raw = tl.max(scaled.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1) >= 0x4A800000  # 2^22, infinity or NaN
    return x, scaled, raw


@triton.jit
def _codes(scaled, raw):  # type: ignore[no-untyped-def]
    """Return whole numbers of steps with the sign in the lowest bit; 0 in a block that is stored unchanged."""
    whole = round_to_integer(tl.where(raw[:, None], 0.0, scaled)).to(tl.int32)
    return (whole << 1) ^ (whole >> 31)


@triton.jit
def widths_kernel(values, widths, exponent, numel, num_blocks, ROWS: tl.constexpr, GRAIN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store the bits of each block's largest code. Codes are below 2^24, so fp32 holds them and its exponent tells."""
    blocks = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    _, scaled, raw = _scaled(values, exponent, numel, blocks, GRAIN)
    most = tl.max(_codes(scaled, raw), 1)
    bits = (most.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
    width = tl.where(raw, 32, tl.where(most == 0, 0, bits))
    tl.store(widths + blocks, width.to(tl.uint8), blocks < num_blocks)


@triton.jit
def pack_kernel(  # type: ignore[no-untyped-def]
    values, widths, starts, words, exponent, numel, num_blocks, ROWS: tl.constexpr, GRAIN: tl.constexpr
):
    """Store the blocks plane after plane: 32 elements give one word."""
    PER_PLANE: tl.constexpr = GRAIN // 32
    blocks = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    x, scaled, raw = _scaled(values, exponent, numel, blocks, GRAIN)
    codes = tl.where(raw[:, None], x.to(tl.int32, bitcast=True), _codes(scaled, raw))
    tiles = tl.reshape(codes, (ROWS, PER_PLANE, 32))
    lanes = tl.arange(0, 32)[None, None, :]
    width = tl.load(widths + blocks, blocks < num_blocks, 0).to(tl.int32)
    start = tl.load(starts + blocks, blocks < num_blocks, 0)
    for plane in range(tl.max(width, 0)):
        plane_words = tl.sum(((tiles >> plane) & 1) << lanes, 2)
        at = start[:, None] + plane * PER_PLANE + tl.arange(0, PER_PLANE)[None, :]
        tl.store(words + at, plane_words, (width > plane)[:, None])


@triton.jit
def unpack_kernel(  # type: ignore[no-untyped-def]
    words, widths, starts, out, exponent, numel, num_blocks, ROWS: tl.constexpr, GRAIN: tl.constexpr
):
    """Compute the inverse of ``pack_kernel``."""
    PER_PLANE: tl.constexpr = GRAIN // 32
    blocks = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, 32)[None, None, :]
    width = tl.load(widths + blocks, blocks < num_blocks, 0).to(tl.int32)
    start = tl.load(starts + blocks, blocks < num_blocks, 0)
    tiles = tl.zeros((ROWS, PER_PLANE, 32), tl.int32)
    for plane in range(tl.max(width, 0)):
        at = start[:, None] + plane * PER_PLANE + tl.arange(0, PER_PLANE)[None, :]
        plane_words = tl.load(words + at, (width > plane)[:, None], 0)
        tiles |= ((plane_words[:, :, None] >> lanes) & 1) << plane
    codes = tl.reshape(tiles, (ROWS, GRAIN))
    whole = ((codes >> 1) & 0x7FFFFFFF) ^ (-(codes & 1))
    decoded = whole.to(tl.float32) * power_of_two(exponent)
    x = tl.where((width == 32)[:, None], codes.to(tl.float32, bitcast=True), decoded)
    at = blocks[:, None] * GRAIN + tl.arange(0, GRAIN)[None, :]
    tl.store(out + at, x, at < numel)
