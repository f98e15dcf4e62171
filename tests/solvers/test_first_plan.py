"""The search returns a first plan even if its time limit passes before any placement."""

from __future__ import annotations

from typing import Any

from scaleacross.api.problems import problem_of
from scaleacross.solvers.every_placement import placer_on
from scaleacross.solvers.joint import FIRST_OF_GOAL, search
from scaleacross.solvers.place_parallelism import Placer
from scaleacross.solvers.pools import AcceleratorPool


def test_a_goal_that_refuses_every_candidate_ends_after_its_tries() -> None:
    """The first-plan search stops after a fixed number of tries if no candidate meets the job's limit.

    Earlier it placed the whole space and never read the clock.
    """
    problem, tried = problem_of("llama3_8b_one_building", ()), list[int]()

    class Refusing(Placer):
        def place(self, *_: Any, **__: Any) -> None:
            tried.append(1)
            assert len(tried) <= FIRST_OF_GOAL

    def refusing_on(pool: AcceleratorPool) -> Placer:
        return Refusing(pool, placer_on(pool, problem.job, problem.profile).bounder)

    state = search(problem, time_limit_s=0.0, placer_on=refusing_on)
    assert state.best is None and state.out_of_time
    assert len(tried) == FIRST_OF_GOAL
