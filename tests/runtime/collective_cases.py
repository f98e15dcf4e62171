"""What the ranks run in ``test_executed_collectives.py``: every algorithm against what torch would return."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from rank_pool import join_job, make_group

from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.policy import Chosen, Policy, named_schedule
from scaleacross.schedules.collective import PHASES, Layout, Operation

DEVICE = "cpu"
"""where tensors lie; ``gpu_cases`` sets it"""
SIZES = (0, 1, 1003, 13_001)
"""none, fewer than ranks, odd, and more than a window of ``SMALL_WINDOW``"""
SMALL_WINDOW = LinkSettings(window_bytes=48 << 10, segment_bytes=8 << 10)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64, torch.uint8)
LAYOUTS: dict[int, tuple[Layout, ...]] = {
    2: ((0, 1),),
    3: ((0, 1, 2), ((0,), (1, 2))),
    4: ((0, 1, 2, 3), ((0, 1), (2, 3)), ((0, 2), (1, 3))),
    8: (
        tuple(range(8)),
        ((0, 1, 2), (3, 4, 5, 6, 7)),
        (((0, 1), (2, 3)), ((4, 5), (6, 7))),
    ),
}
NESTED = {2: ("ring, direct", "halving_doubling, bruck"), 3: ("ring, bidirectional_ring, direct",)}


class Switch:
    """A policy whose choice the case sets, to the same value on all ranks."""

    def __init__(self) -> None:
        self.algorithm, self.layout, self.num_channels = "ring", (0,), 1
        self.settings = SMALL_WINDOW

    def choose(self, operation: Operation, num_bytes: int) -> Chosen:
        del num_bytes
        return Chosen(named_schedule(operation, self.algorithm, self.layout, self.num_channels))

    def policy(self) -> Policy:
        return Policy(self.choose, lambda rank, peer: self.settings, "the test")


GROUPS: dict[tuple[int, bool | None], tuple[Switch, Any]] = {}
"""(ranks, whether payloads go through shared memory; None: over gloo's send and receive)"""


def set_up(rank: int, sizes: Sequence[int]) -> None:
    """Groups of the first ranks: payloads in shared memory, in the stream, and over another backend's send and receive."""
    join_job(rank)
    for size in sizes[1:3]:
        switch = Switch()
        GROUPS[size, None] = (switch, make_group(range(size), switch.policy(), point_to_point=True))
    for shared in (True, False):
        for size in sizes:
            switch = Switch()
            switch.settings = LinkSettings(SMALL_WINDOW.window_bytes, SMALL_WINDOW.segment_bytes, shared)
            group = make_group(range(size), switch.policy())
            GROUPS[size, shared] = (switch, group)


def all_cases(operation: Operation, size: int) -> Iterator[tuple[str, Layout, int]]:
    """(algorithm, layout, channels) for every way to run ``operation`` on ``size`` ranks."""
    if operation is Operation.BROADCAST:
        names = ["tree", "chain"]
    elif operation is Operation.ALL_TO_ALL:
        names = ["direct", "pairwise"]
        for layout in LAYOUTS[size][1:]:
            if all(isinstance(child, tuple) and isinstance(child[0], int) for child in layout):
                yield "two_level", layout, 1
                yield "two_level", layout, 3
    else:
        names = [*PHASES, *(["double_tree"] if operation is Operation.ALL_REDUCE else [])]
        for layout in LAYOUTS[size][1:]:
            depth = 3 if isinstance(layout[0][0], tuple) else 2
            for nested in NESTED[depth]:
                yield f"hierarchical({nested})", layout, 1
                yield f"hierarchical({nested})", layout, 3
    for name in names:
        yield name, LAYOUTS[size][0], 1
        yield name, LAYOUTS[size][0], 3


def value_of(rank: int, numel: int, dtype: torch.dtype, salt: int) -> torch.Tensor:
    """Small integers, so that sums are exact in every type and order."""
    return _pattern((rank * 13 + salt) % 5, numel, dtype).clone()


@lru_cache(maxsize=256)
def _pattern(start: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    return ((torch.arange(numel, device=DEVICE) * 7 + start) % 5).to(dtype)


def sum_of(size: int, numel: int, dtype: torch.dtype, salt: int) -> torch.Tensor:
    """What the values of all ranks add up to."""
    return sum((value_of(r, numel, dtype, salt) for r in range(size)), torch.zeros(numel, dtype=dtype, device=DEVICE))


def check_operation(rank: int, operation_name: str, size: int, shared: bool | None) -> int:
    """All algorithms, types and sizes of one operation on one group; returns how many cases ran."""
    if rank >= size:
        return 0
    operation = Operation(operation_name)
    switch, group = GROUPS[size, shared]
    done = 0
    for algorithm, layout, num_channels in all_cases(operation, size):
        switch.algorithm, switch.layout, switch.num_channels = algorithm, layout, num_channels
        for dtype in DTYPES if num_channels == 1 else DTYPES[:2]:
            for numel in SIZES if dtype in DTYPES[:2] else SIZES[2:3]:
                got, expected = CHECKS[operation](rank, size, numel, dtype, group, done)
                where = (
                    f"{operation_name} {algorithm} {layout} x{num_channels} {dtype} {numel} on rank {rank} of {size}"
                )
                assert torch.equal(got, expected), f"{where}: {got[:8]} instead of {expected[:8]}"
                done += 1
    return done


def _all_reduce(rank: int, n: int, numel: int, dtype: torch.dtype, group: Any, salt: int) -> tuple[torch.Tensor, ...]:
    tensor = value_of(rank, numel, dtype, salt)
    dist.all_reduce(tensor, group=group)
    return tensor, sum_of(n, numel, dtype, salt)


def _reduce_scatter(
    rank: int, n: int, numel: int, dtype: torch.dtype, group: Any, salt: int
) -> tuple[torch.Tensor, ...]:
    output = torch.empty(numel, dtype=dtype, device=DEVICE)
    mine = value_of(rank, numel * n, dtype, salt)
    dist.reduce_scatter_single(output, mine, group=group)
    assert torch.equal(mine, value_of(rank, numel * n, dtype, salt)), "the input was changed"
    return output, sum_of(n, numel * n, dtype, salt)[rank * numel : (rank + 1) * numel]


def _all_gather(rank: int, n: int, numel: int, dtype: torch.dtype, group: Any, salt: int) -> tuple[torch.Tensor, ...]:
    output = torch.empty(numel * n, dtype=dtype, device=DEVICE)
    dist.all_gather_single(output, value_of(rank, numel, dtype, salt), group=group)
    return output, torch.cat([value_of(r, numel, dtype, salt) for r in range(n)])


def _broadcast(rank: int, n: int, numel: int, dtype: torch.dtype, group: Any, salt: int) -> tuple[torch.Tensor, ...]:
    root = salt % n
    tensor = value_of(rank, numel, dtype, salt)
    dist.broadcast(tensor, root, group=group)
    return tensor, value_of(root, numel, dtype, salt)


def _all_to_all(rank: int, n: int, numel: int, dtype: torch.dtype, group: Any, salt: int) -> tuple[torch.Tensor, ...]:
    """With unequal splits, some of them empty."""
    counts = [[(numel * ((s + 2 * d + salt) % 3)) // 4 for d in range(n)] for s in range(n)]
    inputs = [value_of(s, sum(counts[s]), dtype, salt) for s in range(n)]
    received = [counts[s][rank] for s in range(n)]
    output = torch.empty(sum(received), dtype=dtype, device=DEVICE)
    dist.all_to_all_single(output, inputs[rank], received, counts[rank], group=group)
    parts = [inputs[s][sum(counts[s][:rank]) : sum(counts[s][: rank + 1])] for s in range(n)]
    return output, torch.cat(parts)


CHECKS = {
    Operation.ALL_REDUCE: _all_reduce,
    Operation.REDUCE_SCATTER: _reduce_scatter,
    Operation.ALL_GATHER: _all_gather,
    Operation.BROADCAST: _broadcast,
    Operation.ALL_TO_ALL: _all_to_all,
}


def bits_of_random_sums(rank: int, size: int, repetitions: int) -> list[int]:
    """Checksums of all-reduced normal values for every algorithm and two types.

    The same inputs repeat ``repetitions`` times.
    """
    if rank >= size:
        return []
    switch, group = GROUPS[size, True]
    sums = []
    for algorithm, layout, num_channels in all_cases(Operation.ALL_REDUCE, size):
        switch.algorithm, switch.layout, switch.num_channels = algorithm, layout, num_channels
        for dtype in (torch.float32, torch.bfloat16):
            seen = set()
            for _ in range(repetitions):
                tensor = torch.randn(4099, generator=torch.Generator().manual_seed(rank)).to(dtype)
                dist.all_reduce(tensor, group=group)
                seen.add(zlib.crc32(tensor.view(torch.uint8).numpy().tobytes()))
            exact = sum(
                torch.randn(4099, generator=torch.Generator().manual_seed(r)).to(dtype).double() for r in range(size)
            )
            worst = float((tensor.double() - exact).abs().max())
            unit = float(torch.finfo(dtype).eps) * float(exact.abs().max())
            assert worst <= size.bit_length() * unit, (
                f"{algorithm} {dtype}: off by {worst / unit:.1f} units of rounding"
            )
            assert len(seen) == 1, f"{algorithm} {dtype}: {len(seen)} different results of the same inputs"
            sums += seen
    return sums


def reductions(rank: int, size: int) -> None:
    """avg, min, max, product and the bitwise ones, in types that torch reduces."""
    if rank >= size:
        return
    switch, group = GROUPS[size, True]
    switch.algorithm, switch.layout, switch.num_channels = "ring", LAYOUTS[size][0], 1
    for op, combine, dtypes in (
        (dist.ReduceOp.AVG, lambda parts: torch.stack(parts).double().mean(0), (torch.float32, torch.bfloat16)),
        (dist.ReduceOp.MIN, lambda parts: torch.stack(parts).amin(0), (torch.float32, torch.bfloat16, torch.int64)),
        (dist.ReduceOp.MAX, lambda parts: torch.stack(parts).amax(0), (torch.float32, torch.float16, torch.uint8)),
        (dist.ReduceOp.PRODUCT, lambda parts: torch.stack(parts).double().prod(0), (torch.float32, torch.int32)),
        (dist.ReduceOp.BOR, _bor, (torch.int32,)),
    ):
        for dtype in dtypes:
            parts = [value_of(r, 1003, dtype, 1) for r in range(size)]
            tensor = parts[rank].clone()
            dist.all_reduce(tensor, op=op, group=group)
            torch.testing.assert_close(tensor, combine(parts).to(dtype), rtol=4e-3, atol=0)


def _bor(parts: list[torch.Tensor]) -> torch.Tensor:
    out = parts[0].clone()
    for part in parts[1:]:
        out |= part
    return out


def shapes_and_lists(rank: int, size: int) -> None:
    """Tensors that are not contiguous, list forms, coalesced forms, equal splits by default."""
    if rank >= size:
        return
    switch, group = GROUPS[size, True]
    switch.algorithm, switch.layout, switch.num_channels = "ring", LAYOUTS[size][0], 1
    square = torch.full((6, 4), float(rank))
    dist.all_reduce(square.t(), group=group)
    assert (square == sum(range(size))).all()
    parts = [torch.empty(3, 2) for _ in range(size)]
    dist.all_gather(parts, torch.full((2, 3), float(rank)).t(), group=group)
    assert all((part == r).all() for r, part in enumerate(parts))
    output = torch.empty(5)
    dist.reduce_scatter(output, [torch.full((5,), float(r + rank)) for r in range(size)], group=group)
    assert (output == sum(rank + r for r in range(size))).all()
    many = [torch.full((k + 1,), float(rank)) for k in range(3)]
    with dist.distributed_c10d._coalescing_manager(group):
        for tensor in many:
            dist.all_reduce(tensor, group=group)
    assert all((tensor == sum(range(size))).all() for tensor in many)
    switch.algorithm = "pairwise"
    exchanged = torch.empty(size, 2)
    dist.all_to_all_single(exchanged, torch.full((size, 2), float(rank)), group=group)
    assert torch.equal(exchanged[:, 0], torch.arange(float(size)))


def repeated(rank: int, size: int, repetitions: int) -> None:
    """Many collectives of changing kind in flight at once; results only read at the end."""
    if rank >= size:
        return
    switch, group = GROUPS[size, True]
    switch.layout, switch.num_channels = LAYOUTS[size][0], 2
    works = []
    for repetition in range(repetitions):
        switch.algorithm = ("ring", "halving_doubling", "direct")[repetition % 3]
        tensor = value_of(rank, 1 + 997 * repetition % 5000, torch.float32, repetition)
        works.append((repetition, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
    for repetition, tensor, work in works:
        work.wait()
        expected = sum_of(size, tensor.numel(), torch.float32, repetition)
        assert torch.equal(tensor, expected), f"repetition {repetition} on rank {rank}"


def two_groups_at_once(rank: int, size: int) -> None:
    """Use the same ranks in two groups, in opposite order on every second rank."""
    if rank >= size:
        return
    pairs = [GROUPS[size, True], GROUPS[size, False]]
    for switch, _ in pairs:
        switch.algorithm, switch.layout, switch.num_channels = "ring", LAYOUTS[size][0], 1
    for repetition in range(20):
        tensors = [value_of(rank, 30_000, torch.float32, repetition + k) for k in range(2)]
        order = (0, 1) if (rank + repetition) % 2 else (1, 0)
        works = [dist.all_reduce(tensors[k], group=pairs[k][1], async_op=True) for k in order]
        for work in works:
            work.wait()
        for k in range(2):
            assert torch.equal(tensors[k], sum_of(size, 30_000, torch.float32, repetition + k))
