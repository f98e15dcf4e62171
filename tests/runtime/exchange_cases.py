"""What the ranks run in ``test_row_exchange.py``: rows to ranks, against all_to_all_single with gathered counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from rank_pool import make_group

from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.policy import fixed
from scaleacross.runtime.row_exchange import exchange_rows, exchange_rows_by_building, return_rows
from scaleacross.schedules.collective import Operation

WIDTH = 6


def group_of(name: str, size: int) -> dist.ProcessGroup:
    """gloo's or ours; every rank calls it."""
    if name == "gloo":
        return dist.new_group(range(size), backend="gloo")
    algorithms = {Operation.ALL_TO_ALL: "pairwise", Operation.ALL_REDUCE: "ring"}
    return make_group(range(size), fixed(algorithms, tuple(range(size)), LinkSettings(1 << 18, 1 << 14)))


def inputs(rank: int, size: int, num_rows: int, num_each: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of small whole numbers and their destinations, some of them none, some twice."""
    generator = torch.Generator().manual_seed(10 * num_rows + rank)
    rows = torch.randint(-99, 99, (num_rows, WIDTH), generator=generator).to(torch.bfloat16)
    return rows, torch.randint(-1, size, (num_rows, num_each), generator=generator)


def as_torch_does(group: dist.ProcessGroup, rows: torch.Tensor, destinations: torch.Tensor) -> torch.Tensor:
    """Counts gathered on the host, then all_to_all_single: row by row, destination by destination."""
    size, each = group.size(), destinations.shape[1]
    flat, copies = destinations.reshape(-1), rows.repeat_interleave(each, 0)
    sends = [copies[flat == peer] for peer in range(size)]
    counts = torch.tensor([len(part) for part in sends])
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts, group=group)
    out = rows.new_empty(int(coming.sum()), WIDTH)
    dist.all_to_all_single(out, torch.cat(sends), coming.tolist(), counts.tolist(), group=group)
    return out


def straight(rank: int, name: str, size: int) -> list[bool] | None:
    """Equal to torch; there and back again; the flag."""
    group = group_of(name, size)
    if rank >= size:
        return None
    good = []
    for num_rows, capacity, fits in ((23, 23, True), (0, 1, True), (50, 4, False)):
        rows, destinations = inputs(rank, size, num_rows, 1)
        got = exchange_rows(group, rows, destinations[:, 0], capacity)
        good.append(bool(got.overflow) != fits)
        if fits:
            good.append(torch.equal(got.compact(), as_torch_does(group, rows, destinations)))
            back = return_rows(group, got, got.rows * 2)
            good.append(torch.equal(back, torch.where(destinations >= 0, rows * 2, 0)))
        else:
            good.append(got.compact().shape[0] == int(got.counts.sum()) and int(got.counts.max()) <= capacity)
    return good


def by_building(
    rank: int, name: str, size: int, buildings: Sequence[Sequence[int]], num_each: int
) -> list[bool] | None:
    """Equal to torch, row by row; the flag."""
    group = group_of(name, size)
    if rank >= size:
        return None
    good = []
    for num_rows, capacity, fits in ((17, 17 * num_each, True), (60, 3, False), (0, 2, True)):
        rows, destinations = inputs(rank, size, num_rows, num_each)
        got = exchange_rows_by_building(group, buildings, rows, destinations, capacity)
        good.append(bool(got.overflow) != fits)
        if fits:
            good.append(torch.equal(got.compact(), as_torch_does(group, rows, destinations)))
            back = return_rows(group, got, got.rows.sign() * (1 + rank))
            factor = torch.where(destinations >= 0, 1 + destinations, 0).sum(1, keepdim=True)
            good.append(torch.equal(back, rows.sign() * factor))
    return good


def crossing_bytes(rank: int) -> tuple[list[int], list[int]]:
    """Bytes between two buildings of two ranks where every row goes to all four ranks and back: straight, and by building."""
    found = []
    far = [peer for peer in range(4) if (peer < 2) != (rank < 2)]
    for variant in range(2):
        group = group_of("scaleacross", 4)
        rows = torch.ones(64, 512)
        everybody = torch.arange(4).expand(64, 4).contiguous()
        if variant:
            got = exchange_rows_by_building(group, ((0, 1), (2, 3)), rows, everybody, 64, building_capacity=64)
        else:
            got = exchange_rows(group, rows.repeat_interleave(4, 0), everybody.view(-1), 64)
        there = _sent_to(group, far)
        return_rows(group, got, got.rows)
        found.append([there, _sent_to(group, far) - there])
    return found[0], found[1]


def _sent_to(group: dist.ProcessGroup, peers: Sequence[int]) -> int:
    sent = group._communicator.bytes_by_peer()  # type: ignore[attr-defined]
    return sum(sent.get(peer, 0) for peer in peers)
