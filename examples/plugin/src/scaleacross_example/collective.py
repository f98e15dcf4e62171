"""The ring the other way round: every member sends to the one before it."""

from scaleacross.schedules.collective import ring
from scaleacross.schedules.collective.team import Parts, Phases, Team
from scaleacross.schedules.collective.transfer import Steps


def reduce_scatter(team: Team, me: int, parts: Parts) -> Steps:
    """Member ``me`` ends with the sum of part ``me``."""
    return ring.reduce_scatter(*_mirrored(team, me, parts))


def all_gather(team: Team, me: int, parts: Parts) -> Steps:
    """Member ``me`` begins with part ``me`` and ends with all."""
    return ring.all_gather(*_mirrored(team, me, parts))


def _mirrored(team: Team, me: int, parts: Parts) -> tuple[Team, int, Parts]:
    return Team(team.members[::-1], team.contributors[::-1]), team.size - 1 - me, parts[::-1]


PHASES = Phases(reduce_scatter, all_gather)
