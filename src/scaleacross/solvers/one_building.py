"""The job in one building alone: an incumbent of the search over all buildings, and a measure of what the others add.

Placements over thin links take longest to evaluate, and one building alone may be the best of them. A search there
takes a second or two, and ends at once where its bounds exceed the incumbent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from scaleacross.solvers.bounds import fastest_building
from scaleacross.solvers.joint import search
from scaleacross.solvers.place_parallelism import Placer
from scaleacross.solvers.pools import AcceleratorPool
from scaleacross.solvers.search_state import Placed, Search
from scaleacross.solvers.work_limit import another
from scaleacross.spec.topology import Region, Topology
from scaleacross.workloads.problem import Problem

LONGEST_S: Final = 10.0
SHARE: Final = 0.2
"""Share of the rest of a limit in seconds that the search for this incumbent may use: a choice."""
LEAST_S: Final = 1.0
"""At least this many seconds of that rest, since short limits are for any good plan."""
ENOUGH_GAP: Final = 0.02
MANY_CANDIDATES: Final = 10_000_000
"""More candidates than this make the search in one building take several seconds: a choice.

Then that search is left out, unless the limit ended the search over all. Larger full spaces begin with ``quick_space``.
"""

PlacerOn = Callable[[Problem, AcceleratorPool], Placer]


class OneBuilding(NamedTuple):
    """The search in one building, with its name."""

    name: str
    problem: Problem
    found: Search


@dataclass
class InOneBuilding:
    """Searches the building that computes fastest, and remembers the outcome within one search over all buildings.

    Attributes:
        placer_on: makes the placer of a pool for a problem; None: the placer for step time.
    """

    placer_on: PlacerOn | None = None
    _known: OneBuilding | None = field(init=False, default=None)

    def probe(self, state: Search) -> None:
        """Look for an incumbent in one building, if it may be faster than the samples of the search."""
        if state.num_candidates <= MANY_CANDIDATES:
            one = self._search(state, SHARE, state.incumbent_s)
            self._known = one if one is not None and one.found.best is not None else None

    def of(self, state: Search) -> OneBuilding | None:
        """The search in one building, once the search over all has ended; None if there is one or it takes too long."""
        known = _fastest_in(state, fastest_building(state.problem).name)
        if self._known is None and (state.num_candidates <= MANY_CANDIDATES or state.out_of_time):
            self._known = self._search(state, 1.0, np.inf if known is None else known.step_s)
        if self._known is not None and known is not None and known.step_s <= self._known.found.incumbent_s:
            self._known.found.best = known  # the search in one building may have ended before it found this
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
    """The fastest candidate that the whole search has placed inside one building; None if there is none."""
    inside = (placed for placed in state.remembered if {name for name, _ in placed.placement.fill} == {building})
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
    """Search another problem for ``share`` of the time left to ``state``, which then remembers the best plan found.

    Args:
        what: the problem in a word or two, for progress reports.
        below_s: only plans faster than this are looked for.
        longest_s: upper limit in seconds.
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
