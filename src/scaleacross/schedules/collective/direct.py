"""Direct algorithms: every member sends to every other at once. One step of latency, n−1 messages per member.

Peers are listed from the next member onwards, so that members have different first targets.
"""

from __future__ import annotations

from scaleacross.schedules.collective.team import Parts, Team
from scaleacross.schedules.collective.transfer import Operation, Steps, Transfer, recv, recv_reduce, send


def reduce_scatter(team: Team, me: int, parts: Parts) -> Steps:
    """Yield one member's step: it sends every part to its owner and adds arrivals in the order of members after it."""
    others = [(me + distance) % team.size for distance in range(1, team.size)]
    mine = team.contributors[me]
    yield (
        *(send(team.members[other], parts[other], mine) for other in others),
        *(recv_reduce(team.members[other], parts[me], team.contributors[other]) for other in others),
    )


def all_gather(team: Team, me: int, parts: Parts) -> Steps:
    """Yield one member's step: it sends its part to all others."""
    others = [(me + distance) % team.size for distance in range(1, team.size)]
    yield (
        *(send(team.members[other], parts[me]) for other in others),
        *(recv(team.members[other], parts[other]) for other in others),
    )


def sends(operation: Operation, source: int, destination: int) -> list[Transfer]:
    """Return the messages from one rank of a flat group to another, in order. Arguments are ranks, not members."""
    reduced = [send(destination, (destination,), 1 << source)] if operation is not Operation.ALL_GATHER else []
    gathered = [send(destination, (source,))] if operation is not Operation.REDUCE_SCATTER else []
    return reduced + gathered if source != destination else []
