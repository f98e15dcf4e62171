"""Tables of one plan lie on accelerators with one collective library; the other buildings idle, and a note says so."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from test_planning import JOB

from scaleacross.api import compare_recommendation, plan_recommendation
from scaleacross.catalogue import load_recommendation_job
from scaleacross.errors import InputError, VerificationError
from scaleacross.report.recommendation import recommendation_summary
from scaleacross.spec.recommendation import RecommendationJob, RecommendationPlan
from scaleacross.verification.embeddings import verify_recommendation

NAMES = {"h100-sxm": "nvidia", "b200": "blackwell", "mi300x": "amd"}


def building(accelerator: str, num_hosts: int) -> dict[str, Any]:
    return {"name": NAMES[accelerator], "accelerator": accelerator, "num_hosts": num_hosts}


def job(*buildings: dict[str, Any], **fields: Any) -> RecommendationJob:
    names = [one["name"] for one in buildings]
    link = {"technology": "roce-400g", "one_way_latency_us": 7, "oversubscription_ratio": 1}
    defaults = {
        "accelerators_per_host": 8,
        "hosts_per_rack": 1,
        "racks_per_zone": 8,
        "links": {
            "scale_up": {"technology": "nvlink4", "one_way_latency_us": 1},
            "rack": link,
            "zone": link,
            "building": link,
        },
    }
    trunk = {"bandwidth_gbit_per_s": 1600, "oversubscription_ratio": 1, "one_way_latency_us": 20}
    topology = {
        "name": "mixed",
        "building_defaults": defaults,
        "regions": [{"name": "here", "buildings": list(buildings)}],
        "trunks": [{"between": list(pair), **trunk} for pair in pairwise(names)],
    }
    return load_recommendation_job({**JOB, "topology": topology, "num_accelerators": None, **fields})[0]


def planned(*buildings: dict[str, Any], **fields: Any) -> RecommendationPlan:
    return plan_recommendation(job(*buildings, **fields), time_limit_s=2, gap_tolerance=0.05)


def used(plan: RecommendationPlan) -> set[str]:
    return {load.building for load in plan.ranks}


def test_tables_lie_on_the_faster_pool_of_one_library() -> None:
    own = building("h100-sxm", 1), building("b200", 1), building("mi300x", 1)
    plan = planned(*own)
    each = {"NCCL": planned(*own[:2]), "RCCL": planned(own[2])}
    best = min(each, key=lambda library: each[library].cost.step_s)
    idle = {"NCCL": "amd", "RCCL": "nvidia, blackwell"}[best]
    assert used(plan) == used(each[best])
    assert plan.cost.step_s == pytest.approx(each[best].cost.step_s, rel=0.05)
    (note,) = (one for one in plan.report.notes if one.startswith("idle"))
    assert note.startswith(f"idle: {idle} (") and f"cannot join {best}; they alone take " in note
    said = [value.plain for name, value in recommendation_summary(plan).facts if name == "idle"]
    assert said == [note.removeprefix("idle: ")]


def test_order_of_buildings_in_the_file_decides_nothing() -> None:
    """The slower pool stands first in one file and last in the other."""
    small, large = building("h100-sxm", 1), building("mi300x", 4)
    plans = planned(small, large), planned(large, small)
    assert used(plans[0]) == used(plans[1])


def test_a_pool_that_cannot_run_the_job_says_why_it_idles() -> None:
    plan = planned(building("h100-sxm", 1), building("mi300x", 2), num_accelerators=16)
    assert used(plan) == {"amd"}
    (note,) = (one for one in plan.report.notes if one.startswith("idle"))
    assert "NCCL" in note and "num_accelerators 16" in note
    with pytest.raises(InputError, match=r"num_accelerators 32: topology 'mixed' has 16; ask for fewer"):
        planned(building("h100-sxm", 1), building("mi300x", 2), num_accelerators=32)


def test_verification_refuses_tables_over_two_libraries() -> None:
    plan = planned(building("h100-sxm", 1), building("b200", 1))
    verify_recommendation(plan)
    topology: Any = plan.job.model_dump()["topology"]
    topology["regions"][0]["buildings"][1]["accelerator"]["collective_library"] = "rccl"
    forged = plan.model_copy(update={"job": plan.job.model_copy(update={"topology": topology})})
    with pytest.raises(VerificationError, match="nvidia, blackwell run NCCL and RCCL, whose collectives cannot join"):
        verify_recommendation(forged)


def test_baselines_are_compared_on_the_buildings_of_the_plan() -> None:
    found = compare_recommendation(
        job(building("h100-sxm", 1), building("mi300x", 1)), time_limit_s=1, gap_tolerance=0.05
    )
    assert len(used(found.plan)) == 1 and any(one.startswith("idle") for one in found.plan.report.notes)
    rates = [one.step_s for one in found.rivals if one.step_s is not None]
    assert rates and min(rates) >= found.plan.cost.step_s * (1 - 1e-9)
