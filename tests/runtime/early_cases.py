"""What the ranks run in ``test_early_rows.py``: a toy training on rows dealt over ranks."""

from __future__ import annotations

import torch
from exchange_cases import group_of

from scaleacross.errors import InputError
from scaleacross.runtime.early_rows import EarlyRows, Request

ROWS, WIDTH, STEPS, RATE = 23, 3, 6, 0.1


def batches(rank: int, share: float) -> list[torch.Tensor]:
    """Row numbers per step: ``share`` of them from three rows that every batch reads, the others anywhere."""
    generator = torch.Generator().manual_seed(100 + rank)
    out = []
    for step in range(STEPS):
        count = 0 if (rank, step) == (1, 2) else 9
        hot = torch.randint(0, 3, (count,), generator=generator)
        cold = torch.randint(0, ROWS, (count,), generator=generator)
        out.append(torch.where(torch.rand(count, generator=generator) < share, hot, cold))
    return out


def gradient(rows: torch.Tensor, step: int, rank: int) -> torch.Tensor:
    """A gradient that depends on the rows, so that a stale row changes all later steps."""
    return torch.sin(3 * rows + step + 0.1 * rank)


def trained(rank: int, name: str, size: int, share: float, early: bool) -> tuple[torch.Tensor, int, int] | None:
    """Own rows after all steps, the rows asked for, and the rows that came late."""
    group = group_of(name, size)
    if rank >= size:
        return None
    whole = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    table = EarlyRows(group, whole[rank::size].clone(), ROWS, RATE, early)
    own, asked, late = batches(rank, share), 0, 0
    request: Request = table.request(own[0])
    for step in range(STEPS):
        asked, late = asked + request.num_rows, late + request.num_late
        rows = table.collect(request)
        ahead = table.request(own[step + 1]) if step + 1 < STEPS else None
        table.update(request, gradient(rows, step, rank))
        if ahead is not None:
            request = ahead
    return table.rows, asked, late


def oracle(size: int, share: float) -> torch.Tensor:
    """The whole table in one process, one batch after the other."""
    whole = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    every = [batches(rank, share) for rank in range(size)]
    for step in range(STEPS):
        total = torch.zeros(ROWS, WIDTH)
        for rank in range(size):
            ids = every[rank][step]
            total += torch.zeros(ROWS, WIDTH).index_add_(0, ids, gradient(whole[ids], step, rank))
        touched = torch.cat([own[step] for own in every]).unique()
        whole[touched] -= RATE * total[touched]
    return whole


def refused(rank: int) -> list[str]:
    """Calls out of order and numbers out of range."""
    table = EarlyRows(group_of("gloo", 4), torch.zeros(2, 1), 8, RATE)
    first, second = table.request(torch.tensor([rank])), table.request(torch.tensor([rank]))
    said = []
    for call in (
        lambda: table.collect(second),
        lambda: table.update(first, torch.zeros(1, 1)),
        lambda: table.request(torch.tensor([8])),
        lambda: table.request(torch.tensor([0.5])),
    ):
        try:
            call()
        except InputError as error:
            said.append(str(error))
    return said
