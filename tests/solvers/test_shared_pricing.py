"""Work that candidates share is computed once.

Every candidate has the step time that it has alone, on every schedule.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from cases import each
from instances import instance
from scaleacross.cost_models.candidates import concatenate
from scaleacross.cost_models.pipeline.timed_bounds import folded
from scaleacross.cost_models.step import hbm_lost_s
from scaleacross.cost_models.work import Work, work_of
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.pools import pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.parallelism import SCHEDULE_NAMES
from scaleacross.workloads.problem import problem_of

EVERY = tuple(name for name in SCHEDULE_NAMES if name != "DualPipe")


@each("seed", (4,), (13, 41), size=1)
def test_candidates_together_cost_what_each_costs_alone(seed: int) -> None:
    drawn = instance(seed)
    problem = problem_of(drawn.job.model_copy(update={"schedules": EVERY, "num_chunks": (1, 2)}))
    pool = pools(problem.topology)[0]
    bounder = Bounder.on(pool, problem.job, problem.profile)
    space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
    rows = concatenate(list(space.batches(Refusals())))
    work = work_of(problem.profile, problem.job, pool.accelerators, rows)
    shared = bounder.work(rows)
    for column in fields(Work):
        assert getattr(shared, column.name).tolist() == getattr(work, column.name).tolist(), column.name
    some = np.arange(0, len(rows), 7)
    together = bounder.tight(bounder.coarse(rows)).take(some)
    alone = [bounder.tight(bounder.coarse(rows.take(np.array([row])))) for row in some]
    assert together.bound_s == pytest.approx(np.concatenate([one.bound_s for one in alone]), rel=1e-12)
    free_s = bounder.partial_free_s(rows.take(some))
    by_state_s = together.work.optimizer_s + hbm_lost_s(bounder.volumes(together.candidates, together.work))
    assert free_s == pytest.approx(together.free_s - by_state_s, rel=1e-9)
    assert folded(rows.schedule).any() and not folded(rows.schedule).all()
