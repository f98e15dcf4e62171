"""What the ranks run in ``test_bounded_rows.py``."""

from __future__ import annotations

import torch
from exchange_cases import as_torch_does, group_of

from scaleacross.errors import InputError
from scaleacross.row_codec.message import RowCodec
from scaleacross.runtime.bounded_rows import OwnTable, exchange_rows_bounded, exchange_vectors

BOUND = 0.02


def rows_within(rank: int, name: str, size: int, stage: str) -> list[bool] | None:
    """Check the order of rows and their error bounds.

    Rows of other ranks are within the bound. Rows of uncoded ranks and of the rank itself are exact.
    """
    group = group_of(name, size)
    if rank >= size:
        return None
    generator = torch.Generator().manual_seed(rank)
    rows = torch.randn(40, 6, generator=generator)[torch.randint(0, 40, (90,), generator=generator)]
    destinations = torch.randint(-1, size, (90,), generator=generator)
    plain_to = (rank + 1) % size
    codecs = [None if peer == plain_to else RowCodec(BOUND, stage) for peer in range(size)]
    got = exchange_rows_bounded(group, rows, destinations, codecs)
    exact = as_torch_does(group, rows, destinations)
    good = [got.rows.shape == exact.shape, bool(((got.rows.double() - exact.double()).abs() <= BOUND).all())]
    for source, (mine, theirs) in enumerate(zip(got.rows.split(got.counts), exact.split(got.counts), strict=True)):
        untouched = source == rank or (source + 1) % size == rank
        good.append(torch.equal(mine, theirs) == untouched or not len(mine))
    return good


def vectors_within(rank: int, name: str, size: int) -> list[bool] | None:
    """All tables' vectors of the rank's own samples, with gradients as without a codec and with a rank without tables."""
    group = group_of(name, size)
    if rank >= size:
        return None
    samples, widths = 5, [[4, 2], [3], [], [1, 1, 1]][:size]
    every = [
        torch.randn(size * samples, sum(own), generator=torch.Generator().manual_seed(peer))
        for peer, own in enumerate(widths)
    ]
    vectors = every[rank].clone().requires_grad_()
    got = exchange_vectors(group, vectors, [OwnTable(width, [RowCodec(BOUND)] * size) for width in widths[rank]])
    exact = torch.cat([one[rank * samples : (rank + 1) * samples] for one in every], dim=1)
    weights = torch.arange(exact.numel()).view_as(exact) + 1000.0 * rank
    (got * weights).sum().backward()
    first = sum(sum(own) for own in widths[:rank])
    expected = torch.cat(
        [
            (torch.arange(exact.numel()).view_as(exact) + 1000.0 * peer)[:, first : first + sum(widths[rank])]
            for peer in range(size)
        ]
    )
    return [
        got.shape == exact.shape,
        bool(((got.double() - exact.double()).abs() <= BOUND).all()),
        vectors.grad is not None and torch.equal(vectors.grad, expected),
    ]


def fewer_bytes(rank: int) -> tuple[int, int]:
    """Bytes to other ranks of rows that repeat: within a bound, and uncoded."""
    group = group_of("scaleacross", 4)
    rows = torch.randn(20, 32, generator=torch.Generator().manual_seed(0))[torch.arange(400) % 20]
    to = torch.arange(400) % 4
    coded, plain = (exchange_rows_bounded(group, rows, to, [codec] * 4) for codec in (RowCodec(BOUND), None))
    sent = group._communicator.bytes_by_peer()  # type: ignore[attr-defined]
    return coded.sent_bytes, plain.sent_bytes, sum(number for peer, number in sent.items() if peer != rank)


def refused(rank: int) -> str:
    """An element for which no bound holds is refused on every rank."""
    group = group_of("gloo", 4)
    try:
        exchange_rows_bounded(group, torch.full((4, 2), torch.inf), torch.arange(4), [RowCodec(1.0)] * 4)
    except InputError as error:
        return str(error)
    return ""
