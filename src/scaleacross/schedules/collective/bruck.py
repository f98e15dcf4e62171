"""Bruck's all-gather, and its mirror image as a reduce-scatter: ⌈log2 n⌉ steps and (n−1)/n·S bytes for any n.

In step k of the gather member i receives from i + 2^k the parts that it lacks. The scatter takes these steps in reverse:
member i sends i + 2^k its sums for the same parts. Source of the gather: Bruck et al. (1997). NCCL's PAT rests on the
same algorithm, but takes the longest distances of a gather first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from scaleacross.schedules.collective.team import Parts, Team, blocks_of
from scaleacross.schedules.collective.transfer import Steps, recv, recv_reduce, send

Gather = tuple[int, int]
"""A step of the gather: parts that a member holds, and further parts that it then receives from member me + held."""


def all_gather(team: Team, me: int, parts: Parts) -> Steps:
    """Yield one member's steps: it holds parts me … me + held − 1 and receives ``moved`` more from member me + held."""
    n = team.size
    for held, moved in _gathers(n):
        yield (
            send(team.members[(me - held) % n], blocks_of(parts[(me + k) % n] for k in range(moved))),
            recv(team.members[(me + held) % n], blocks_of(parts[(me + held + k) % n] for k in range(moved))),
        )


def reduce_scatter(team: Team, me: int, parts: Parts) -> Steps:
    """Yield one member's steps: the gather's in reverse, with sums for the parts that it would receive there."""
    n, gathers = team.size, list(_gathers(team.size))
    for step in reversed(range(len(gathers))):
        held, _ = gathers[step]
        sent = _sums(team, me, parts, gathers[step:])
        received = _sums(team, (me - held) % n, parts, gathers[step:])
        yield (
            *(send(team.members[(me + held) % n], blocks, summed) for blocks, summed in sent),
            *(recv_reduce(team.members[(me - held) % n], blocks, summed) for blocks, summed in received),
        )


def _gathers(n: int) -> Iterator[Gather]:
    """Yield the steps of a gather among ``n`` members."""
    held = 1
    while held < n:
        moved = min(held, n - held)
        yield held, moved
        held += moved


def _sums(team: Team, member: int, parts: Parts, gathers: Sequence[Gather]) -> Iterator[tuple[Sequence[int], int]]:
    """Yield (blocks, contributors) that ``member`` sends in the reverse of the first of ``gathers``.

    The others have run in reverse before. The last of them moves fewer parts than a member holds, so that one step may
    send two sums: for parts that came through it, and for the rest.
    """
    n, (held, moved) = team.size, gathers[0]

    def behind(part: int) -> int:
        """Return the members whose sums for ``part`` (from ``member`` on) have arrived, as bits of their distance."""
        found = 1
        for reached, taken in gathers[1:]:
            found |= (found & ((1 << max(0, taken - part)) - 1)) << reached
        return found

    for distances, some in groupby(range(held, held + moved), behind):
        contributors = team.sum_of((member - x) % n for x in range(distances.bit_length()) if distances >> x & 1)
        yield blocks_of(parts[(member + part) % n] for part in some), contributors
