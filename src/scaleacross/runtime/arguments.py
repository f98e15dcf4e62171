"""What torch passes to a process group, in the terms of this package."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

REDUCTIONS: Final = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def reduction_name(op: Any) -> str:
    """Lower-case name of a ``ReduceOp``; ``other`` for those with a factor."""
    return next((name.lower() for name in REDUCTIONS if op == getattr(dist.ReduceOp, name)), "other")


def is_plain(tensor: Tensor, device_types: Collection[str]) -> bool:
    """Dense, and on a device of one of these types."""
    return tensor.device.type in device_types and tensor.layout is torch.strided


def size_bytes(tensor: Tensor) -> int:
    """Bytes of all elements."""
    return tensor.numel() * tensor.element_size()


def timeout_seconds(opts: Any) -> float:
    """Timeout of one call; 0 or less where none was given."""
    timeout = getattr(opts, "timeout", None)
    return max(timeout.total_seconds(), 0.0) if isinstance(timeout, timedelta) else 0.0
