"""JobSet and host files: the pods' rank order is the plan's, and the published API packages accept the manifests."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given

from emitters.test_launch_json import plans
from scaleacross.emitters import hostfiles, kubernetes
from scaleacross.emitters.rank_order import rank_order
from scaleacross.errors import EmitError
from scaleacross.spec.plan import Plan


@given(plans())
def test_pods_stand_in_the_plans_rank_order(plan: Plan) -> None:
    order = rank_order(plan)
    if order.split_host():
        with pytest.raises(EmitError, match="not consecutive"):
            kubernetes.render(plan)
        return
    made = json.loads(kubernetes.render(plan)["kubernetes/jobset.json"])
    nodes: dict[int, tuple[str, int]] = {}
    for job in made["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        (first,) = [int(one["value"]) for one in container["env"] if one["name"] == "FIRST_NODE"]
        gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
        assert f"--nproc-per-node {gpus} " in container["command"][2]
        zone = spec["template"]["spec"]["nodeSelector"]["topology.kubernetes.io/zone"]
        assert (job["replicas"], spec["completionMode"], spec["completions"]) == (1, "Indexed", spec["parallelism"])
        for index in range(spec["completions"]):
            assert first + index not in nodes
            nodes[first + index] = (zone, gpus)
    assert [nodes[rank] for rank in sorted(nodes)] == [(host.building, host.num_ranks) for host in order.hosts]
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", made["metadata"]["name"])


@given(plans())
def test_host_files_list_hosts_in_rank_order(plan: Plan) -> None:
    order = rank_order(plan)
    if order.split_host():
        return
    files = hostfiles.render(plan)
    hits = [re.fullmatch(r"(\S+)\s+slots=(\d+)", line) for line in files["hostfiles/deepspeed"].splitlines()]
    assert [(hit[1], int(hit[2])) for hit in hits if hit] == [(host.name, host.num_ranks) for host in order.hosts]


@given(plans())
def test_published_models_accept_the_jobset(plan: Plan) -> None:
    api = pytest.importorskip("kubeflow_trainer_api.models", reason="needs kubeflow-trainer-api")
    if rank_order(plan).split_host():
        return
    made = json.loads(kubernetes.render(plan)["kubernetes/jobset.json"])
    read = api.JobsetV1alpha2JobSet.from_dict(made)
    again = read.to_dict()
    assert {key: again[key] for key in made} == made  # unknown keys would have been dropped
