"""``transport`` of an inter-building link: who uses sockets, which RDMA settings are left out, and torchtitan's group
options."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from plans import make_plan, two_buildings
from test_group_settings import environment

from interpreters import python_with
from scaleacross.catalogue import load_topology
from scaleacross.emitters import EMITTERS, emit
from scaleacross.emitters.megatron_communicators import communicators
from scaleacross.emitters.torchtitan_groups import group_options
from scaleacross.errors import InputError
from scaleacross.spec.network_choice import CommunicatorChoice, Connection
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.plan import Plan

FAR = Connection(level="campus", queue_pairs=16, segment_bytes=2**20, outstanding=4, load_balancing="spray")
NEAR = Connection(level="rack", queue_pairs=1, segment_bytes=2**19, outstanding=8, load_balancing="ecmp")


def choice(communicator: str, connection: Connection) -> CommunicatorChoice:
    return CommunicatorChoice(
        communicator=communicator, op="all_reduce", payload="gradients", algorithm="ring", chunk_bytes=1e6, num_channels=2,
        connections=(connection,), traffic_class=200,
    )  # type: ignore[arg-type]  # fmt: skip


def plan(transport: str | None, **changes: Any) -> Plan:
    """A plan whose dp_replicate crosses the link between buildings, with a round trip of 4 ms. dp_shard crosses racks."""
    topology = two_buildings((2, 2), latency_s=2e-3)
    trunks = tuple(trunk.model_copy(update={"transport": transport}) for trunk in topology.trunks)
    settings: dict[str, Any] = {"num_micro_batches": 1, **changes}
    made = make_plan(
        Degrees(dp_shard=8, dp_replicate=2), topology=topology.model_copy(update={"trunks": trunks}), **settings
    )
    decision = made.decision.model_copy(update={"network": (choice("dp_replicate", FAR), choice("dp_shard", NEAR))})
    return made.model_copy(update={"decision": decision})


@pytest.mark.parametrize("transport", [None, "roce"])
def test_rdma_names_no_network_and_keeps_its_queue_pairs(transport: str | None) -> None:
    files = (
        EMITTERS["ncclx"](plan(transport)) | EMITTERS["megatron"](plan(transport)) | EMITTERS["nccl"](plan(transport))
    )
    assert not any("net_name" in text or "netName" in text or "NCCL_SOCKET" in text for text in files.values())
    assert json.loads(files["ncclx/comm_hints.json"])["dp_replicate"]["ncclx::ibQpsPerConnection"] == "16"
    assert "NCCL_CTRAN_IB_QP_CONFIG_XDC" in environment(files["nccl.env"])
    assert ("not stated" in files["nccl_explain.md"]) == (transport is None)


@pytest.mark.parametrize(
    ("degrees", "shard", "keys"),
    [
        (Degrees(dp_shard=8, dp_replicate=2, ep=2), "optimizer", {"intra_dp_cp", "intra_ep_dp", "inter_ep_dp"}),
        (Degrees(dp_shard=16, ep=2), "optimizer", {"dp_cp", "ep_dp"}),
        (Degrees(dp_shard=8, dp_replicate=2, ep=2), "none", {"dp_cp", "ep_dp"}),
    ],
)
def test_channels_go_to_the_groups_that_reduce(degrees: Degrees, shard: Any, keys: set[str]) -> None:
    """Channels go to the groups that reduce.

    Megatron Core reduces experts in intra_expt_dp_group and the rest in intra_dp_cp_group. With one instance this is
    all of dp.
    """
    made = make_plan(degrees, topology=two_buildings((2, 2)), shard=shard)
    network = tuple(choice(name, NEAR) for name in ("dp_shard", "dp_replicate", "expert"))
    decided = made.model_copy(update={"decision": made.decision.model_copy(update={"network": network})})
    assert {key for key, options in communicators(decided).items() if options.get("max_ctas") == 2} == keys


def test_only_groups_that_cross_tcp_use_sockets() -> None:
    found = plan("tcp")
    hints = json.loads(EMITTERS["ncclx"](found)["ncclx/comm_hints.json"])
    assert (hints["dp_replicate"]["netName"], "netName" in hints["dp_shard"]) == ("Socket", False)
    assert "ncclx::ibQpsPerConnection" not in hints["dp_replicate"]
    groups = yaml.safe_load(EMITTERS["megatron"](found)["megatron/nccl_communicators.yaml"])
    over = {key for key, options in groups.items() if options.get("net_name") == "Socket"}
    assert over == {"inter_ep_dp", "dp", "dp_cp", "tp_dp", "tp_dp_cp", "ep_dp"}
    assert group_options(found)["dp_replicate"]["net_name"] == "Socket"
    assert "net_name" not in group_options(found)["fsdp"]


def test_sockets_hold_what_a_channel_keeps_in_flight() -> None:
    """Sockets hold what a channel keeps in flight.

    16 queue pairs × 4 × 1 MiB over two channels are 32 MiB each: eight windows of 4 MiB.
    """
    stated = environment(EMITTERS["nccl"](plan("tcp"))["nccl.env"])
    threads, each = int(stated["NCCL_SOCKET_NTHREADS"]), int(stated["NCCL_NSOCKS_PERTHREAD"])
    assert (threads * each, threads <= 16) == (8, True)
    assert not {name for name in stated if name.startswith("NCCL_CTRAN_IB") or name == "NCCL_IB_TIMEOUT"}


def test_a_transport_that_nobody_knows_is_refused() -> None:
    data = two_buildings().model_dump(mode="json")
    data["trunks"][0]["transport"] = "udp"
    with pytest.raises(InputError, match=r"transport.*'roce' or 'tcp'"):
        load_topology(data)


RECORD = """
import json, os
os.environ.update(RANK="0", WORLD_SIZE="16", LOCAL_RANK="0")
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from types import SimpleNamespace
dist.init_process_group("fake", rank=0, world_size=16, store=FakeStore())
dist.ProcessGroupNCCL = SimpleNamespace(Options=lambda: SimpleNamespace(config=SimpleNamespace()))
dist.get_backend_config = lambda: "cuda:nccl,cpu:gloo"
unflatten, seen = DeviceMesh._unflatten, {}
def record(mesh, dim, sizes, names, backend_override=None):
    given = backend_override or {}
    seen.update({name: vars(one.config) for name, one in given.items() if one != "fake"})
    return unflatten(mesh, dim, sizes, names, backend_override={k: v for k, v in given.items() if v == "fake"})
DeviceMesh._unflatten = record
import scaleacross_plan
from torchtitan.distributed import parallel_dims
parallel_dims.device_type = "cpu"
config = scaleacross_plan.train().parallelism
parallel_dims.ParallelDims(
    dp_replicate=config.data_parallel_replicate_degree, dp_shard=config.data_parallel_shard_degree, cp=1, tp=1, pp=1, ep=1,
    world_size=16, spmd_backend=config.spmd_backend,
).build_mesh()
print("SEEN", json.dumps(seen))
"""


@pytest.mark.consumer
def test_torchtitan_makes_its_groups_with_the_planned_options(tmp_path: Path) -> None:
    """torchtitan creates its groups with the planned options.

    It builds its own mesh on torch's fake process group. A stand-in replaces NCCL's class of options, which a CPU build
    lacks.
    """
    found = plan("tcp", shard="parameters")
    emit(found, "torchtitan", tmp_path)
    environ = {"PYTHONPATH": str(tmp_path / "torchtitan"), "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [python_with("torchtitan"), "-c", RECORD], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    hit = re.search(r"SEEN (.*)", done.stdout)
    assert hit and json.loads(hit[1]) == group_options(found)
