"""Rounding to nearest even in integers, the same on every backend (Triton's interpreter truncates where it casts)."""

from __future__ import annotations

import triton
import triton.language as tl

ROUNDER = tl.constexpr(12582912.0)
"""1.5 · 2^23: added and subtracted, it leaves an fp32 of magnitude below 2^22 rounded to an integer, ties to even."""


@triton.jit
def round_to_integer(x):  # type: ignore[no-untyped-def]
    """Return the integer nearest to an fp32 of magnitude below 2^22, as fp32; ties to even."""
    return (x + ROUNDER) - ROUNDER


@triton.jit
def power_of_two(exponent):  # type: ignore[no-untyped-def]
    """Return 2^exponent as fp32, for an int32 in [-126, 127]."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)
