"""What the ranks run in ``test_row_exchange.py``: rows to ranks, against all_to_all_single with gathered counts."""

from __future__ import annotations

import torch
import torch.distributed as dist
from rank_pool import make_group

from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.policy import fixed
from scaleacross.runtime.row_exchange import exchange_rows, return_rows
from scaleacross.schedules.collective import Operation

WIDTH = 6


def group_of(name: str, size: int) -> dist.ProcessGroup:
    """gloo's or ours; every rank calls it."""
    if name == "gloo":
        return dist.new_group(range(size), backend="gloo")
    algorithms = {Operation.ALL_TO_ALL: "pairwise", Operation.ALL_REDUCE: "ring"}
    return make_group(range(size), fixed(algorithms, tuple(range(size)), LinkSettings(1 << 18, 1 << 14)))


def inputs(rank: int, size: int, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of small whole numbers and their destinations, some of them none."""
    generator = torch.Generator().manual_seed(10 * num_rows + rank)
    rows = torch.randint(-99, 99, (num_rows, WIDTH), generator=generator).to(torch.bfloat16)
    return rows, torch.randint(-1, size, (num_rows,), generator=generator)


def as_torch_does(group: dist.ProcessGroup, rows: torch.Tensor, destinations: torch.Tensor) -> torch.Tensor:
    """The result of torch: counts gathered on the host, then all_to_all_single, row by row."""
    sends = [rows[destinations == peer] for peer in range(group.size())]
    counts = torch.tensor([len(part) for part in sends])
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts, group=group)
    out = rows.new_empty(int(coming.sum()), WIDTH)
    dist.all_to_all_single(out, torch.cat(sends), coming.tolist(), counts.tolist(), group=group)
    return out


def straight(rank: int, name: str, size: int) -> list[bool] | None:
    """Check that the result equals torch's, that rows return, and that the flag is right."""
    group = group_of(name, size)
    if rank >= size:
        return None
    good = []
    for num_rows, capacity, fits in ((23, 23, True), (0, 1, True), (50, 4, False)):
        rows, destinations = inputs(rank, size, num_rows)
        got = exchange_rows(group, rows, destinations, capacity)
        good.append(bool(got.overflow) != fits)
        if fits:
            good.append(torch.equal(got.compact(), as_torch_does(group, rows, destinations)))
            back = return_rows(group, got, got.rows * 2)
            good.append(torch.equal(back, torch.where(destinations[:, None] >= 0, rows * 2, 0)))
        else:
            good.append(got.compact().shape[0] == int(got.counts.sum()) and int(got.counts.max()) <= capacity)
    return good
