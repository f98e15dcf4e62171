"""Recursive halving and doubling: log2 n steps and (n−1)/n·S bytes per member, for a power of two of members.

Reduce-scatter halves the distance and the data at every step, all-gather doubles them. Two members exchange at every
step. Any other number of members runs ``bruck``, which takes ⌈log2 n⌉ steps for the same bytes. Source: Thakur,
Rabenseifner and Gropp (2005), whose folding of other numbers sends a whole tensor more.
"""

from __future__ import annotations

from collections.abc import Iterator

from scaleacross.schedules.collective import bruck
from scaleacross.schedules.collective.team import Parts, Team, blocks_of
from scaleacross.schedules.collective.transfer import Steps, recv, recv_reduce, send


def reduce_scatter(team: Team, me: int, parts: Parts) -> Steps:
    """Yield the steps of one member: halves of the blocks are exchanged over shrinking distances, and added."""
    if team.size & (team.size - 1):
        yield from bruck.reduce_scatter(team, me, parts)
        return
    for first, half in _halves(team.size, me):
        peer = me ^ half
        kept, given = first + (me & half), first + (peer & half)
        # a member has summed those that agree with it in all bits not yet exchanged, those below 2·half
        mine, theirs = (team.sum_of(range(one % (2 * half), team.size, 2 * half)) for one in (me, peer))
        yield (
            send(team.members[peer], blocks_of(parts[given : given + half]), mine),
            recv_reduce(team.members[peer], blocks_of(parts[kept : kept + half]), theirs),
        )


def all_gather(team: Team, me: int, parts: Parts) -> Steps:
    """Yield the steps of one member: the mirror image, in which held blocks double over growing distances."""
    if team.size & (team.size - 1):
        yield from bruck.all_gather(team, me, parts)
        return
    for first, half in reversed(tuple(_halves(team.size, me))):
        peer, kept, taken = me ^ half, first + (me & half), first + (~me & half)
        yield (
            send(team.members[peer], blocks_of(parts[kept : kept + half])),
            recv(team.members[peer], blocks_of(parts[taken : taken + half])),
        )


def _halves(size: int, me: int) -> Iterator[tuple[int, int]]:
    """Yield (first member of the range that contains ``me``, half of its length), from all members down to pairs."""
    half = size // 2
    while half:
        yield me - me % (2 * half), half
        half //= 2
