"""All-reduce over memory that every rank of a domain can address: one shot for small tensors, two for large.

One shot: a rank reads every buffer, (W−1)·S bytes. Two shots: it sums its part and reads the others' sums, 2·(W−1)/W·S bytes.
Both sum from rank 0 upwards in fp32 and round once, so all ranks get equal bits, whichever of the two ran.

Ranks meet block by block: a rank adds 1 to its slot in every peer's pad (release) and reads its own pad (acquire) until all
slots have reached the epoch. Epochs only grow, are 64 bits wide and live on the device, so a captured graph can be replayed.
No wait is endless: after ``limit`` looks the missing peer's bit is set in an error word, all later waits end at once, and
``SymmetricMemory.check`` names the peer. The result of such a call is not to be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from scaleacross.errors import InputError
from scaleacross.runtime.faults import CollectiveTimeoutError
from scaleacross.runtime.kernels.launching import NUM_WARPS
from scaleacross.runtime.kernels.rounding import to_bf16

BLOCK: Final = 4096
"""Elements that a program sums at a time."""
LIMIT: Final = 100_000_000
"""Looks at a slot before its peer counts as missing: minutes on an accelerator."""
MAX_WORLD: Final = 63
"""Peers that the error word has bits for."""
_TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class SymmetricMemory:
    """One rank's view of a group's memory; all tensors lie on the device of the kernels.

    Attributes:
        rank: of this process in the group.
        buffers: int64 (world_size,), addresses of every rank's buffer, each a multiple of 16.
        pads: int64 (world_size,), addresses of every rank's pad: int64 (num_blocks, world_size), first equal to
            ``epochs``.
        epochs: int64 (num_blocks,), times that each block has met its peers.
        error: int64 (1,), a bit per missing peer.
        num_bytes: of one buffer.
    """

    rank: int
    buffers: torch.Tensor
    pads: torch.Tensor
    epochs: torch.Tensor
    error: torch.Tensor
    num_bytes: int

    @property
    def world_size(self) -> int:
        """Ranks of the group."""
        return self.buffers.numel()

    def check(self) -> None:
        """Wait for the device; raise CollectiveTimeoutError if a peer was missing: the memory is then of no more use."""
        word = int(self.error)
        missing = [rank for rank in range(self.world_size) if word >> rank & 1]
        if missing:
            raise CollectiveTimeoutError(
                f"rank {self.rank} of {self.world_size} waited in vain for rank {', '.join(map(str, missing))}: "
                "find out why it did not join, and make the group anew"
            )


def one_shot_all_reduce(memory: SymmetricMemory, out: torch.Tensor, *, block: int = BLOCK, limit: int = LIMIT) -> None:
    """out = sum over ranks of the first ``out.numel()`` elements of their buffers, which stay as they are.

    Raises:
        InputError: type or size does not fit the buffers.
    """
    _check(memory, out)
    one_shot_kernel[(memory.epochs.numel(),)](
        *_arguments(memory), out, out.numel(), limit, memory.world_size, block, num_warps=NUM_WARPS
    )


def two_shot_all_reduce(memory: SymmetricMemory, out: torch.Tensor, *, block: int = BLOCK, limit: int = LIMIT) -> None:
    """The same; the rank's own part of its buffer is overwritten with the sum.

    Raises:
        InputError: type or size does not fit the buffers.
    """
    _check(memory, out)
    share = -(-out.numel() // (16 * memory.world_size)) * 16
    two_shot_kernel[(memory.epochs.numel(),)](
        *_arguments(memory), out, out.numel(), share, limit, memory.world_size, block, num_warps=NUM_WARPS
    )


def all_reduce_reference(buffers: list[torch.Tensor], out: torch.Tensor) -> None:
    """What both leave in ``out`` on every rank, from all ranks' buffers."""
    total = torch.zeros_like(out, dtype=torch.float32)
    for buffer in buffers:
        total += buffer[: out.numel()].to(torch.float32)
    out.copy_(total)


