"""Types beyond NVIDIA's SXM boards as a user meets them: a quick start, precision, libraries, links of a mesh."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from scaleacross.api.problems import problem_of
from scaleacross.catalogue import Start, entries, load_accelerator, load_job, load_network, quick_job
from scaleacross.catalogue.quick_start import quick_topology
from scaleacross.cli import app
from scaleacross.errors import InputError
from scaleacross.simulation.curves import measured_s
from scaleacross.spec.job import Job
from scaleacross.spec.network import CurveOp

MESHES = ("infinity-fabric", "infinity-fabric-4", "gaudi2-ethernet", "gaudi3-ethernet")
OPTIONS = ("--tokens", "1M", "--seq", "8192", "--work-limit", "200", "--gap", "0.5", "--json")


def job_on(gpus: str, **fields: Any) -> Job:
    """Return the quick start's job of Llama 3.1 8B on ``gpus``, a link of 400 Gbit/s between buildings."""
    far: dict[str, Any] = {"trunk": "4x400G", "km": 5.0} if "," in gpus else {}
    return load_job({**quick_job(Start(model="llama3.1-8b", gpus=gpus, tokens="1M", sequence="8192", **far)), **fields})


@pytest.mark.parametrize("kind", ["gaudi2", "mi250x", "h100-pcie", "v100"])
def test_a_quick_start_has_a_plan_with_the_interval_of_machines_never_seen(kind: str) -> None:
    precision = () if kind != "v100" else ("--set", "precision=fp16")
    done = CliRunner().invoke(app, ["plan", "--model", "llama3.1-8b", "--gpus", f"{kind}:64", *OPTIONS, *precision])
    assert done.exit_code == 0, done.output
    interval = json.loads(done.stdout)["interval"]
    assert not interval["seen"]
    assert interval["p90_s"] / interval["p10_s"] > 2  # of machines that were seen: 1.5


def test_a_v100_says_how_to_train_on_it() -> None:
    with pytest.raises(InputError, match=r"it has fp16: set precision: fp16 in the job, or add --set precision=fp16"):
        problem_of(job_on("v100:8"), ())
    assert problem_of(job_on("v100:8"), ("precision=fp16",)).job.precision == "fp16"


@pytest.mark.parametrize(
    ("kind", "said"),
    [("tpu-v5p", "Google's TPUs"), ("v6e", "Google's TPUs"), ("trn2", "Trainium"), ("Trainium2", "Trainium")],
)
def test_a_torus_is_refused_with_the_reason(kind: str, said: str) -> None:
    with pytest.raises(InputError, match=rf"{said}.* are not modelled: these form a torus"):
        quick_topology(f"{kind}:64", None, None)


def test_a_job_on_gaudi_has_no_other_accelerators() -> None:
    job = job_on("gaudi2:64,h100:64,mi300x:32")
    with pytest.raises(InputError, match="h100-sxm NCCL and gaudi2 HCCL run collectives that cannot join") as refused:
        problem_of(job, ())
    ways_out = [re.findall(r"--set ([\w.-]+=\d+)", part) for part in str(refused.value).split("the others with")]
    left = [[b.accelerator.name for b in problem_of(job, held).topology.buildings] for held in ways_out]
    assert left == [["gaudi2"], ["h100-sxm", "mi300x"]]
    assert len(problem_of(job_on("mi300x:64,h100:64"), ()).topology.buildings) == 2


def test_a_gaudi_leaves_the_network_to_its_library() -> None:
    assert problem_of(job_on("gaudi2:64"), ()).job.network.settings == "library"
    assert problem_of(job_on("mi300x:64"), ()).job.network.settings == "chosen"
    for fields, said in (
        ({"target": "megatron"}, "target megatron"),
        ({"network": {"compression": {"max_relative_error": 0.02}}}, "network.compression"),
    ):
        with pytest.raises(InputError, match=rf"has {said}, which is written for NCCL and RCCL; gaudi2 runs HCCL"):
            problem_of(job_on("gaudi2:64", **fields), ())


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
def test_a_group_in_a_mesh_has_the_links_between_its_members_alone(name: str, op: CurveOp) -> None:
    network, size = load_network(name), 2.0**30
    rate = network.bandwidth_bytes_per_s * network.efficiency_fraction
    for ranks in (2, 4, 8):
        link_share = (ranks - 1) / 7  # of eight in a host
        sent = (2 if op == "all_reduce" else 1) * size * (ranks - 1) / ranks
        assert measured_s(network, op, ranks, size) == pytest.approx(sent / (rate * link_share), rel=0.01)


def test_amd_s_entries_name_their_library() -> None:
    every = [one.name for one in entries() if one.kind == "accelerators"]
    library = {name: load_accelerator(name).collective_library for name in every}
    assert {name for name, one in library.items() if one == "rccl"} == {"mi250x-gcd", "mi300x", "mi325x", "mi355x"}
    assert {name for name, one in library.items() if one == "hccl"} == {"gaudi2", "gaudi3"}
