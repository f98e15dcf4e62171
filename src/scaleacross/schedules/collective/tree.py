"""Trees: binomial broadcast, and the double binary tree all-reduce.

Binomial broadcast: ⌈log2 n⌉ steps, S bytes per message. Double tree: two binary trees over the same members, each for half of
the message, such that (almost) every member is a leaf of one of them; a member sends and receives about 2·S bytes whatever n is,
after at most 2·⌈log2 n⌉ + 1 latencies. Chunks (channels) follow one another up and down. Source: Sanders, Speck and Träff (2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scaleacross.schedules.collective.team import Team
from scaleacross.schedules.collective.transfer import Steps, recv, recv_reduce, send


def broadcast(team: Team, me: int, blocks: Sequence[int]) -> Steps:
    """Binomial tree from member 0: at distance 2^k every member that has the blocks serves one that lacks them."""
    distance = 1 << (team.size - 1).bit_length()
    while distance := distance // 2:
        if me % (2 * distance) == 0 and me + distance < team.size:
            yield (send(team.members[me + distance], blocks),)
        elif me % (2 * distance) == distance:
            yield (recv(team.members[me - distance], blocks),)


def chain_broadcast(team: Team, me: int, blocks: Sequence[int]) -> Steps:
    """Each member passes the blocks on to the next: S bytes per member, and with chunks no waiting for the whole."""
    if me:
        yield (recv(team.members[me - 1], blocks),)
    if me + 1 < team.size:
        yield (send(team.members[me + 1], blocks),)


def tree_all_reduce(team: Team, me: int, blocks: Sequence[int], shifted: bool) -> Steps:
    """Up one of the two trees and down again. A double tree runs both, on channels of their own."""
    place = _place(me, team.size, shifted)
    yield tuple(recv_reduce(team.members[c.member], blocks, team.sum_of(c.subtree)) for c in place.children)
    if place.parent is not None:
        yield (send(team.members[place.parent], blocks, team.sum_of(place.subtree)),)
        yield (recv(team.members[place.parent], blocks),)
    yield tuple(send(team.members[c.member], blocks) for c in place.children)


class _Child(NamedTuple):
    member: int
    subtree: Sequence[int]


class _Place(NamedTuple):
    """Where a member stands in one tree."""

    parent: int | None
    children: tuple[_Child, ...]
    subtree: Sequence[int]


def _place(member: int, size: int, shifted: bool) -> _Place:
    """Descend from the root of the in-order binary tree over the labels 0 … size−1; its leaves are the even ones.

    The shifted tree gives member i the label i+1 (mod size): with an even size the leaves of one tree are inner in the other.
    """
    label = (member + shifted) % size
    first, end, parent = 0, size, None
    while True:
        root = _root(first, end)
        if label == root:
            break
        parent = root
        first, end = (first, root) if label < root else (root + 1, end)
    ranges = [(low, high) for low, high in ((first, root), (root + 1, end)) if low < high]

    def members(low: int, high: int) -> Sequence[int]:
        return [(x - shifted) % size for x in range(low, high)]

    children = tuple(_Child((_root(low, high) - shifted) % size, members(low, high)) for low, high in ranges)
    return _Place(None if parent is None else (parent - shifted) % size, children, members(first, end))


def _root(first: int, end: int) -> int:
    """Root of the labels first … end−1: 2^k − 1 further on, 2^k the largest power of two that fits."""
    return first + (1 << ((end - first).bit_length() - 1)) - 1