@triton.jit
def meet(pads, error, rank, epoch, limit, WORLD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Tell all peers that this block is at ``epoch`` and wait until they are."""
    block = tl.program_id(0)
    tl.debug_barrier()  # what the other threads wrote comes before the release
    for peer in tl.static_range(WORLD):
        theirs = tl.load(pads + peer).to(tl.pointer_type(tl.int64))
        tl.atomic_add(theirs + block * WORLD + rank, 1, sem="release", scope="sys")
    mine = tl.load(pads + rank).to(tl.pointer_type(tl.int64)) + block * WORLD
    for peer in tl.static_range(WORLD):
        looks = tl.where(tl.atomic_add(error, 0, sem="relaxed", scope="gpu") == 0, limit, 0).to(tl.int64)
        seen = tl.atomic_add(mine + peer, 0, sem="acquire", scope="sys")
        while (seen < epoch) & (looks > 0):
            seen = tl.atomic_add(mine + peer, 0, sem="acquire", scope="sys")
            looks -= 1
        if (seen < epoch) & (tl.atomic_add(error, 0, sem="relaxed", scope="gpu") == 0):
            tl.atomic_or(error, tl.full((), 1, tl.int64) << peer, sem="relaxed", scope="gpu")
    tl.debug_barrier()


@triton.jit
def _buffer(buffers, rank, out):  # type: ignore[no-untyped-def]
    """A rank's buffer, of the type of ``out``; without the hint every access would be 16 bits wide."""
    return tl.multiple_of(tl.load(buffers + rank).to(tl.pointer_type(out.dtype.element_ty)), 16)


@triton.jit
def _sum(buffers, at, inside, out, WORLD: tl.constexpr):  # type: ignore[no-untyped-def]
    """From rank 0 upwards in fp32, in the type of ``out``."""
    total = tl.zeros(at.shape, tl.float32)
    for peer in tl.static_range(WORLD):
        total += tl.load(_buffer(buffers, peer, out) + at, inside, 0.0).to(tl.float32)
    return to_bf16(total) if out.dtype.element_ty == tl.bfloat16 else total.to(out.dtype.element_ty)


@triton.jit
def one_shot_kernel(  # type: ignore[no-untyped-def]
    buffers, pads, epochs, error, rank, out, numel, limit, WORLD: tl.constexpr, BLOCK: tl.constexpr
):
    """Block k of a rank works on the same elements as block k of every other."""
    block = tl.program_id(0)
    epoch = tl.load(epochs + block)
    meet(pads, error, rank, epoch + 1, limit, WORLD)
    for start in range(block * BLOCK, numel, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(out + at, _sum(buffers, at, at < numel, out, WORLD), at < numel)
    meet(pads, error, rank, epoch + 2, limit, WORLD)
    tl.store(epochs + block, epoch + 2)


@triton.jit
def two_shot_kernel(  # type: ignore[no-untyped-def]
    buffers, pads, epochs, error, rank, out, numel, share, limit, WORLD: tl.constexpr, BLOCK: tl.constexpr
):
    """Only rank r reads part r of the buffers before the sums are there, so rank r may write its sum into its own buffer."""
    block = tl.program_id(0)
    stride = tl.num_programs(0) * BLOCK
    epoch = tl.load(epochs + block)
    meet(pads, error, rank, epoch + 1, limit, WORLD)
    for start in range(block * BLOCK, share, stride):
        inner = start + tl.arange(0, BLOCK)
        at = rank * share + inner
        inside = (inner < share) & (at < numel)
        tl.store(_buffer(buffers, rank, out) + at, _sum(buffers, at, inside, out, WORLD), inside)
    meet(pads, error, rank, epoch + 2, limit, WORLD)
    for start in range(block * BLOCK, share, stride):
        inner = start + tl.arange(0, BLOCK)
        for peer in tl.static_range(WORLD):
            at = peer * share + inner
            inside = (inner < share) & (at < numel)
            tl.store(out + at, tl.load(_buffer(buffers, peer, out) + at, inside), inside)
    meet(pads, error, rank, epoch + 3, limit, WORLD)
    tl.store(epochs + block, epoch + 3)


def _arguments(memory: SymmetricMemory) -> tuple[torch.Tensor | int, ...]:
    return memory.buffers, memory.pads, memory.epochs, memory.error, memory.rank


def _check(memory: SymmetricMemory, out: torch.Tensor) -> None:
    if out.dtype not in _TYPES or not out.is_contiguous():
        raise InputError(f"symmetric all-reduce takes contiguous fp32, fp16 and bf16; got {out.dtype}")
    if out.nbytes > memory.num_bytes:
        raise InputError(f"{out.nbytes} bytes do not fit into symmetric buffers of {memory.num_bytes}")
    if memory.world_size > MAX_WORLD:
        raise InputError(f"{memory.world_size} ranks are more than the {MAX_WORLD} that one error word can name")
