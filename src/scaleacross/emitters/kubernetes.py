"""Target ``kubernetes``: a JobSet with Kueue annotations; for a plan in one building also a Kubeflow TrainJob.

Ranks have the order of the job's target. Each run of equal hosts in one building is a replicated job of the JobSet. It
is an Indexed job whose pods are nodes in rank order, so node rank = FIRST_NODE + JOB_COMPLETION_INDEX. Node selectors
fix the building of each pod. The scheduler chooses which of its hosts gets which index (Kueue gives indices to
neighbours). So what crosses buildings is exactly the plan's; the order of hosts inside a building is not. API:
jobset.x-k8s.io/v1alpha2, kueue.x-k8s.io (podset annotations), trainer.kubeflow.org/v1alpha1. A TrainJob has one
replicated job, hence the restriction to one building.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from scaleacross.emitters.filling import filled
from scaleacross.emitters.libraries import device_resource
from scaleacross.emitters.rank_order import Host, RankOrder
from scaleacross.emitters.recovery import restarts
from scaleacross.emitters.settings import process_settings
from scaleacross.emitters.shell import one_line
from scaleacross.emitters.target_order import target_order
from scaleacross.errors import EmitError
from scaleacross.spec.launch import DEFAULT_PORT, EnvVariable
from scaleacross.spec.plan import Plan

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
HOST_LABEL: Final = "kubernetes.io/hostname"
LONGEST_LABEL: Final = 63
IMAGE: Final = "REPLACE-WITH-YOUR-IMAGE"
SHARED_MEMORY: Final = "shm"


def render(plan: Plan) -> dict[str, str]:
    """Return jobset.json, trainjob.json (plans in one building) and SUBMIT.md, in folder kubernetes/.

    Raises:
        EmitError: the ranks of a host are not one block, which torchrun in a pod requires, or a host's name is too long
            for a node label.
    """
    order, whose = target_order(plan)
    split = order.split_host()
    if split is not None:
        raise EmitError(
            f"the ranks of host {split} are not consecutive, and torchrun gives every pod one block of ranks"
        )
    name = _label(plan.job.name)
    settings, resource = process_settings(plan), device_resource(plan)
    files = {"jobset.json": _text(jobset(order, name, restarts(plan.goodput), settings, resource))}
    parts = _segments(order)
    if len(parts) == 1:
        files["trainjob.json"] = _text(_trainjob(parts[0], name, settings, resource))
    files["SUBMIT.md"] = filled(
        "kubernetes.md",
        name=name,
        title=one_line(plan.job.name),
        kinds=" or ".join(sorted(files)),
        parts=len(parts),
        whose=whose,
        image=IMAGE,
        env=f"The plan's settings of NCCL and torch are `env` of the containers: {', '.join(one.name for one in settings)}.\n"
        if settings
        else "",
    )
    return {f"kubernetes/{file}": text for file, text in files.items()}


def jobset(
    order: RankOrder, name: str, max_restarts: int, settings: Sequence[EnvVariable], resource: str
) -> dict[str, Any]:
    """Return the JobSet as plain data: a replicated job per run of equal hosts of one building, in rank order.

    ``resource`` is what Kubernetes calls an accelerator.
    """
    jobs, first, master = [], 0, f"{name}-part-0-0-0.{name}"
    for index, hosts in enumerate(_segments(order)):
        env = [{"name": "FIRST_NODE", "value": str(first)}, *_env(settings)]
        container = _container(hosts, len(order.hosts), master, env, resource)
        jobs.append(_replicated_job(f"part-{index}", hosts, container))
        first += len(hosts)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "user-queue"}},
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": max_restarts},
            "replicatedJobs": jobs,
        },
    }


def _segments(order: RankOrder) -> list[list[Host]]:
    """Return runs of hosts, in rank order, of one building and one number of processes."""
    return [list(run) for _, run in groupby(order.hosts, key=lambda host: (host.building, host.num_ranks))]


def _env(settings: Sequence[EnvVariable]) -> list[dict[str, str]]:
    """Return the plan's variables as a container's env."""
    return [{"name": one.name, "value": one.value} for one in settings]


def _replicated_job(name: str, hosts: Sequence[Host], container: dict[str, Any]) -> dict[str, Any]:
    pods = {
        "metadata": {"annotations": {"kueue.x-k8s.io/podset-preferred-topology": HOST_LABEL}},
        "spec": {"restartPolicy": "Never", **_where(hosts), "containers": [container], "volumes": _volumes()},
    }
    indexed = {"completionMode": "Indexed", "parallelism": len(hosts), "completions": len(hosts), "backoffLimit": 0}
    return {"name": name, "replicas": 1, "template": {"spec": {**indexed, "template": pods}}}


def _where(hosts: Sequence[Host]) -> dict[str, Any]:
    """Select the stated hosts where their names are real, otherwise the building's zone."""
    building = hosts[0].building
    # names of this form are the plan's own, for topologies without real host names
    if any(re.fullmatch(rf"{re.escape(building)}-h\d{{5}}", host.name) for host in hosts):
        return {"nodeSelector": {ZONE_LABEL: building}}
    if long := [host.name for host in hosts if len(host.name) > LONGEST_LABEL]:
        raise EmitError(f"host {long[0]}: a label of a node has at most {LONGEST_LABEL} characters")
    names = {"key": HOST_LABEL, "operator": "In", "values": sorted(host.name for host in hosts)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [names]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _volumes() -> list[dict[str, Any]]:
    """Return a memory volume for /dev/shm, which NCCL and data loaders use; a container has only 64 MiB by default."""
    return [{"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory"}}]


def _mounts() -> list[dict[str, str]]:
    return [{"name": SHARED_MEMORY, "mountPath": "/dev/shm"}]


def _container(
    hosts: Sequence[Host], num_nodes: int, master: str, env: list[dict[str, str]], resource: str
) -> dict[str, Any]:
    """Return the training container; the user states its image and program."""
    size = hosts[0].num_ranks
    command = (
        f"exec torchrun --nnodes {num_nodes} --nproc-per-node {size} --node-rank $((FIRST_NODE + JOB_COMPLETION_INDEX)) "
        f'--rdzv-backend static --master-addr {shlex.quote(master)} --master-port {DEFAULT_PORT} "$@"'
    )
    return {
        "name": "node",
        "image": IMAGE,
        "command": ["bash", "-c", command, "node"],
        "args": ["train.py"],
        "env": env,
        "ports": [{"containerPort": DEFAULT_PORT}],
        "volumeMounts": _mounts(),
        "resources": {"limits": {resource: str(size)}},
    }


def _trainjob(hosts: Sequence[Host], name: str, settings: Sequence[EnvVariable], resource: str) -> dict[str, Any]:
    """Return the TrainJob of hosts in one building; node order is the completion index."""
    size = hosts[0].num_ranks
    # Kubeflow's runtime torch-distributed calls its one job and the container in it "node".
    patched = {**_where(hosts), "volumes": _volumes(), "containers": [{"name": "node", "volumeMounts": _mounts()}]}
    job = {"name": "node", "template": {"spec": {"template": {"spec": patched}}}}
    patch = {"manager": "scaleacross/plan", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "user-queue"}},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": IMAGE,
                "command": ["torchrun", "train.py"],
                **({"env": _env(settings)} if settings else {}),
                "numNodes": len(hosts),
                "numProcPerNode": size,
                "resourcesPerNode": {"limits": {resource: str(size)}},
            },
            "runtimePatches": [patch],
        },
    }


def _label(name: str) -> str:
    """Return ``name`` as a DNS label short enough for pod names, which append part, job and index."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:30].strip("-") or "plan"


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"
