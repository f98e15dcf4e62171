"""Policies are chosen last: the bound of a block is below each of its candidates, and the optimum stays the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from cases import each
from instances import computing_job, mixed_job, random_job
from scaleacross.cost_models.candidates import Candidates, Floats, concatenate
from scaleacross.errors import InfeasibleError
from scaleacross.solvers import open_policies
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.infeasible import explain
from scaleacross.solvers.joint import search
from scaleacross.solvers.mixed_pools import bounder_on
from scaleacross.solvers.open_policies import closed, narrowed, stands_for
from scaleacross.solvers.pools import pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.job import Job
from scaleacross.spec.progress import Progress
from scaleacross.workloads.problem import Problem, problem_of
from solvers.test_bounds_of_straddling_stages import straddling_job
from solvers.test_offload_and_shards import HOST, widened, with_host

SLACK = 1 + 1e-12
BLOCKS = 24


def varied(seed: int) -> Problem:
    """A job of any kind with every recompute policy of its model, offload shares and host speeds."""
    rng = random.Random(f"open policies {seed}")
    job = rng.choice((random_job, mixed_job, computing_job, straddling_job))(seed)
    host = HOST | {"link_bandwidth_gbyte_per_s": rng.choice([1, 5, 50]), "memory_gib": rng.choice([0.1, 1, 16])}
    data = job.model_dump(mode="json", exclude_unset=True)
    data |= {
        "recompute": ["none", "selective", "full", "modules"],
        "experts": {"overlap_fraction": rng.choice([0.0, 0.4])},
    }
    data |= {"overlap": {"tp_fraction": rng.choice([0.0, 0.5]), "tp_reduce": rng.random() < 0.5}}
    data |= {"shard": rng.choice([["none", "optimizer"], ["parameters"], ["gradients", "parameters_once"]])}
    if rng.random() < 0.5:
        data |= {
            "schedules": rng.choice([["1F1B", "Interleaved1F1B"], ["ZBVZeroBubble", "ZBH1"]]),
            "num_chunks": [1, 2, 3],
        }
    data["degrees"] = data.get("degrees", {}) | {"dp_shard": None, "dp_replicate": None}
    shares = {"activation_offload": [0.0, rng.choice([0.25, 1.0])], "optimizer_offload": [0.0, rng.choice([0.5, 1.0])]}
    return problem_of(with_host(Job.model_validate(data), host=host, **(shares if rng.random() < 0.6 else {})))


@pytest.mark.heavy
@each("seed", (2, 4), range(150))
def test_no_bound_of_a_block_exceeds_one_of_its_candidates(seed: int) -> None:
    """No bound of a block exceeds that of its candidates, whatever the policy.

    This covers memory and every bound in seconds. Computation is also below the bound of the partial candidate.
    """
    problem, draw = varied(seed), np.random.default_rng(seed)
    for pool in pools(problem.topology):
        bounder = bounder_on(pool, problem.job, problem.profile)
        space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit, policies_open=True)
        partials = concatenate(list(space.partials(Refusals())))
        for law in (bounder.partial_needed_bytes, bounder.partial_floor_s, bounder.partial_bound_s):
            _below(space, some(partials, draw), law)
        _below(space, some(partials, draw), bounder.partial_bound_s, bounder.partial_free_s)
        rows = some(space.expand(partials, Refusals()), draw) if len(partials) else partials
        _below(space, rows, bounder.needed_bytes)
        _below(space, rows, partial(_bound_s, bounder.coarse))
        if len(rows):
            _below(
                space,
                rows.take(np.arange(min(len(rows), 8))),
                partial(_bound_s, lambda few, of=bounder: of.tight(of.coarse(few))),
            )


def some(rows: Candidates, draw: np.random.Generator) -> Candidates:
    """A few rows, at random."""
    return rows.take(draw.permutation(len(rows))[:BLOCKS])


def _bound_s(law: Callable[[Candidates], Bounded], rows: Candidates) -> Floats:
    return law(rows).bound_s


def _below(
    space: SearchSpace,
    blocks: Candidates,
    law: Callable[[Candidates], Floats],
    other: Callable[[Candidates], Floats] | None = None,
) -> None:
    """Check ``law`` of some blocks against all their candidates.

    No candidate is below its block. With ``other`` the block's value comes from ``other``.
    """
    for row in range(len(blocks)):
        block = blocks.take(np.array([row]))
        every = closed(space, block, Refusals())
        if len(every):
            least, own = (other or law)(block)[0], law(every)
            assert least <= own.min() * SLACK, (every.decision(int(own.argmin())), least, own.min())


def few(seed: int) -> Problem:
    """A problem small enough for many searches, with offload shares, with and without recomputation."""
    job = widened(seed).job
    return problem_of(job.model_copy(update={"recompute": ("none", "full")}))


@pytest.mark.heavy
@each("seed", (3, 8), range(40))
def test_a_search_that_chooses_policies_last_finds_the_same(seed: int) -> None:
    """A search that chooses policies last finds the same step time and proves its bound."""
    problem = few(seed)
    at_once = search(problem, time_limit_s=600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_policies, "MOST_AT_ONCE", 0)
        patch.setattr(open_policies, "CLOSED_TOGETHER", 64)
        later = search(problem, time_limit_s=600)
    if at_once.best is None:
        assert later.best is None
        return
    assert later.best is not None and at_once.best is not None
    assert later.best.step_s == pytest.approx(at_once.best.step_s, rel=1e-12)
    assert later.bound_s == pytest.approx(later.best.step_s, rel=1e-12)
    assert later.bound_violation_s <= 1e-12


@pytest.mark.heavy
def test_what_nobody_closed_counts_in_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are still open count in the bound.

    The clock stops the search before it closes any block, except for a first plan. The bound is below the best plan.
    """
    problem, now = few(0), [0.0]
    best = search(problem, time_limit_s=600).best
    assert best is not None
    monkeypatch.setattr(open_policies, "MOST_AT_ONCE", 0)
    monkeypatch.setattr(open_policies, "CLOSED_TOGETHER", 1)

    def tell(progress: Progress) -> None:
        now[0] = 2.0 if progress.stage == "closing" else now[0]

    found = search(problem, time_limit_s=1, clock=lambda: now[0], report=tell, gap_tolerance=0.0)
    assert found.out_of_time
    assert found.best is not None
    assert 0 < found.bound_s < found.best.step_s * SLACK
    assert found.bound_s <= best.step_s


