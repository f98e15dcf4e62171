"""What the processes of ``test_kernel_symmetric.py`` run: buffers and pads in files that all of them map."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

from interpreted import same_bits  # sets the interpreter, so it stands first

import torch  # isort: skip

from scaleacross.runtime.faults import CollectiveTimeoutError
from scaleacross.runtime.kernels.put_rows import put_rows, received
from scaleacross.runtime.kernels.symmetric import (
    SymmetricMemory,
    all_reduce_reference,
    one_shot_all_reduce,
    two_shot_all_reduce,
)
from scaleacross.runtime.rows import lay_out

NUM_BLOCKS = 2
NUMEL = 1203
PATIENT, IMPATIENT = 10_000_000, 400


def mapped(folder: str, rank: int, world_size: int, first_epoch: int) -> tuple[SymmetricMemory, list[torch.Tensor]]:
    """Memory whose files ``prepare`` made, and what holds its mappings."""
    buffers = [_map(folder, f"buffer{r}", NUMEL * 4, torch.uint8) for r in range(world_size)]
    pads = [_map(folder, f"pad{r}", NUM_BLOCKS * world_size, torch.int64) for r in range(world_size)]
    addresses = [torch.tensor([tensor.data_ptr() for tensor in tensors]) for tensors in (buffers, pads)]
    epochs = torch.full((NUM_BLOCKS,), first_epoch)
    return SymmetricMemory(rank, *addresses, epochs, torch.zeros(1, dtype=torch.int64), NUMEL * 4), buffers + pads


def prepare(folder: str, world_size: int, first_epoch: int) -> None:
    """Files of the right size; pads stand where epochs begin."""
    for rank in range(world_size):
        Path(folder, f"buffer{rank}").write_bytes(bytes(NUMEL * 4))
        pad = torch.full((NUM_BLOCKS * world_size,), first_epoch, dtype=torch.int64)
        Path(folder, f"pad{rank}").write_bytes(pad.numpy().tobytes())


def reduces(rank: int, folder: str, world_size: int, first_epoch: int) -> tuple[list[bool], int] | None:
    """Whether every call gave the reference's bits, and a checksum of all of them."""
    if rank >= world_size:
        return None
    memory, held = mapped(folder, rank, world_size, first_epoch)
    good, checksum = [], 0
    narrow, wide = torch.bfloat16, torch.float32
    calls = [
        (wide, one_shot_all_reduce),
        (wide, two_shot_all_reduce),
        (narrow, one_shot_all_reduce),
        (narrow, two_shot_all_reduce),
    ]
    for call, (dtype, reduce) in enumerate(calls):
        inputs = [
            torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * call + r)).to(dtype)
            for r in range(world_size)
        ]
        held[rank].view(dtype)[:NUMEL].copy_(inputs[rank])
        out, expected = torch.empty(NUMEL, dtype=dtype), torch.empty(NUMEL, dtype=dtype)
        reduce(memory, out, block=512, limit=PATIENT)
        memory.check()
        all_reduce_reference(inputs, expected)
        good.append(same_bits(out, expected))
        checksum = zlib.crc32(out.view(torch.uint8).numpy().tobytes(), checksum)
    return good, checksum


def puts_rows(rank: int, folder: str, world_size: int, seed: int) -> list[bool] | None:
    """Whether rows and counts of three exchanges are what their sources meant for this rank; the second runs out of room."""
    if rank >= world_size:
        return None
    memory, held = mapped(folder, rank, world_size, 0)
    capacity, good = 9, []
    for call, num_rows in enumerate((7, 40, 0)):
        everybody = []
        for source in range(world_size):
            generator = torch.Generator().manual_seed(seed + 100 * call + source)
            rows = torch.randn(num_rows, 5, generator=generator).to(torch.bfloat16)
            everybody.append((rows, torch.randint(-1, world_size, (num_rows,), generator=generator)))
        layout = lay_out(everybody[rank][1], world_size, capacity)
        put_rows(memory, everybody[rank][0], layout, tile=(8, 8), limit=PATIENT)
        memory.check()
        got, counts = received(held[rank], world_size, capacity, everybody[rank][0])
        meant = [rows[destinations == rank] for rows, destinations in everybody]
        fits = [got[s * capacity : s * capacity + min(len(m), capacity)] for s, m in enumerate(meant)]
        good.append(counts.tolist() == [len(m) for m in meant])
        good.append(all(same_bits(one, m[:capacity]) for one, m in zip(fits, meant, strict=True)))
        good.append(bool(layout.overflow) == (num_rows == 40))
    return good


def misses_a_peer(rank: int, folder: str, world_size: int, dead: int) -> str:
    """What a survivor is told when rank ``dead`` never comes."""
    Path(folder, f"ready{rank}").touch()
    if rank == dead or rank >= world_size:
        return ""
    while not all(Path(folder, f"ready{r}").exists() for r in range(world_size)):
        time.sleep(0.001)
    memory, _held = mapped(folder, rank, world_size, 0)
    two_shot_all_reduce(memory, torch.empty(NUMEL), block=512, limit=IMPATIENT)
    try:
        memory.check()
    except CollectiveTimeoutError as error:
        return str(error)
    return "nobody was missed"


def _map(folder: str, name: str, size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_file(str(Path(folder, name)), shared=True, size=size, dtype=dtype)
