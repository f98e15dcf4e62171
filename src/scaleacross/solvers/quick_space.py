"""An incumbent from the quick space for a search of a large full one: a larger space must not give a slower plan.

With billions of candidates, the blocks searched within a limit may contain nothing as good as the quick space does.
"""

from __future__ import annotations

from typing import Final

from scaleacross.solvers.one_building import MANY_CANDIDATES, PlacerOn, searched_within
from scaleacross.solvers.search_state import Search
from scaleacross.spec.job import Job
from scaleacross.workloads.problem import Problem
from scaleacross.workloads.space import full_space

SHARE: Final = 0.4
"""Share of the rest of a limit in seconds that the search of the quick space may use: a choice."""


def probe(state: Search, placer_on: PlacerOn | None = None) -> None:
    """Search the quick space, if the space is full and has more than ``MANY_CANDIDATES``."""
    problem = state.problem
    if problem.job.space == "full" and state.num_candidates > MANY_CANDIDATES and not state.past_limit:
        quick = Problem(quick_of(problem), problem.workload, problem.topology, problem.profile)
        searched_within(state, quick, "quick space", SHARE, placer_on, state.incumbent_s)


def quick_of(problem: Problem) -> Job:
    """The job with only the values of the quick space in every list; a list without any of them stays as it is."""
    changed = {}
    for name in full_space(problem.job, problem.profile, problem.topology):
        values, default = getattr(problem.job, name), Job.model_fields[name].default
        changed[name] = tuple(value for value in values if value in default) or values
    return problem.job.model_copy(update=changed)
