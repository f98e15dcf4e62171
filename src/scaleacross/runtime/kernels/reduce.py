"""Sum of k buffers in their order, in fp32, scaled and cast in the same pass: every rank that sums them gets equal bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from scaleacross.errors import InputError
from scaleacross.runtime.kernels.launching import NUM_WARPS, check_on_one_device, num_programs
from scaleacross.runtime.kernels.rounding import to_bf16
from scaleacross.runtime.requirement import runs_kernels

BLOCK = 4096
"""Elements of one program on an accelerator: 128-bit accesses of 16-bit types, with threads of NVIDIA or AMD."""


def sum_buffers(buffers: Sequence[torch.Tensor], out: torch.Tensor, scale: float = 1.0) -> None:
    """out = scale · (buffers[0] + buffers[1] + …), summed from left to right in fp32 and rounded once to the type of ``out``.

    Args:
        buffers: one or more tensors of one floating-point type and one shape.
        out: fp32, fp16 or bf16 of the same number of elements; may be one of the buffers.
        scale: 1/k makes an average.

    Raises:
        InputError: shapes, types or devices do not fit.
    """
    _check(buffers, out)
    (launch_sum if runs_kernels(out) else sum_reference)(buffers, out, scale)


def sum_reference(buffers: Sequence[torch.Tensor], out: torch.Tensor, scale: float = 1.0) -> None:
    """The same in torch."""
    total = buffers[0].to(torch.float32, copy=True)
    for buffer in buffers[1:]:
        total.add_(buffer.to(torch.float32))
    out.copy_(total.mul_(torch.tensor(scale, dtype=torch.float32, device=total.device)))


def launch_sum(buffers: Sequence[torch.Tensor], out: torch.Tensor, scale: float = 1.0, *, block: int = BLOCK) -> None:
    """The same by the kernel, ``block`` elements per program."""
    numel = out.numel()
    if numel:
        grid = (num_programs(numel, block),)
        sum_kernel[grid](tuple(buffers), out, scale, numel, len(buffers), block, num_warps=NUM_WARPS)


@triton.jit
def sum_kernel(buffers, out, scale, numel, K: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Buffers come as a tuple of typed pointers: a table of addresses would cost the 128-bit accesses."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < numel
    total = tl.load(buffers[0] + at, inside, 0.0).to(tl.float32)
    for k in tl.static_range(1, K):
        total += tl.load(buffers[k] + at, inside, 0.0).to(tl.float32)
    total *= scale
    if out.dtype.element_ty == tl.bfloat16:
        tl.store(out + at, to_bf16(total), inside)
    else:
        tl.store(out + at, total.to(out.dtype.element_ty), inside)


def _check(buffers: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    if not buffers:
        raise InputError("a sum of no buffers has no value: pass at least one")
    check_on_one_device(*buffers, out)
    for index, buffer in enumerate(buffers):
        if buffer.numel() != out.numel() or buffer.dtype != buffers[0].dtype:
            raise InputError(
                f"buffer {index} has {buffer.numel()} elements of {buffer.dtype}; buffer 0 is of {buffers[0].dtype} "
                f"and out has {out.numel()} elements"
            )
    for dtype in (buffers[0].dtype, out.dtype):
        if dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise InputError(f"kernels sum fp32, fp16 and bf16, not {dtype}")
