"""Price and replay of the same plan, mechanism by mechanism: neither may know of a cost that the other does not."""

from __future__ import annotations

from typing import Any

import pytest

import scaleacross as sa
from scaleacross.catalogue import load_design_space
from scaleacross.catalogue.design_spaces import design_points
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan

WITHIN = 0.05


def point(**fields: Any) -> Job:
    """The job of the published design space with these fields, the first of several."""
    every = design_points(load_design_space("scale_across")[0])
    return next(one.job for one in every if all(one.fields[name] == value for name, value in fields.items()))


def planned(job: Job, *overrides: str) -> Plan:
    return sa.plan(job, time_limit_s=20, overrides=["schedules=1F1B", *overrides])


@pytest.mark.parametrize(
    ("model", "regions", "dp", "shard", "bucket", "calls"),
    [
        (
            "llama3.1-8b",
            3,
            4096,
            "optimizer",
            None,
            1,
        ),  # buckets of a million parameters per replica hold all of the model
        ("llama3.1-8b", 3, 4096, "optimizer", 400_000_000, 6),
        ("llama3.1-8b", 3, 4096, "optimizer", 1, 32),  # a layer each: by far the slowest
        ("llama3.1-70b", 6, 256, "parameters", None, 80),
    ],
)
def test_buckets_across_regions_pay_their_latency(
    model: str, regions: int, dp: int, shard: str, bucket: int | None, calls: int
) -> None:
    job = point(model=model, regions=regions, latency_ms=25.0)
    degrees = ["degrees.tp=4", "degrees.cp=1", "degrees.pp=1", f"degrees.dp_shard={dp}", "degrees.dp_replicate=1"]
    plan = planned(
        job, *degrees, f"shard={shard}", *([] if bucket is None else [f"overlap.bucket_parameters={bucket}"])
    )
    reduced = next(one for one in plan.collectives if one.axis == "dp_shard" and one.op == "reduce_scatter")
    assert reduced.level in ("campus", "region")
    assert reduced.per_step == calls
    step = sa.simulate(plan)
    assert abs(step.difference) < WITHIN, (plan.cost.step_s, step.step_s)
