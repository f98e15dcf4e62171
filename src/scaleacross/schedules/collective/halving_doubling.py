"""Recursive halving and doubling: ⌈log2 n⌉ steps, (n−1)/n·S bytes per member when n is a power of two.

Reduce-scatter halves the distance and the data at every step, all-gather doubles them. With n = 2^k + r members, 2r members pair
up first: the second of a pair hands its share of the work to the first and gets its part back at the end. Source: Thakur,
Rabenseifner and Gropp (2005).
"""

from __future__ import annotations

from collections.abc import Iterator

from scaleacross.schedules.collective.team import Parts, Team, blocks_of
from scaleacross.schedules.collective.transfer import Steps, recv, recv_reduce, send


def reduce_scatter(team: Team, me: int, parts: Parts) -> Steps:
    """Yield the steps of one member: halves of the blocks are exchanged over shrinking distances, and added."""
    fold = _Fold(team.size)
    if fold.is_guest(me):
        host, everything = team.members[me - 1], blocks_of(parts)
        yield (send(host, everything, team.contributors[me]),)
        yield (recv(host, parts[me], team.total),)
        return
    if fold.is_host(me):
        yield (recv_reduce(team.members[me + 1], blocks_of(parts), team.contributors[me + 1]),)
    seat = fold.seat(me)
    for first, half in fold.halves(seat):
        peer_seat = seat ^ half
        peer = team.members[fold.member(peer_seat)]
        kept, given = first + (seat & half), first + (peer_seat & half)
        # a seat has summed the seats that agree with it in all bits not yet exchanged, those below 2·half
        mine, theirs = (
            team.sum_of(m for s in range(one % (2 * half), fold.seats, 2 * half) for m in fold.members(s))
            for one in (seat, peer_seat)
        )
        yield (
            send(peer, blocks_of(parts[m] for s in range(given, given + half) for m in fold.members(s)), mine),
            recv_reduce(peer, blocks_of(parts[m] for s in range(kept, kept + half) for m in fold.members(s)), theirs),
        )
    if fold.is_host(me):
        yield (send(team.members[me + 1], parts[me + 1], team.total),)


def all_gather(team: Team, me: int, parts: Parts) -> Steps:
    """Yield the steps of one member: the mirror image, in which held blocks double over growing distances."""
    fold = _Fold(team.size)
    if fold.is_guest(me):
        host = team.members[me - 1]
        yield (send(host, parts[me]),)
        yield (recv(host, blocks_of(part for member, part in enumerate(parts) if member != me)),)
        return
    if fold.is_host(me):
        yield (recv(team.members[me + 1], parts[me + 1]),)
    seat = fold.seat(me)
    for first, half in reversed(tuple(fold.halves(seat))):
        kept, taken = first + (seat & half), first + (~seat & half)
        peer = team.members[fold.member(seat ^ half)]
        yield (
            send(peer, blocks_of(parts[m] for s in range(kept, kept + half) for m in fold.members(s))),
            recv(peer, blocks_of(parts[m] for s in range(taken, taken + half) for m in fold.members(s))),
        )
    if fold.is_host(me):
        yield (send(team.members[me + 1], blocks_of(part for member, part in enumerate(parts) if member != me + 1)),)


class _Fold:
    """2^k seats for n members: the first 2r members share r seats in pairs (host, guest), the others have one each."""

    def __init__(self, num_members: int) -> None:
        self.seats = 1 << (num_members.bit_length() - 1)
        self.pairs = num_members - self.seats

    def is_guest(self, member: int) -> bool:
        """Return whether ``member`` is the second of a pair."""
        return member < 2 * self.pairs and member % 2 == 1

    def is_host(self, member: int) -> bool:
        """Return whether ``member`` is the first of a pair."""
        return member < 2 * self.pairs and member % 2 == 0

    def seat(self, member: int) -> int:
        """Return the seat of a member."""
        return member // 2 if member < 2 * self.pairs else member - self.pairs

    def member(self, seat: int) -> int:
        """Return the member that acts for a seat."""
        return 2 * seat if seat < self.pairs else seat + self.pairs

    def members(self, seat: int) -> range:
        """Return the members whose parts a seat handles."""
        first = self.member(seat)
        return range(first, first + (2 if seat < self.pairs else 1))

    def halves(self, seat: int) -> Iterator[tuple[int, int]]:
        """Yield (first seat of the range that contains ``seat``, half of its length), from all seats down to pairs."""
        half = self.seats // 2
        while half:
            yield seat - seat % (2 * half), half
            half //= 2
