"""Ring algorithms: every member sends to the next and receives from the previous one.

n members, S bytes: n−1 steps and (n−1)/n·S bytes per member for reduce-scatter and for all-gather. Source: Patarasuk and
Yuan (2009). Both directions at once halve the steps of an all-gather: ⌈(n−1)/2⌉.
"""

from __future__ import annotations

from scaleacross.schedules.collective.team import Parts, Team
from scaleacross.schedules.collective.transfer import Steps, recv, recv_reduce, send


def reduce_scatter(team: Team, me: int, parts: Parts) -> Steps:
    """Yield one member's steps: it sends part me−1, then adds to each arriving part and passes it on, up to its own."""
    n = team.size
    after, before = team.members[(me + 1) % n], team.members[me - 1]
    held = team.contributors[me]
    arriving = 0
    for step in range(n - 1):
        arriving |= team.contributors[(me - 1 - step) % n]
        yield (
            send(after, parts[(me - 1 - step) % n], held),
            recv_reduce(before, parts[(me - 2 - step) % n], arriving),
        )
        held = team.contributors[me] | arriving


def all_gather(team: Team, me: int, parts: Parts) -> Steps:
    """Yield one member's steps: it sends its own part first, then passes on each part that arrives."""
    n = team.size
    after, before = team.members[(me + 1) % n], team.members[me - 1]
    for step in range(n - 1):
        yield send(after, parts[(me - step) % n]), recv(before, parts[(me - 1 - step) % n])


def bidirectional_all_gather(team: Team, me: int, parts: Parts) -> Steps:
    """Yield one member's steps in both directions at once: each part is sent half of the way round on either side."""
    n = team.size
    after, before = team.members[(me + 1) % n], team.members[me - 1]
    for step in range(n // 2):
        forward = send(after, parts[(me - step) % n]), recv(before, parts[(me - 1 - step) % n])
        backward = send(before, parts[(me + step) % n]), recv(after, parts[(me + 1 + step) % n])
        yield forward + backward if 2 * step + 2 < n else forward
