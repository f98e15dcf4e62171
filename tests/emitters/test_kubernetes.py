"""JobSet and host files: the pods' rank order is the plan's, and the published API packages accept the manifests."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from plans import make_plan, two_buildings
from shells import bash, needs_bash

from emitters.test_launch_json import plans
from emitters.test_recovery import with_failures
from scaleacross.emitters import EMITTERS, emit, hostfiles, kubernetes
from scaleacross.emitters.rank_order import rank_order
from scaleacross.errors import EmitError
from scaleacross.spec.network_choice import CommunicatorChoice, Connection
from scaleacross.spec.parallelism import Degrees, GridAxis
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


INSIDE_OUT: tuple[GridAxis, ...] = ("tp", "dp_shard", "pp", "cp", "dp_replicate")
"""Replicas over two buildings, each with a whole pipeline. No mapping of Megatron-LM or torchtitan has this order."""


@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
def test_ranks_are_those_of_the_target(target: str) -> None:
    """Rank i of the framework is in the building that the framework's own files name."""
    degrees = Degrees(tp=4, pp=2, dp_shard=2, dp_replicate=2)
    plan = make_plan(
        degrees, INSIDE_OUT, topology=two_buildings((4, 4)), allocation=(("east", 16), ("west", 16)), target=target
    )
    table = list(csv.DictReader(EMITTERS[target](plan)[f"{target}/ranks.csv"].splitlines()))
    assert [row["building"] for row in table] != ["east"] * 16 + ["west"] * 16  # the plan's own order
    files = kubernetes.render(plan)
    found: list[str] = []
    for job in json.loads(files["kubernetes/jobset.json"])["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        found += [spec["template"]["spec"]["nodeSelector"]["topology.kubernetes.io/zone"]] * (4 * spec["completions"])
    assert found == [row["building"] for row in table]
    hosts = [line.split()[0] for line in hostfiles.render(plan)["hostfiles/deepspeed"].splitlines()]
    assert [host for host in hosts for _ in range(4)] == [row["host"] for row in table]
    name = {"megatron": "Megatron-LM", "torchtitan": "torchtitan"}[target]
    assert all(
        f"Ranks are those of {name}" in text
        for text in (files["kubernetes/SUBMIT.md"], hostfiles.render(plan)["hostfiles/SUBMIT.md"])
    )


@pytest.mark.parametrize("length", [63, 64])
def test_hosts_with_names_that_no_label_holds_are_refused(length: int) -> None:
    hosts = (kubernetes.Host("n" * length, "east", 0, 0, 4),)
    if length > 63:
        with pytest.raises(EmitError, match="at most 63 characters"):
            kubernetes._where(hosts)
    else:
        assert "n" * 63 in json.dumps(kubernetes._where(hosts))


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_pods_have_shared_memory_beyond_64_mib(kind: str) -> None:
    spec = json.loads(kubernetes.render(make_plan(Degrees(dp_shard=4)))[f"kubernetes/{kind}.json"])["spec"]
    if kind == "trainjob":
        spec = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    pods = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pods["containers"]
    (mount,) = container["volumeMounts"]
    (volume,) = pods["volumes"]
    assert (container["name"], mount) == ("node", {"name": volume["name"], "mountPath": "/dev/shm"})
    assert volume["emptyDir"]["medium"] == "Memory"


@given(plans())
def test_host_files_list_hosts_in_rank_order(plan: Plan) -> None:
    order = rank_order(plan)
    if order.split_host():
        return
    files = hostfiles.render(plan)
    hits = [re.fullmatch(r"(\S+)\s+slots=(\d+)", line) for line in files["hostfiles/deepspeed"].splitlines()]
    assert [(hit[1], int(hit[2])) for hit in hits if hit] == [(host.name, host.num_ranks) for host in order.hosts]


def far() -> Plan:
    """A plan of replicas over a round trip of 4 ms. Its connection keeps 64 MiB in flight."""
    made = make_plan(Degrees(dp_shard=8, dp_replicate=2), topology=two_buildings((2, 2), latency_s=2e-3))
    connection = Connection(level="campus", queue_pairs=16, segment_bytes=2**20, outstanding=4, load_balancing="spray")
    choice = CommunicatorChoice(
        communicator="dp_replicate", op="all_reduce", payload="gradients", algorithm="ring", chunk_bytes=1e6, num_channels=2,
        connections=(connection,), traffic_class=200,
    )  # fmt: skip
    return made.model_copy(update={"decision": made.decision.model_copy(update={"network": (choice,)})})


def stated(text: str) -> list[str]:
    """KEY=VALUE lines of an environment file."""
    return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("failures", [False, True])
def test_every_launcher_hands_on_what_nccl_and_recovery_say(failures: bool) -> None:
    plan = far().model_copy(update={"goodput": with_failures().goodput if failures else None})
    lines = stated(EMITTERS["nccl"](plan)["nccl.env"])
    assert len(lines) >= 3
    if failures:
        lines += stated(EMITTERS["recovery"](plan)["recovery/nccl.env"])
        assert any("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC" in line for line in lines)
    assert stated(EMITTERS["torchrun"](plan)["torchrun/settings.env"]) == lines
    made = json.loads(kubernetes.render(plan)["kubernetes/jobset.json"])
    for job in made["spec"]["replicatedJobs"]:
        (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        assert [f"{one['name']}={one['value']}" for one in container["env"]][1:] == lines
    files = hostfiles.render(plan)
    words = files["hostfiles/SUBMIT.md"].partition("```bash\n")[2].partition("```")[0].splitlines()
    deepspeed, openmpi, mpich = (shlex.split(line, comments=True) for line in words)
    assert deepspeed[: deepspeed.index("deepspeed")] == [*lines, "DS_ENV_FILE=settings.env"]
    assert files["hostfiles/settings.env"].splitlines() == lines
    assert "./run_rank.sh" in openmpi and "./run_rank.sh" in mpich


OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}  # fmt: skip
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
PRINT = 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $TORCH_NCCL_DUMP_ON_TIMEOUT"'


@needs_bash
@pytest.mark.parametrize(("launcher", "hosts"), [(OPENMPI, "openmpi"), (HYDRA, "mpich")])
def test_a_process_of_mpi_finds_what_torchs_rendezvous_reads(
    launcher: dict[str, str], hosts: str, tmp_path: Path
) -> None:
    """Every process has the variables that torch's rendezvous reads.

    The commands of SUBMIT.md once started plain python, and init_process_group("nccl") found no RANK.
    """
    emit(with_failures(), "hostfiles", tmp_path)
    folder = tmp_path / "hostfiles"
    (folder / hosts).write_text("# mine\n" + (folder / hosts).read_text().replace("east-h00000", "node-7.example", 1))
    done = bash(folder / "run_rank.sh", "bash", "-c", PRINT, cwd=tmp_path, **launcher)
    assert (done.stdout, done.stderr) == ("5 8 1 4 node-7.example 29500 1\n", "")
    fewer = {name: "4" if value == "8" else value for name, value in launcher.items()}
    done = bash(folder / "run_rank.sh", "true", cwd=tmp_path, **fewer)
    assert (done.returncode, done.stderr) == (2, "4 processes are started; the plan has 8\n")


@needs_bash
def test_a_process_that_no_mpi_launcher_started_is_told_so(tmp_path: Path) -> None:
    emit(with_failures(), "hostfiles", tmp_path)
    done = bash(tmp_path / "hostfiles/run_rank.sh", "true", cwd=tmp_path)
    assert done.returncode == 2 and "start this by mpirun" in done.stderr


def test_a_train_job_hands_on_what_nccl_and_recovery_say() -> None:
    made = far()
    inside = make_plan(Degrees(dp_shard=8), topology=two_buildings((4, 2)))
    network = tuple(
        one.model_copy(update={"connections": (one.connections[0].model_copy(update={"level": "rack"}),)})
        for one in made.decision.network or ()
    )
    decision = inside.decision.model_copy(update={"network": network})
    plan = inside.model_copy(update={"decision": decision, "goodput": with_failures().goodput})
    job = json.loads(kubernetes.render(plan)["kubernetes/trainjob.json"])
    both = (EMITTERS["nccl"](plan)["nccl.env"], EMITTERS["recovery"](plan)["recovery/nccl.env"])
    assert all(map(stated, both))
    lines = [line for text in both for line in stated(text)]
    assert [f"{one['name']}={one['value']}" for one in job["spec"]["trainer"]["env"]] == lines


@given(plans())
def test_published_models_accept_the_jobset(plan: Plan) -> None:
    api = pytest.importorskip("kubeflow_trainer_api.models", reason="needs kubeflow-trainer-api")
    if rank_order(plan).split_host():
        return
    made = json.loads(kubernetes.render(plan)["kubernetes/jobset.json"])
    read = api.JobsetV1alpha2JobSet.from_dict(made)
    again = read.to_dict()
    assert {key: again[key] for key in made} == made  # unknown keys would have been dropped
