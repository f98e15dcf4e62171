"""Reductions of arriving elements into those that a rank holds.

Narrow floats are summed in fp32, and rounded when they travel and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import torch

Combine: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
"""(held, arriving, out): write the reduction of ``held`` and ``arriving`` to ``out``, which has the type of ``held``
and may be the same tensor. ``arriving`` may have a narrower type."""

COMBINE: Final[Mapping[str, Combine]] = {
    "sum": lambda held, arriving, out: torch.add(held, _added(arriving, held), out=out),
    "avg": lambda held, arriving, out: torch.add(held, _added(arriving, held), out=out),
    "product": lambda held, arriving, out: torch.mul(held, _added(arriving, held), out=out),
    "min": lambda held, arriving, out: torch.minimum(held, _like(arriving, held), out=out),
    "max": lambda held, arriving, out: torch.maximum(held, _like(arriving, held), out=out),
    "band": lambda held, arriving, out: torch.bitwise_and(held, arriving, out=out),
    "bor": lambda held, arriving, out: torch.bitwise_or(held, arriving, out=out),
    "bxor": lambda held, arriving, out: torch.bitwise_xor(held, arriving, out=out),
}
"""Reductions by the lower-case name of ``torch.distributed.ReduceOp``; ``operations`` divides for an average."""

EIGHT_BITS: Final = frozenset({torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz})
"""Types that torch computes with only after they have been widened."""
NARROW: Final = frozenset({torch.bfloat16, torch.float16}) | EIGHT_BITS
INTEGERS: Final = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
WIDE: Final = frozenset({torch.float32, torch.float64})


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which elements of ``dtype`` are reduced."""
    return torch.float32 if dtype in NARROW else dtype


def can_reduce(dtype: torch.dtype, reduction: str) -> bool:
    """Return whether the executor reduces elements of ``dtype`` so. If not, the transport's own collective may."""
    if reduction not in COMBINE:
        return False
    if reduction in ("band", "bor", "bxor"):
        return dtype in INTEGERS
    return dtype in WIDE | NARROW or (dtype in INTEGERS and reduction != "avg")


def _added(arriving: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    return arriving.to(held.dtype) if arriving.dtype in EIGHT_BITS else arriving


def _like(arriving: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    return arriving if arriving.dtype == held.dtype else arriving.to(held.dtype)
