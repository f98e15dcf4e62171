"""Effects of other memory sizes: less is never faster, and a faster plan found by an explanation is reported."""

from __future__ import annotations

import numpy as np
import pytest

from embedding_tables import random_tables, torchrec_problem
from scaleacross.cost_models.embedding.options import Assignment, busiest
from scaleacross.report.recommendation import _faster
from scaleacross.solvers.embeddings.reasons import memory_values
from scaleacross.solvers.embeddings.search import shard_embeddings


@pytest.mark.parametrize("seed", (1, 2))
def test_less_memory_is_never_faster_than_what_there_is(seed: int) -> None:
    problem = torchrec_problem(random_tables(3, seed), 4, 2)
    by_rows = [next(at for at, one in enumerate(own) if one.sharding == "row_wise") for own in problem.options]
    slow = Assignment(tuple(by_rows), (np.arange(4),) * 3)
    values, now_s = memory_values(problem, slow, limit_s=3.0)
    assert now_s < 0.99 * busiest(problem, slow)
    for one in values:
        assert one.busiest_rank_s is not None
        assert one.busiest_rank_s >= now_s if "half" in one.change else one.busiest_rank_s <= now_s


def test_best_plan_leaves_nothing_to_say() -> None:
    problem = torchrec_problem(random_tables(2, 1), 4, 2)
    best = shard_embeddings(problem, time_limit_s=20, gap_tolerance=1e-4).assignment
    assert best is not None
    values, now_s = memory_values(problem, best, limit_s=3.0)
    assert now_s == pytest.approx(busiest(problem, best), rel=2e-4) and not _faster(busiest(problem, best), now_s)
    assert len(values) == 6


def test_faster_plan_is_said() -> None:
    (said,) = _faster(3.14e-3, 3.13e-3)
    assert said.plain.startswith("a plan with a busiest rank of 3.13 ms (-0.3%) fits the memories as they are")
