"""Failure rates of a topology: a recommendation plan says that it does not count them."""

from __future__ import annotations

from typing import Any

import pytest

from scaleacross.api import plan_recommendation
from scaleacross.api.recommendation import evaluate_recommendation
from scaleacross.catalogue import load_recommendation_job
from scaleacross.report.recommendation import recommendation_summary

JOB: dict[str, Any] = {
    "name": "small",
    "workload": "synthetic-tiny",
    "topology": "zionex_128",
    "num_accelerators": 8,
    "global_batch_samples": 8192,
}


@pytest.mark.parametrize("overrides", [[], ["topology.reliability.published=rsc-1"]])
def test_stated_rates_are_named(overrides: list[str]) -> None:
    job = load_recommendation_job(JOB, overrides)[0]
    plan = plan_recommendation(job, time_limit_s=0, incumbents=())
    again = evaluate_recommendation(job, plan.decision)
    for one in (plan, again):
        said = [note for note in one.report.notes if "failure rates of the topology" in note]
        shown = dict(recommendation_summary(one).facts).get("failures")
        assert len(said) == len(overrides)
        assert str(shown) == (said[0] if said else "None")
