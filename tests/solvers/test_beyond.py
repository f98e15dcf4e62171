"""Step times over estimates are learned per pipeline and applied to other candidates with the same pipeline."""

from __future__ import annotations

import numpy as np
import pytest

from instances import plain_job, plain_topology
from scaleacross.cost_models.candidates import Candidates
from scaleacross.solvers import pool_blocks
from scaleacross.solvers.beyond import COLUMNS, Beyond, pipelines_of
from scaleacross.solvers.candidates import Bounder
from scaleacross.solvers.place_parallelism import Placer
from scaleacross.solvers.pool_blocks import Partials
from scaleacross.solvers.pools import pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.solvers.search_state import Search
from scaleacross.workloads.problem import problem_of


def candidates() -> Candidates:
    problem = problem_of(plain_job(topology=plain_topology(1, 2)))
    space = SearchSpace(problem.job, problem.profile, problem.topology.num_accelerators, 1)
    return next(space.batches(Refusals()))


def test_before_anything_is_placed_estimates_are_expected() -> None:
    rows = candidates()
    estimates_s = np.linspace(1.0, 2.0, len(rows))
    assert np.array_equal(Beyond().expected_s(rows, estimates_s), estimates_s)


def test_one_candidate_moves_all_of_its_pipeline_and_no_other() -> None:
    rows, beyond = candidates(), Beyond()
    pipelines = pipelines_of(rows)
    assert 1 < len(set(pipelines)) < len(rows)
    beyond.learn(pipelines[0], 2.0, 3.0)
    ratios = beyond.expected_s(rows, np.full(len(rows), 4.0)) / 4.0
    assert ratios.tolist() == [1.5 if one == pipelines[0] else 1.0 for one in pipelines]
    for name in COLUMNS:
        same = getattr(rows, name)[ratios == 1.5]
        assert len(set(same.tolist())) == 1


def test_the_last_one_counts() -> None:
    beyond = Beyond()
    beyond.learn((4, 0, 1, 1), 1.0, 3.0)
    beyond.learn((4, 0, 1, 1), 1.0, 1.2)
    assert beyond.of((4, 0, 1, 1)) == pytest.approx(1.2)


def test_blocks_of_which_nothing_is_expected_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are ordered by their estimates until those of the first block are expected to be too slow.

    Blocks without any expectation then come first. If all pipelines have one, expectations decide the order.
    """
    rows, beyond = candidates(), Beyond()
    kinds = dict.fromkeys(pipelines_of(rows))
    first = [row for row, one in enumerate(pipelines_of(rows)) if one == next(iter(kinds))]
    estimates_s = np.full(len(rows), 2.0)
    estimates_s[first] = 1.0
    partials = Partials(rows, estimates_s, np.ones(len(rows), dtype=np.int64), estimates_s)
    monkeypatch.setattr(pool_blocks, "PARTIAL_BLOCK", len(first))

    def leading() -> set[int]:
        return set(partials.in_turn(beyond, 3.0)[: len(first)].tolist())

    assert leading() == set(first)
    beyond.learn(next(iter(kinds)), 1.0, 3.5)
    assert leading().isdisjoint(first)
    for one in kinds:
        beyond.learn(one, 1.0, 3.5)
    assert leading() == set(first)


def test_only_candidates_that_got_step_times_count_as_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only candidates that are timed count against the number to try.

    Every third candidate is timed and two are wanted, so six are visited, in order of their estimates.
    """
    problem = problem_of(plain_job(topology=plain_topology(1, 2)))
    state = Search(problem, 60.0, 0, 0.0, lambda _: None)
    (pool,) = pools(problem.topology)
    placer = Placer(pool, Bounder.on(pool, problem.job, problem.profile))
    block, looked_at = placer.bounder.coarse(candidates()), list[int]()

    def place(self: Search, priced: object, row: int, *_: object, **__: object) -> None:
        looked_at.append(row)
        self.num_timed += 3 * (len(looked_at) % 3 == 0)

    monkeypatch.setattr(Search, "place", place)
    pool_blocks._place_best(state, block, placer, 2, lambda: np.inf)
    assert len(block.bound_s) > 6
    assert block.estimate_s[looked_at].tolist() == sorted(block.estimate_s)[:6]
