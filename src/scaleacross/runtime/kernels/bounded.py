"""Error-bounded quantiser: no element is off by more than the bound, and a block takes as many bits as its elements need.

The step is the largest power of two of at most twice the bound, so q = round(x / step) and q · step are exact in fp32 and
|x − q · step| ≤ step / 2 ≤ bound for every element; what has been unpacked is packed again without any change. Signs go to the
lowest bit (0, −1, 1, −2 → 0, 1, 2, 3), and a block of 256 stores the bits that its largest element needs, plane by plane: word w
of plane b holds bit b of elements 32w to 32w + 31. A block with an element of 2^22 steps or more, or one that is not finite, is
stored as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from scaleacross.errors import InputError
from scaleacross.runtime.encoding import GRAIN
from scaleacross.runtime.kernels.launching import NUM_WARPS, check_on_one_device, num_programs
from scaleacross.runtime.kernels.rounding import power_of_two, round_to_integer
from scaleacross.runtime.requirement import runs_kernels

ROWS = 16
"""Blocks of one program on an accelerator."""
WORD_BITS = 32
WORDS_PER_PLANE = GRAIN // WORD_BITS
_LIMIT = 2.0**22
_RAW = WORD_BITS


@dataclass(frozen=True)
class Packed:
    """What ``pack`` leaves. Blocks lie one behind the other without gaps; only ``num_words`` of the words count.

    Attributes:
        widths: bits per element, uint8 per block; 32 for a block that is stored as it is.
        words: int32, room for the worst case, which is ``GRAIN`` words per block.
        exponent: the step is 2^exponent.
        num_elements: of the tensor that was packed.
    """

    widths: torch.Tensor
    words: torch.Tensor
    exponent: int
    num_elements: int

    @property
    def num_words(self) -> torch.Tensor:
        """Words in use, int64 on the tensors' device, so that asking does not wait for it."""
        return self.widths.sum(dtype=torch.int64) * WORDS_PER_PLANE

    @property
    def num_bytes(self) -> int:
        """Bytes that must travel; waits for the device."""
        return int(self.num_words) * 4 + self.widths.numel()

    def starts(self) -> torch.Tensor:
        """First word of every block, int64."""
        ends = self.widths.to(torch.int64).cumsum(0) * WORDS_PER_PLANE
        return ends - self.widths.to(torch.int64) * WORDS_PER_PLANE


def step_exponent(bound: float) -> int:
    """Exponent of the largest power of two ≤ 2 · bound.

    Raises:
        InputError: the bound is not positive, or its step leaves the range of exact fp32.
    """
    if not (bound > 0 and math.isfinite(bound)):
        raise InputError(f"an error bound must be positive and finite; got {bound}")
    exponent = math.frexp(2 * bound)[1] - 1
    if not -100 <= exponent <= 100:
        raise InputError(f"an error bound must lie between 2^-101 and 2^99; got {bound}")
    return exponent


def pack(values: torch.Tensor, bound: float) -> Packed:
    """Pack fp32 ``values`` so that every element comes back within ``bound``; infinities and NaNs come back as they are."""
    return (pack_by_kernel if runs_kernels(values) else pack_reference)(values, bound)


def unpack(packed: Packed) -> torch.Tensor:
    """fp32 of ``packed.num_elements``."""
    return (unpack_by_kernel if runs_kernels(packed.words) else unpack_reference)(packed)


def pack_reference(values: torch.Tensor, bound: float) -> Packed:
    """``pack`` in torch."""
    packed, blocks = _empty(values, bound), _rows(values)
    scaled = blocks * 2.0**-packed.exponent
    raw = ~(scaled.abs() < _LIMIT).all(1)
    whole = torch.where(raw[:, None], 0.0, scaled).round_().to(torch.int32)
    codes = (whole << 1) ^ (whole >> 31)
    widths = torch.frexp(codes.amax(1).to(torch.float64))[1]  # bits of the largest
    codes = torch.where(raw[:, None], blocks.view(torch.int32), codes)
    packed.widths.copy_(torch.where(raw, _RAW, widths))
    lanes = torch.arange(WORD_BITS, device=values.device)
    tiles, starts = codes.view(-1, WORDS_PER_PLANE, WORD_BITS).to(torch.int64), packed.starts()
    for plane in range(WORD_BITS):
        wanted = packed.widths > plane
        words = (((tiles[wanted] >> plane) & 1) << lanes).sum(2).to(torch.int32)
        packed.words[_places(starts[wanted], plane)] = words
    return packed


