"""Team of one phase of a collective: its members in order, and the contributions that each has already summed.

A phase (reduce-scatter, all-gather, all-reduce or exchange among a team) is a generator of the steps of one member. The
same phases serve flat collectives (a team of all ranks) and hierarchical ones (a host, or one accelerator per
building). ``parts[k]`` are the blocks that member k owns: it ends a reduce-scatter with them, and begins an all-gather
with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from scaleacross.schedules.collective.transfer import Steps

Parts = Sequence[Sequence[int]]


class Team(NamedTuple):
    """Ranks that exchange messages in one phase.

    Attributes:
        members: ranks; their order is the ring order, and defines distances for algorithms that double or halve them.
        contributors: [member] -> ranks whose contributions it has summed when the phase begins, as bits.
    """

    members: Sequence[int]
    contributors: Sequence[int]

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.members)

    @property
    def total(self) -> int:
        """Union of the contributors of all members, as bits."""
        return self.sum_of(range(self.size))

    def sum_of(self, members: Iterable[int]) -> int:
        """Return the union of the contributors of several members, as bits."""
        total = 0
        for member in members:
            total |= self.contributors[member]
        return total


class Phases(NamedTuple):
    """An algorithm: its steps for one member (the second argument) of a team."""

    reduce_scatter: Callable[[Team, int, Parts], Steps]
    all_gather: Callable[[Team, int, Parts], Steps]


def everybody(num_ranks: int, order: Sequence[int] | None = None) -> Team:
    """Return a team of all ranks, each with its own contribution, in rank order or in ``order``."""
    members = range(num_ranks) if order is None else order
    return Team(members, [1 << rank for rank in members])


def blocks_of(parts: Iterable[Sequence[int]]) -> Sequence[int]:
    """Return the blocks of several parts, in order."""
    return tuple(chain.from_iterable(parts))
