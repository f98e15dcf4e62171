"""All-to-all: block s·n + d travels from rank s to rank d. Blocks may differ in size (all-to-all-v): the order is the
same.

* direct     every pair at once
* pairwise   n−1 steps, in step k rank i sends to i + k and receives from i − k: one message in flight per rank
* two-level  inside a building, rank j collects what goes to rank j of the other buildings; then one message per pair of
             counterparts crosses: K−1 far messages per rank instead of (K−1)·g, the same bytes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaleacross.schedules.collective.transfer import Steps, Transfer, recv, send


def direct(num_ranks: int, rank: int) -> Steps:
    """One step with every message."""
    others = [(rank + distance) % num_ranks for distance in range(1, num_ranks)]
    yield (
        *(send(other, (rank * num_ranks + other,)) for other in others),
        *(recv(other, (other * num_ranks + rank,)) for other in others),
    )


def direct_sends(num_ranks: int, source: int, destination: int) -> Iterable[Transfer]:
    """The one message from ``source`` to ``destination``, of the direct and of the pairwise order."""
    return (send(destination, (source * num_ranks + destination,)),) if source != destination else ()


def pairwise(num_ranks: int, rank: int) -> Steps:
    """A permutation per step."""
    for distance in range(1, num_ranks):
        to, source = (rank + distance) % num_ranks, (rank - distance) % num_ranks
        yield send(to, (rank * num_ranks + to,)), recv(source, (source * num_ranks + rank,))


def two_level(buildings: Sequence[Sequence[int]], rank: int) -> Steps:
    """First among the ranks of a building, then among counterparts.

    Rank j of a building serves the ranks j, j + g, … of every other building, g its own building's size; what it gathered for
    a rank goes there in one message.
    """
    num_ranks = sum(map(len, buildings))
    home = next(building for building in buildings if rank in building)
    mine, others = home.index(rank), [building for building in buildings if building is not home]
    neighbours = [home[(mine + distance) % len(home)] for distance in range(1, len(home))]
    served = {near: _near(home, others, near) for near in home}
    yield (
        *(send(near, [rank * num_ranks + d for d in served[near]]) for near in neighbours),
        *(recv(near, [near * num_ranks + d for d in served[rank]]) for near in neighbours),
    )
    away = [d for d in served[rank] if d not in home]
    yield (
        *(send(d, [s * num_ranks + d for s in home]) for d in away),
        *(recv(other[mine % len(other)], [s * num_ranks + rank for s in other]) for other in others),
    )


def _near(home: Sequence[int], others: Sequence[Sequence[int]], near: int) -> list[int]:
    """``near`` itself and the far ranks that it serves for its building."""
    return [near, *(d for building in others for d in building[home.index(near) :: len(home)])]
