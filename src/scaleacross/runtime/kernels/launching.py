"""Checks that all kernels make of their arguments before they are launched."""

from __future__ import annotations

from typing import Final

import torch
import triton

from scaleacross.errors import InputError

NUM_WARPS: Final = 8
MAX_PROGRAMS: Final = 1 << 30


def check_on_one_device(*tensors: torch.Tensor) -> None:
    """Raise InputError unless all tensors are contiguous and lie on one device."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise InputError(f"a kernel reads and writes on one device; got tensors on {sorted(map(str, devices))}")
    for index, tensor in enumerate(tensors):
        if not tensor.is_contiguous():
            raise InputError(f"tensor {index} of shape {tuple(tensor.shape)} is not contiguous: pass .contiguous()")


def num_programs(num_items: int, items_per_program: int) -> int:
    """Return the number of programs that cover ``num_items``. Raises InputError if a grid cannot have as many."""
    programs: int = triton.cdiv(num_items, items_per_program)
    if programs > MAX_PROGRAMS:
        raise InputError(f"{num_items} items in programs of {items_per_program} are more than {MAX_PROGRAMS} programs")
    return programs
