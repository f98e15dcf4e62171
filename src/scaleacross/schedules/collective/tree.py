"""Trees: binomial broadcast, and the double binary tree all-reduce.

Binomial broadcast: ⌈log2 n⌉ steps, S bytes per message. A double tree consists of two binary trees over the same
members, each for half of the message. (Almost) every member is a leaf of one of them. A member sends and receives about
2·S bytes whatever n is, after at most 2·⌈log2 n⌉ + 1 latencies. Chunks (channels) are pipelined up and down. Source:
Sanders, Speck and Träff (2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scaleacross.schedules.collective.team import Team
from scaleacross.schedules.collective.transfer import Steps, recv, recv_reduce, send


def broadcast(team: Team, me: int, blocks: Sequence[int]) -> Steps:
    """Yield one member's steps of a binomial tree from member 0: at distance 2^k each holder serves one other."""
    distance = 1 << (team.size - 1).bit_length()
    while distance := distance // 2:
        if me % (2 * distance) == 0 and me + distance < team.size:
            yield (send(team.members[me + distance], blocks),)
        elif me % (2 * distance) == distance:
            yield (recv(team.members[me - distance], blocks),)


def chain_broadcast(team: Team, me: int, blocks: Sequence[int]) -> Steps:
    """Yield one member's steps of a chain: each passes S bytes to the next, chunk by chunk on several channels."""
    if me:
        yield (recv(team.members[me - 1], blocks),)
    if me + 1 < team.size:
        yield (send(team.members[me + 1], blocks),)


def tree_all_reduce(team: Team, me: int, blocks: Sequence[int], shifted: bool) -> Steps:
    """Yield one member's steps up one of the two trees and down again. A double tree runs one per channel."""
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
    """Place of a member in one tree: parent, children, and the members of its subtree."""

    parent: int | None
    children: tuple[_Child, ...]
    subtree: Sequence[int]


def _place(member: int, size: int, shifted: bool) -> _Place:
    """Find a member's place by descent from the root of the in-order binary tree over the labels 0 … size−1.

    Its leaves are the even labels. The shifted tree gives member i the label i+1 (mod size): with an even size the
    leaves of one tree are inner nodes of the other.
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
    """Return the root of the labels first … end−1: first + 2^k − 1, with 2^k the largest power of two that fits."""
    return first + (1 << ((end - first).bit_length() - 1)) - 1
