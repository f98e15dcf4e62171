"""Shares of rows in an HBM cache: chosen per table, kept if the job states them, and equal in all output files."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from scaleacross.api import plan_recommendation
from scaleacross.api.recommendation import evaluate_recommendation
from scaleacross.catalogue import load_recommendation_job
from scaleacross.cost_models.embedding.options import busiest, fits
from scaleacross.cost_models.embedding.problem import embedding_problem
from scaleacross.emitters.embedding_launch import launch_config
from scaleacross.emitters.torchrec import render
from scaleacross.errors import InputError, VerificationError
from scaleacross.report.recommendation import recommendation_summary
from scaleacross.solvers.embeddings.baselines import RULES
from scaleacross.solvers.embeddings.bound import Relaxation
from scaleacross.solvers.embeddings.choices import alike_tables
from scaleacross.solvers.embeddings.level import level_plan
from scaleacross.spec.recommendation import CACHE_FRACTIONS, RecommendationPlan
from scaleacross.verification.embeddings import verify_recommendation

JOB: dict[str, Any] = {
    "name": "large",
    "workload": {
        "name": "half-a-trillion",
        "family": "dlrm",
        "num_dense_features": 8,
        "bottom_mlp": [64, 64],
        "top_mlp": [64, 1],
        "interaction": "cat",
        "locality": {"kind": "power_law", "exponent": 1.05},
        "tables": [{"name": "huge", "num_tables": 24, "rows": 200_000_000, "dimension": 256, "pooling": 20}],
    },
    "topology": "zionex_128",
    "num_accelerators": 16,
    "global_batch_samples": 8192,
    "table_precision": "fp16",
    "exchange_precision": "fp16",
}
"""Tables of 2,300 GiB over 16 ranks with 470 GiB of HBM and 2,800 GiB of host memory."""


@cache
def planned(*shares: float) -> RecommendationPlan:
    """The plan before any timed search, with the shares that the job states."""
    fields = {"cache_fraction": list(shares)} if shares else {}
    return plan_recommendation(load_recommendation_job({**JOB, **fields})[0], time_limit_s=0, incumbents=())


def test_what_a_list_repeats_is_allowed_once() -> None:
    repeated = {key: [value, value] for key, value in (("cache_fraction", 0.1), ("shardings", "row_wise"))}
    job = load_recommendation_job({**JOB, **repeated, "kernels": ["fused_uvm_caching"] * 2})[0]
    assert (job.cache_fraction, job.shardings, job.kernels) == ((0.1,), ("row_wise",), ("fused_uvm_caching",))
    plan = plan_recommendation(job, time_limit_s=0, incumbents=())
    assert {one.cache_fraction for one in plan.decision.tables} == {0.1}


def test_no_stated_share_is_faster_than_the_chosen_ones() -> None:
    chosen = planned()
    assert chosen.job.cache_fraction == CACHE_FRACTIONS
    stated = {share: planned(share).cost.step_s for share in CACHE_FRACTIONS}
    assert chosen.cost.step_s <= min(stated.values()) < 0.8 * stated[0.2]
    shares = {one.cache_fraction for one in chosen.decision.tables if one.kernel == "fused_uvm_caching"}
    assert shares and shares <= set(CACHE_FRACTIONS)


def test_bound_holds_over_all_shares() -> None:
    whole = planned()
    for share in CACHE_FRACTIONS:
        assert whole.report.bound_s <= planned(share).report.objective_s
        assert whole.report.bound_s <= planned(share).report.bound_s * (1 + 1e-6)


def test_stated_share_is_kept_and_others_refused() -> None:
    plan = planned(0.05)
    assert {one.cache_fraction for one in plan.decision.tables} <= {0.05, None}
    job = plan.job.model_copy(update={"cache_fraction": (0.1,)})
    with pytest.raises(VerificationError, match=r"a cache of 0\.05 .* is not among its options"):
        verify_recommendation(plan.model_copy(update={"job": job}))


def test_all_that_is_written_says_the_chosen_share() -> None:
    plan = planned()
    shares = [one.cache_fraction for one in plan.decision.tables]
    written = json.loads(render(plan)["torchrec/sharding_plan.json"])["tables"].values()
    assert [one["cache_load_factor"] for one in written] == shares
    embedding = launch_config(plan).embedding
    assert embedding is not None
    assert [one.cache_fraction for one in embedding.tables] == shares
    line = dict(recommendation_summary(plan).facts)["caches"]
    assert all(f"{share:g} of the rows of" in line for share in set(shares) if share is not None)


def test_older_plan_and_decision_without_a_share() -> None:
    plan = planned(0.05)
    older = plan.model_dump(mode="json")
    older["job"]["cache_fraction"] = 0.05
    for one in older["decision"]["tables"]:
        del one["cache_fraction"]
    assert RecommendationPlan.model_validate(older) == plan
    bare = tuple(one.model_copy(update={"cache_fraction": None}) for one in plan.decision.tables)
    decision = plan.decision.model_copy(update={"tables": bare})
    assert evaluate_recommendation(plan.job, decision).decision.tables == plan.decision.tables
    with pytest.raises(InputError, match="states no cache_fraction, and the job allows 5"):
        evaluate_recommendation(planned().job, decision)


def test_rule_of_torchrec_keeps_to_its_share() -> None:
    job, model, topology = load_recommendation_job({**JOB, "cost_model": "torchrec", "cache_fraction": [0.05, 0.3]})
    problem = embedding_problem(job, model, topology).sharding
    found = RULES["torchrec"].decide(problem, problem, 1.0).assignment
    assert found is not None
    used = {options[index].cache_fraction for options, index in zip(problem.options, found.option, strict=True)}
    assert used <= {0.3, None}


def test_equal_ranks_fit_and_close_options_cost_no_plan() -> None:
    problem = embedding_problem(*load_recommendation_job(JOB)).sharding
    groups = alike_tables(problem)
    plan = level_plan(problem, groups)
    assert plan is not None and fits(problem, plan)
    relaxation, reached_s = Relaxation(groups, problem.fleet), busiest(problem, plan)
    kept = relaxation.within(reached_s)
    for index, _ in groups[0].options:
        least_s = _least_with(relaxation, index, reached_s)
        assert (0, index) in kept or least_s is None or least_s >= reached_s * (1 - 1e-5)


def _least_with(relaxation: Relaxation, index: int, limit_s: float) -> float | None:
    """Least seconds of the program in which at least one table takes an option."""
    places = [at for at, place in enumerate(relaxation.places) if place.option == index]
    for at in places:
        relaxation._counts[at].SetLb(1 / len(places))
    solved = relaxation.solve(limit_s)
    for at in places:
        relaxation._counts[at].SetLb(0)
    return None if solved is None else solved[0]
