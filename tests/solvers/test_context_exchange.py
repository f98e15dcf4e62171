"""The exchange of context parallelism is a decision of the search: as good as brute force, bounded, legal and
simulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import scaleacross as sa
from cases import each
from instances import mixed_job, plain_job, random_job
from oracles.brute_force import equals_brute_force
from scaleacross.cost_models.candidates import ANY_EXCHANGE, concatenate
from scaleacross.errors import VerificationError
from scaleacross.solvers.joint import search
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.job import DegreeRequest, Job
from scaleacross.spec.parallelism import CONTEXT_EXCHANGES, ContextExchange
from scaleacross.verification import verify
from scaleacross.workloads.problem import problem_of

EVERY = list(CONTEXT_EXCHANGES)
PINNED: dict[str, Any] = {
    "degrees": {"tp": 1, "cp": 2, "pp": 1, "dp_replicate": 1, "dp_shard": 4},
    "schedules": ["1F1B"],
    "micro_batch_sequences": 1,
    "recompute": "none",
    "shard": "optimizer",
    "context_exchange": EVERY,
}


def with_context(job: Job) -> Job:
    """The job with context parallelism, all exchanges, one pipeline schedule and one recompute policy."""
    degrees = job.degrees.model_copy(update={"cp": (2, 4)})
    changes = {"degrees": degrees, "sequence_length": 8192, "num_accelerators": None, "context_exchange": tuple(EVERY)}
    changes |= {"schedules": ("1F1B",), "num_chunks": (1,), "micro_batch_sequences": (1,), "recompute": ("none",)}
    return job.model_copy(update=changes)


@each("seed", (71,), (4, 6, 10), size=1)
def test_the_search_equals_brute_force(seed: int) -> None:
    equals_brute_force(problem_of(with_context(random_job(seed))))


@pytest.mark.heavy
@each("seed", (6,), (2,), size=1)
def test_so_does_that_of_two_types(seed: int) -> None:
    equals_brute_force(problem_of(with_context(mixed_job(seed))))


@pytest.mark.heavy
@pytest.mark.parametrize(("seed", "chosen"), [(10, "ring"), (4, "gather"), (6, "all_to_all")])
def test_each_exchange_is_the_best_somewhere(seed: int, chosen: str) -> None:
    """Each exchange is the best in some job, and the plan gets slower if the job forbids it."""
    problem = problem_of(with_context(random_job(seed)))
    found = search(problem, time_limit_s=600, gap_tolerance=0.0)
    assert found.best is not None and found.best.candidates.decision(0).context_exchange == chosen
    others = tuple(kind for kind in EVERY if kind != chosen)
    forbidden = replace(problem, job=problem.job.model_copy(update={"context_exchange": others}))
    without = search(forbidden, time_limit_s=600, gap_tolerance=0.0)
    assert without.best is not None and without.best.step_s > found.best.step_s


def test_partial_candidates_leave_it_open_and_are_bounds_all_the_same() -> None:
    job = plain_job(1, **PINNED | {"degrees": {"cp": [1, 2, 4]}})
    problem = problem_of(job)
    space, refusals = SearchSpace(problem.job, problem.profile, 8, 8), Refusals()
    partials = list(space.partials(refusals))
    for partial in partials:
        assert ((partial.context == ANY_EXCHANGE) == ((partial.cp > 1) & (partial.cp_inner == 1))).all()
        rows = space.expand(partial, Refusals())
        assert len(rows) == space.num_candidates(partial).sum()
        assert set(rows.context[rows.cp == 1].tolist()) <= {0}
        assert set(rows.context[rows.cp == 2].tolist()) <= {0, 1, 2}, "a ring of two ranks has no inner groups"
    every = concatenate([space.expand(partial, Refusals()) for partial in partials])
    two_levels = every.context == CONTEXT_EXCHANGES.index("all_to_all_ring")
    assert two_levels.any() and (two_levels == (every.cp_inner > 1)).all()
    assert (every.cp[two_levels] == 4).all() and (4 % (every.tp * every.cp_inner)[two_levels] == 0).all()
    swapped = every.context == CONTEXT_EXCHANGES.index("all_to_all")
    assert swapped.any() and (4 % (every.tp * every.cp)[swapped] == 0).all()  # four heads


@pytest.mark.parametrize("exchange", EVERY)
def test_the_simulation_agrees(exchange: ContextExchange) -> None:
    degrees = PINNED["degrees"] | ({"cp": 4, "dp_shard": 2} if exchange == "all_to_all_ring" else {})
    job = plain_job(2, **PINNED | {"context_exchange": exchange, "degrees": degrees})
    plan = sa.plan(job, gap_tolerance=0.0, alternatives=False)
    assert plan.decision.context_exchange == exchange
    assert plan.degrees.cp_inner == (2 if exchange == "all_to_all_ring" else 1)
    assert plan.cost.exposed_s["cp"] > 0 or exchange == "ring"
    assert sa.simulate(plan).step_s == pytest.approx(plan.estimated.step_s, rel=0.05)
    verify(plan)


def test_verification_refuses_heads_that_do_not_divide() -> None:
    plan = sa.plan(plain_job(2, **PINNED), gap_tolerance=0.0, alternatives=False)
    degrees = plan.decision.degrees.model_copy(update={"cp": 8, "dp_shard": 1})
    wrong = plan.decision.model_copy(update={"degrees": degrees, "context_exchange": "all_to_all"})
    job = plan.job.model_copy(update={"degrees": DegreeRequest(), "sequence_length": 16384})
    with pytest.raises(VerificationError, match=r"tp · cp = 8 does not divide the heads"):
        verify(plan.model_copy(update={"job": job, "decision": wrong}))
    told = plan.decision.model_copy(update={"context_exchange": "gather"})
    job = plan.job.model_copy(update={"context_exchange": ("ring",)})
    with pytest.raises(VerificationError, match="the job allows context_exchange ring; the decision has gather"):
        verify(plan.model_copy(update={"job": job, "decision": told}))


def test_heads_inside_and_keys_outside_win_where_neither_reaches_alone() -> None:
    """Heads inside a host and keys outside are faster than either alone.

    The model has four heads on cp 8 over two hosts. A ring of eight needs more calls, and an all-to-all of eight has
    too few heads.
    """
    degrees = {"tp": 1, "cp": 8, "pp": 1, "dp_replicate": 1, "dp_shard": 1}
    plan = sa.plan(plain_job(2, **PINNED | {"degrees": degrees, "sequence_length": 8192}), gap_tolerance=0.0)
    assert plan.decision.context_exchange == "all_to_all_ring" and plan.degrees.cp_inner == 4
    assert {one.group_size for one in plan.collectives if "keys" in one.name} == {4, 2}
    only = plain_job(2, **PINNED | {"degrees": degrees | {"cp_inner": 2}, "sequence_length": 8192})
    assert sa.plan(only, gap_tolerance=0.0, alternatives=False).cost.step_s > plan.cost.step_s
    told = plan.decision.model_copy(update={"context_exchange": "ring"})
    with pytest.raises(VerificationError, match="cp_inner 4 with context_exchange ring"):
        verify(plan.model_copy(update={"decision": told}))
    wide = plan.decision.degrees.model_copy(update={"tp": 2, "cp": 4, "cp_inner": 2, "dp_shard": 1})
    assert str(wide).startswith("tp 2 · cp 4 (2 × 2)")
