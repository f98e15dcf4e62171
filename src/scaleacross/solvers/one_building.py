"""The job in one building alone: what the others add to it, and an incumbent of the search over all of them.

Placements over thin links take longest to tell apart, and where links are thin one building alone may be the best of them. A
search there takes a second or two, and ends at once where its bounds are above what is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from scaleacross.solvers.bounds import fastest_building
from scaleacross.solvers.fleets import Fleet
from scaleacross.solvers.joint import search
from scaleacross.solvers.place_parallelism import Placer
from scaleacross.solvers.search_state import Placed, Search
from scaleacross.solvers.work_limit import another
from scaleacross.spec.topology import Region, Topology
from scaleacross.workloads.problem import Problem

LONGEST_S: Final = 10.0
SHARE: Final = 0.2
"""Of what is left of a limit in seconds that the incumbent may take: a choice."""
LEAST_S: Final = 1.0
"""Or so many seconds of it, where that is more: short limits are for any good plan."""
ENOUGH_GAP: Final = 0.02
MANY_CANDIDATES: Final = 10_000_000
"""After the samples, or the end, of a search of more than these one building takes several seconds and is not searched; but it is
where the limit ended the search. Full spaces of more begin with the quick one (``quick_space``). A choice."""

PlacerOn = Callable[[Problem, Fleet], Placer]


class OneBuilding(NamedTuple):
    """The search in the building of the name."""

    name: str
    problem: Problem
    found: Search


@dataclass
class InOneBuilding:
    """Searches the building that computes fastest, once where that finds a plan, and remembers it in the search over all.

    Attributes:
        placer_on: makes the placer of a fleet of a problem, as ``joint.search`` asks for it.
    """

    placer_on: PlacerOn | None = None
    _known: OneBuilding | None = field(init=False, default=None)

    def probe(self, state: Search) -> None:
        """An incumbent, if one building alone may be faster than the samples of the search."""
        if state.num_candidates <= MANY_CANDIDATES:
            one = self._search(state, SHARE, state.incumbent_s)
            self._known = one if one is not None and one.found.best is not None else None

    def of(self, state: Search) -> OneBuilding | None:
        """What one building alone takes, once the search has ended; None where there is no other, or that takes too long."""
        known = _fastest_in(state, fastest_building(state.problem).name)
        if self._known is None and (state.num_candidates <= MANY_CANDIDATES or state.out_of_time):
            self._known = self._search(state, 1.0, np.inf if known is None else known.step_s)
        if self._known is not None and known is not None and known.step_s <= self._known.found.incumbent_s:
            self._known.found.best = known  # this search may have ended before it came so far
        return self._known

    def _search(self, state: Search, share: float, below_s: float = np.inf) -> OneBuilding | None:
        topology = state.problem.topology
        if len(topology.buildings) < 2 or state.past_limit:
            return None
        fastest = fastest_building(state.problem)
        region = Region(name=topology.region_of(fastest.name), buildings=(fastest,))
        alone = Topology(name=topology.name, regions=(region,), provenance=topology.provenance)
        problem = Problem(state.problem.job, state.problem.workload, alone, state.problem.profile)
        found = searched_within(state, problem, "one building", share, self.placer_on, below_s, LONGEST_S)
        return OneBuilding(fastest.name, problem, found)


def _fastest_in(state: Search, building: str) -> Placed | None:
    """The fastest that the whole search has placed in one building alone."""
    inside = (placed for placed in state.pool if {name for name, _ in placed.placement.fill} == {building})
    return min(inside, key=lambda placed: placed.step_s, default=None)


def searched_within(
    state: Search,
    problem: Problem,
    what: str,
    share: float,
    placer_on: PlacerOn | None,
    below_s: float,
    longest_s: float = np.inf,
) -> Search:
    """A search of another problem inside a search, for ``share`` of what is left of its limit; it remembers the best of it.

    Args:
        what: the problem in a word or two, for the progress.
        below_s: nothing at or above this is looked for.
        longest_s: seconds at most.
    """
    limit, clock = state.time_limit_s, another(state.clock)
    if clock is None:
        left = limit - state.elapsed_s
        limit, clock = min(longest_s, max(left * share, min(left, LEAST_S))), state.clock
    found = search(
        problem,
        time_limit_s=limit,
        seed=state.seed,
        gap_tolerance=ENOUGH_GAP,
        report=lambda one: state.tell(f"{what}: {one.stage}", one.done, one.total),
        placer_on=placer_on and partial(placer_on, problem),
        clock=clock,
        stopped=state.stopped,
        below_s=below_s,
    )
    if found.best is not None:
        state.remember(found.best)
    return found
