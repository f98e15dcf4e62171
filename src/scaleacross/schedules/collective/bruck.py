"""Bruck's all-gather: ⌈log2 n⌉ steps for any n. In step k member i receives from i + 2^k the blocks that it lacks.

Source: Bruck et al. (1997).
"""

from __future__ import annotations

from scaleacross.schedules.collective.team import Parts, Team, blocks_of
from scaleacross.schedules.collective.transfer import Steps, recv, send


def all_gather(team: Team, me: int, parts: Parts) -> Steps:
    """Yield one member's steps: it holds parts me … me + held − 1 and receives ``moved`` more from member me + held."""
    n, held = team.size, 1
    while held < n:
        moved = min(held, n - held)
        yield (
            send(team.members[(me - held) % n], blocks_of(parts[(me + k) % n] for k in range(moved))),
            recv(team.members[(me + held) % n], blocks_of(parts[(me + held + k) % n] for k in range(moved))),
        )
        held += moved
