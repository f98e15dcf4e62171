"""All-to-all algorithms: block s·n + d is sent from rank s to rank d. Block sizes may differ (all-to-all-v).

* direct     every pair at once
* pairwise   n−1 steps, in step k rank i sends to i + k and receives from i − k: one message in flight per rank
* two-level  within a building, rank j collects the blocks for rank j of the other buildings; then one message per pair
             of counterparts crosses: K−1 messages between buildings per rank instead of (K−1)·g, with the same bytes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaleacross.schedules.collective.transfer import Steps, Transfer, recv, send


def direct(num_ranks: int, rank: int) -> Steps:
    """Yield one step with every message of a rank."""
    others = [(rank + distance) % num_ranks for distance in range(1, num_ranks)]
    yield (
        *(send(other, (rank * num_ranks + other,)) for other in others),
        *(recv(other, (other * num_ranks + rank,)) for other in others),
    )


def direct_sends(num_ranks: int, source: int, destination: int) -> Iterable[Transfer]:
    """Return the only message from ``source`` to ``destination``, the same in the direct and the pairwise algorithm."""
    return (send(destination, (source * num_ranks + destination,)),) if source != destination else ()


def pairwise(num_ranks: int, rank: int) -> Steps:
    """Yield the steps of a rank, one permutation of all ranks each."""
    for distance in range(1, num_ranks):
        to, source = (rank + distance) % num_ranks, (rank - distance) % num_ranks
        yield send(to, (rank * num_ranks + to,)), recv(source, (source * num_ranks + rank,))


def two_level(buildings: Sequence[Sequence[int]], rank: int) -> Steps:
    """Yield the steps of a rank: first among the ranks of its building, then among counterparts.

    Rank j of a building of g ranks serves the ranks j, j + g, … of every other building. It sends all blocks that it
    collected for a rank in one message.
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
    """Return ``near`` and the ranks of other buildings that it serves for its own."""
    return [near, *(d for building in others for d in building[home.index(near) :: len(home)])]
