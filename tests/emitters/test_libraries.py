"""Launch files of accelerators that do not run NCCL hold nothing of it, and name the vendor's own resource."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emitters.test_kubernetes import far
from emitters.test_recovery import with_failures
from scaleacross.emitters import EMITTERS
from scaleacross.emitters.rank_order import plan_topology
from scaleacross.errors import EmitError
from scaleacross.spec.plan import Plan

WRITTEN = ("launch", "torchrun", "kubernetes", "hostfiles", "recovery")


def plan_on(library: str) -> Plan:
    """Return a plan over a round trip of 4 ms with failure rates: it needs settings of NCCL, and of torch for NCCL."""
    plan = far().model_copy(update={"goodput": with_failures().goodput})
    topology = plan_topology(plan).model_dump()
    for building in topology["regions"][0]["buildings"]:
        building["accelerator"]["collective_library"] = library
    return plan.model_copy(update={"job": plan.job.model_copy(update={"topology": topology})})


def resources(files: dict[str, str]) -> set[str]:
    made: Any = json.loads(files["kubernetes/jobset.json"])
    jobs = [job["template"]["spec"]["template"]["spec"] for job in made["spec"]["replicatedJobs"]]
    return {name for job in jobs for name in job["containers"][0]["resources"]["limits"]}


@pytest.mark.parametrize(
    ("library", "resource"), [("nccl", "nvidia.com/gpu"), ("rccl", "amd.com/gpu"), ("hccl", "habana.ai/gaudi")]
)
def test_settings_and_resource_are_those_of_the_library(library: str, resource: str) -> None:
    plan = plan_on(library)
    files = {name: text for target in WRITTEN for name, text in EMITTERS[target](plan).items()}
    lines = [line for text in files.values() for line in text.splitlines() if "NCCL_" in line]
    assert bool(lines) == (library != "hccl"), lines
    assert ("recovery/nccl.env" in files) == (library != "hccl")
    assert resources(files) == {resource}


@pytest.mark.parametrize("target", ["nccl", "ncclx", "megatron", "torchtitan"])
def test_targets_of_nccl_refuse_by_name(target: str) -> None:
    with pytest.raises(EmitError, match=f"target {target} is written for NCCL and RCCL, and H100-SXM runs HCCL"):
        EMITTERS[target](plan_on("hccl"))
