"""An incumbent of the quick space, where the full one is too large: whoever asks for more must not get a slower plan.

In billions of candidates the blocks that a limit leaves time for may hold nothing as good as the quick space has.
"""

from __future__ import annotations

from typing import Final

from scaleacross.solvers.one_building import MANY_CANDIDATES, PlacerOn, searched_within
from scaleacross.solvers.search_state import Search
from scaleacross.spec.job import Job
from scaleacross.workloads.problem import Problem
from scaleacross.workloads.space import full_space

SHARE: Final = 0.4
"""Of what is left of a limit in seconds that the quick space may take: a choice."""


def probe(state: Search, placer_on: PlacerOn | None = None) -> None:
    """Search what the quick space has of a full one of more than ``MANY_CANDIDATES``."""
    problem = state.problem
    if problem.job.space == "full" and state.num_candidates > MANY_CANDIDATES and not state.past_limit:
        quick = Problem(quick_of(problem), problem.workload, problem.topology, problem.profile)
        searched_within(state, quick, "quick space", SHARE, placer_on, state.incumbent_s)


def quick_of(problem: Problem) -> Job:
    """The job with the values alone that a quick space has of every list; a list that has none of them stays."""
    changed = {}
    for name in full_space(problem.job, problem.profile, problem.topology):
        values, default = getattr(problem.job, name), Job.model_fields[name].default
        changed[name] = tuple(value for value in values if value in default) or values
    return problem.job.model_copy(update=changed)
