"""The quantiser and the bit packing of ``row_codec`` on an accelerator: the same numbers and bytes as there.

Sums and quotients are fp64, as on the host. One H100 has run it (docs/results/one_h100.md); nobody has measured its
speed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from scaleacross.runtime.kernels.launching import NUM_WARPS, check_on_one_device, num_programs

BLOCK = 4096
"""Number of elements of one program."""
GROUPS = 32
"""Number of groups of 32 numbers of one program."""
ROUNDER = tl.constexpr(6755399441055744.0)
"""1.5 · 2^52: added and subtracted, it leaves an fp64 of magnitude below 2^51 rounded to an integer, ties to even."""
LARGEST = tl.constexpr(16777216.0)
"""2^24, ``quantiser.LARGEST_CODE``."""


def quantise_by_kernel(
    values: torch.Tensor, step: float, bound: float, *, block: int = BLOCK
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (codes int32, whether each decodes to more than the bound off, bool), of the shape of fp32 ``values``."""
    check_on_one_device(values)
    codes = torch.empty(values.shape, dtype=torch.int32, device=values.device)
    off = torch.empty(values.shape, dtype=torch.uint8, device=values.device)
    # scalars travel as fp32, these must not
    figures = torch.tensor([step, bound], dtype=torch.float64, device=values.device)
    if values.numel():
        grid = (num_programs(values.numel(), block),)
        quantise_kernel[grid](values, figures, codes, off, values.numel(), BLOCK=block, num_warps=NUM_WARPS)
    return codes, off.bool()


def pack_by_kernel(numbers: torch.Tensor, width: int, *, groups: int = GROUPS) -> torch.Tensor:
    """Return int32 ``numbers``, ``width`` bits each, as int32 words without gaps; 32 numbers take ``width`` words."""
    check_on_one_device(numbers)
    num_groups = -(-numbers.numel() // 32)
    words = torch.empty(num_groups * width, dtype=torch.int32, device=numbers.device)
    if words.numel():
        grid = (num_programs(num_groups, groups),)
        pack_kernel[grid](numbers, words, numbers.numel(), num_groups, width, GROUPS=groups, num_warps=NUM_WARPS)
    return words


def unpack_by_kernel(words: torch.Tensor, width: int, count: int, *, groups: int = GROUPS) -> torch.Tensor:
    """Return the ``count`` numbers, int32, from the words of ``pack_by_kernel``."""
    check_on_one_device(words)
    numbers = torch.zeros(count, dtype=torch.int32, device=words.device)
    if words.numel():
        num_groups = -(-count // 32)
        grid = (num_programs(num_groups, groups),)
        unpack_kernel[grid](words, numbers, count, num_groups, width, GROUPS=groups, num_warps=NUM_WARPS)
    return numbers


@triton.jit
def quantise_kernel(values, figures, codes, off, numel, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store round(x / step), 0 beyond the largest code, and whether fp32(code · step) is off by more than ``bound``."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(values + at, at < numel, 0.0).to(tl.float64)
    step, bound = tl.load(figures), tl.load(figures + 1)
    steps = x / step
    # adding ROUNDER rounds only below 2^51; larger values become 0 below in any case
    near = tl.where(tl.abs(steps) < 2.0 * LARGEST, steps, 0.0)
    whole = (near + ROUNDER) - ROUNDER
    whole = tl.where(tl.abs(whole) <= LARGEST, whole, 0.0)
    image = (whole * step).to(tl.float32).to(tl.float64)
    tl.store(codes + at, whole.to(tl.int32), at < numel)
    tl.store(off + at, (tl.abs(image - x) > bound).to(tl.uint8), at < numel)


@triton.jit
def pack_kernel(numbers, words, count, num_groups, width, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store word k of a group, which holds bits 32·k to 32·k + 31 of its numbers; lane i begins at bit i · width."""
    groups = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    lanes = tl.arange(0, 32)
    at = groups[:, None] * 32 + lanes[None, :]
    own = tl.load(numbers + at, at < count, 0).to(tl.int64)
    for k in range(width):
        ahead = (lanes * width - 32 * k)[None, :].to(tl.int64)
        up = tl.where((ahead >= 0) & (ahead < 32), own << tl.minimum(tl.maximum(ahead, 0), 31), 0)
        down = tl.where((ahead < 0) & (ahead > -32), own >> tl.minimum(tl.maximum(-ahead, 0), 31), 0)
        word = tl.sum((up | down) & 0xFFFFFFFF, 1)
        tl.store(words + groups * width + k, word.to(tl.int32), groups < num_groups)


@triton.jit
def unpack_kernel(words, numbers, count, num_groups, width, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store the numbers, each of which lies in one word or in two."""
    groups = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    bits = tl.arange(0, 32)[None, :] * width
    shift = (bits % 32).to(tl.int64)
    place = groups[:, None] * width + bits // 32
    there = groups[:, None] < num_groups
    low = tl.load(words + place, there, 0).to(tl.int64) & 0xFFFFFFFF
    high = tl.load(words + place + 1, there & (shift + width > 32), 0).to(tl.int64) & 0xFFFFFFFF
    own = ((low >> shift) | (high << (32 - shift))) & ((tl.full((1,), 1, tl.int64) << width) - 1)
    at = groups[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(numbers + at, own.to(tl.int32), at < count)
