"""Bruck's all-gather: ⌈log2 n⌉ steps for any n; member i fetches from i + 2^k what that member holds, as far as it is missing.

Source: Bruck et al. (1997).
"""

from __future__ import annotations

from scaleacross.schedules.collective.team import Parts, Team, blocks_of
from scaleacross.schedules.collective.transfer import Steps, recv, send


def all_gather(team: Team, me: int, parts: Parts) -> Steps:
    """Parts me … me + held − 1 are there; the next ``moved`` come from the member that is ``held`` further on."""
    n, held = team.size, 1
    while held < n:
        moved = min(held, n - held)
        yield (
            send(team.members[(me - held) % n], blocks_of(parts[(me + k) % n] for k in range(moved))),
            recv(team.members[(me + held) % n], blocks_of(parts[(me + held + k) % n] for k in range(moved))),
        )
        held += moved