def unpack_reference(packed: Packed) -> torch.Tensor:
    """``unpack`` in torch."""
    num_blocks, device = packed.widths.numel(), packed.words.device
    tiles, starts = (
        torch.zeros(num_blocks, WORDS_PER_PLANE, WORD_BITS, dtype=torch.int32, device=device),
        packed.starts(),
    )
    lanes = torch.arange(WORD_BITS, dtype=torch.int32, device=device)
    for plane in range(WORD_BITS):
        wanted = packed.widths > plane
        words = packed.words[_places(starts[wanted], plane)]
        tiles[wanted] |= ((words[:, :, None] >> lanes) & 1) << plane
    codes = tiles.view(num_blocks, GRAIN)
    decoded = (((codes >> 1) & 0x7FFFFFFF) ^ -(codes & 1)).to(torch.float32) * 2.0**packed.exponent
    out = torch.where((packed.widths == _RAW)[:, None], codes.view(torch.float32), decoded)
    return out.view(-1)[: packed.num_elements].clone()


def pack_by_kernel(values: torch.Tensor, bound: float, *, rows: int = ROWS) -> Packed:
    """``pack`` in two passes: bits per block, then words; places in between are summed on the device."""
    check_on_one_device(values)
    packed = _empty(values, bound)
    num_blocks = packed.widths.numel()
    if num_blocks:
        grid = (num_programs(num_blocks, rows),)
        shape = (packed.exponent, packed.num_elements, num_blocks, rows, GRAIN)
        widths_kernel[grid](values, packed.widths, *shape, num_warps=NUM_WARPS)
        pack_kernel[grid](values, packed.widths, packed.starts(), packed.words, *shape, num_warps=NUM_WARPS)
    return packed


def unpack_by_kernel(packed: Packed, *, rows: int = ROWS) -> torch.Tensor:
    """``unpack`` in one pass."""
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
    """x, x / step, and which blocks are stored as they are."""
    at = blocks[:, None] * GRAIN + tl.arange(0, GRAIN)[None, :]
    x = tl.load(values + at, at < numel, 0.0)
    scaled = x * power_of_two(-exponent)
    raw = tl.max(scaled.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1) >= 0x4A800000  # 2^22, infinity or NaN
    return x, scaled, raw


@triton.jit
def _codes(scaled, raw):  # type: ignore[no-untyped-def]
    """Whole numbers of steps with the sign in the lowest bit; 0 where the block is stored as it is."""
    whole = round_to_integer(tl.where(raw[:, None], 0.0, scaled)).to(tl.int32)
    return (whole << 1) ^ (whole >> 31)


@triton.jit
def widths_kernel(values, widths, exponent, numel, num_blocks, ROWS: tl.constexpr, GRAIN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bits that the largest element of each block needs: codes are below 2^24, so fp32 holds them and their exponent tells."""
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
    """Plane after plane: 32 elements give one word."""
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
    """The inverse of ``pack_kernel``."""
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


def _empty(values: torch.Tensor, bound: float) -> Packed:
    """Room for the worst case."""
    if values.dtype != torch.float32:
        raise InputError(f"the error-bounded quantiser takes fp32, not {values.dtype}")
    numel, device = values.numel(), values.device
    num_blocks = -(-numel // GRAIN)
    widths = torch.zeros(num_blocks, dtype=torch.uint8, device=device)
    words = torch.zeros(num_blocks * GRAIN, dtype=torch.int32, device=device)
    return Packed(widths, words, step_exponent(bound), numel)


def _rows(values: torch.Tensor) -> torch.Tensor:
    """In rows of ``GRAIN``, the last one filled up with zeros."""
    return torch.nn.functional.pad(values.reshape(-1), (0, -values.numel() % GRAIN)).view(-1, GRAIN)


def _places(starts: torch.Tensor, plane: int) -> torch.Tensor:
    """Words of one plane of the blocks that begin at ``starts``, (blocks, words)."""
    return starts[:, None] + plane * WORDS_PER_PLANE + torch.arange(WORDS_PER_PLANE, device=starts.device)