def test_a_space_is_opened_where_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = few(0)
    pool = pools(problem.topology)[0]
    space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
    many = len(concatenate(list(space.partials(Refusals()))))
    assert not narrowed(space).policies_open
    monkeypatch.setattr(open_policies, "MOST_AT_ONCE", many - 1)
    opened = narrowed(space)
    assert opened.policies_open
    blocks = concatenate(list(opened.partials(Refusals())))
    assert (stands_for(problem.job, blocks) == len(space.policies)).all()
    assert len(closed(space, blocks, Refusals())) == many
    monkeypatch.setattr(open_policies, "MOST_AT_ONCE", 0)
    assert narrowed(space).policies_open
    one = problem.job.model_copy(
        update={"recompute": ("none",), "activation_offload": (0.0,), "optimizer_offload": (0.0,)}
    )
    assert not narrowed(SearchSpace(one, problem.profile, pool.num_accelerators, pool.unit)).policies_open


def test_a_job_without_a_plan_is_refused_without_a_search_for_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = few(0)
    data = problem.job.model_dump(mode="json")
    for region in data["topology"]["regions"]:
        for building in region["buildings"]:
            building["accelerator"]["memory_bytes"] = 17 * 2**20
    monkeypatch.setattr(open_policies, "MOST_AT_ONCE", 0)
    found = search(problem_of(Job.model_validate(data)), time_limit_s=60)
    assert found.best is None
    assert "too many to say which requirements conflict" in str(explain(found))
    assert isinstance(explain(found), InfeasibleError)
