"""Settings of single communicators, read back from the files, are within their ranges and equal the decision."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest

import scaleacross as sa
from instances import plain_job, plain_topology, plain_trunk
from scaleacross.emitters import EMITTERS
from scaleacross.emitters.group_settings import LEAST_OVERLAP_BYTES, MOST_OVERLAP_BYTES
from scaleacross.emitters.nccl_variables import HINTS, VARIABLES, check_hint, check_variable
from scaleacross.emitters.torchtitan_groups import group_options
from scaleacross.errors import EmitError
from scaleacross.spec.launch import EnvVariable
from scaleacross.spec.plan import Plan


@cache
def plan() -> Plan:
    """A plan of replicas over two buildings with a pipeline inside: overlapped gradients, exposed messages, and a
    codec."""
    topology = plain_topology(2, 2)
    topology["trunks"][0] = plain_trunk("b0", "b1", 0.2, 20.0)
    degrees = {"tp": 1, "cp": 1, "pp": 8, "dp_shard": 1, "dp_replicate": 2}
    network = {"compression": {"max_relative_error": 0.02}}
    return sa.plan(
        plain_job(topology=topology, degrees=degrees, shard=["none"], network=network, global_batch_sequences=16),
        alternatives=False,
    )


def environment(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))


def test_traffic_classes_go_to_every_file_that_has_a_place_for_them() -> None:
    decided = {c.communicator: c.traffic_class for c in plan().decision.network or () if c.traffic_class is not None}
    assert len(set(decided.values())) == 2
    ncclx, nccl = EMITTERS["ncclx"](plan()), EMITTERS["nccl"](plan())
    stated = environment(ncclx["ncclx/ncclx.env"])["NCCL_CTRAN_IB_PG_TRAFFIC_CLASS"]
    assert {axis: int(number) for axis, number in (part.split(":") for part in stated.split(","))} == decided
    hints = json.loads(ncclx["ncclx/comm_hints.json"])
    assert {axis: int(hint["trafficClass"]) for axis, hint in hints.items() if "trafficClass" in hint} == decided
    assert "NCCL_IB_TC" not in environment(nccl["nccl.env"])
    assert re.search(r"NCCL_IB_TC: communicators have different classes \(200, 212\)", nccl["nccl_explain.md"])


def test_one_class_for_all_is_one_variable() -> None:
    network = tuple(
        choice.model_copy(update={"traffic_class": 212 if choice.connections else None})
        for choice in plan().decision.network or ()
    )
    alike = plan().model_copy(update={"decision": plan().decision.model_copy(update={"network": network})})
    assert environment(EMITTERS["nccl"](alike)["nccl.env"])["NCCL_IB_TC"] == "212"


def test_connections_of_each_group_are_those_that_were_decided() -> None:
    hints = json.loads(EMITTERS["ncclx"](plan())["ncclx/comm_hints.json"])
    for axis in ("dp_shard", "dp_replicate", "pp"):
        used = [c for c in plan().decision.network or () if c.communicator == axis and c.connections]
        if used:
            assert int(hints[axis]["maxCTAs"]) == max(c.num_channels for c in used)
            assert int(hints[axis]["ncclx::ibQpsPerConnection"]) == max(
                o.queue_pairs for c in used for o in c.connections
            )
            assert set(hints[axis]) >= set(HINTS)


def test_what_no_file_can_say_is_said_in_words() -> None:
    for target, name in (("nccl", "nccl_explain.md"), ("ncclx", "ncclx/explain.md")):
        text = EMITTERS[target](plan())[name]
        assert "dp_replicate all_reduce of gradients: int8_block across campus. NCCL reduces what it is given" in text
        assert re.search(r"travel as they are: \S+ \S+ each instead of the \S+ \S+ of the plan", text)


def test_a_chunked_hierarchical_gather_names_its_chunks() -> None:
    topology = plain_topology(4, 4)
    degrees = {"tp": 1, "cp": 1, "pp": 1, "dp_replicate": 1}
    cut = sa.plan(plain_job(topology=topology, degrees=degrees, shard=["parameters"]), alternatives=False)
    gathers = [c for c in cut.decision.network or () if c.op == "all_gather" and c.num_chunks > 1]
    stated = environment(EMITTERS["ncclx"](cut)["ncclx/ncclx.env"])
    assert bool(gathers) == ("NCCL_CTRAN_HIER_AG_OVERLAP_ENABLE" in stated)
    assert gathers
    size = int(stated["NCCL_CTRAN_HIER_AG_OVERLAP_CHUNK_BYTES"])
    assert LEAST_OVERLAP_BYTES <= size <= MOST_OVERLAP_BYTES


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_CTRAN_IB_PG_TRAFFIC_CLASS", "dp:256"),
        ("NCCL_CTRAN_IB_PG_TRAFFIC_CLASS", "dp:12,"),
        ("NCCL_IB_TC", "256"),
        ("NCCL_CTRAN_HIER_AG_OVERLAP_CHUNK_BYTES", "1024"),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: str) -> None:
    assert name in VARIABLES
    with pytest.raises(EmitError, match=name):
        check_variable(EnvVariable(name=name, value=value, why="test"))


def test_hints_out_of_range_are_refused() -> None:
    with pytest.raises(EmitError, match="trafficClass=256"):
        check_hint("trafficClass", "256")
    check_hint("trafficClass", "255")


def test_drivers_go_to_every_file_that_has_a_place_for_them() -> None:
    """Every file format that can state a driver states it.

    Copy engines become NCCL's zero-CTA policy and NCCLX's window algorithm; the host is named in words.
    """
    degrees = {"tp": 1, "cp": 1, "pp": 1, "dp_replicate": 1}
    kernels = sa.plan(
        plain_job(topology=plain_topology(4, 4), degrees=degrees, shard=["parameters"]), alternatives=False
    )

    def driven(driver: str) -> Plan:
        network = tuple(
            choice.model_copy(update={"driver": driver}) if choice.op == "all_gather" else choice
            for choice in kernels.decision.network or ()
        )
        return kernels.model_copy(update={"decision": kernels.decision.model_copy(update={"network": network})})

    assert "NCCL_CTA_POLICY" not in environment(EMITTERS["nccl"](kernels)["nccl.env"])
    engines = driven("copy_engines")
    nccl = EMITTERS["nccl"](engines)
    assert environment(nccl["nccl.env"])["NCCL_CTA_POLICY"] == "2"
    assert "copy engines for dp_shard all_gather of parameters" in nccl["nccl_explain.md"]
    hints = json.loads(EMITTERS["ncclx"](engines)["ncclx/comm_hints.json"])
    assert hints["dp_shard"]["ncclx::allgatherAlgo"] == "ctwin"
    assert group_options(engines)["fsdp"]["cta_policy"] == 2
    assert "cta_policy" not in group_options(kernels)["fsdp"]
    kept = engines.job.kept.model_copy(update={"spmd_backend": "spmd_types"})
    typed = engines.model_copy(update={"job": engines.job.model_copy(update={"kept": kept})})
    assert group_options(typed)["dp_shard"] == group_options(engines)["fsdp"]
    assert "fsdp" not in group_options(typed)
    decision = typed.decision.model_copy(update={"degrees": typed.degrees.model_copy(update={"cp": 2})})
    with pytest.raises(
        EmitError, match=r"cp 2 with kept\.spmd_backend spmd_types: no options of NCCL \(.*cta_policy.*\) reach"
    ):
        group_options(typed.model_copy(update={"decision": decision}))
    host = EMITTERS["nccl"](driven("host"))
    assert "NCCL_CTA_POLICY" not in environment(host["nccl.env"])
    assert "dp_shard all_gather of parameters: driven by the host. No setting" in host["nccl_explain.md"]


@pytest.mark.slow
def test_no_setting_lets_copy_engines_send_unequal_parts() -> None:
    """Copy engines get no policy for tokens of experts, which are unequal parts.

    The files list them as not expressed.
    """
    degrees = {"tp": 2, "pp": 7, "ep": 4}
    job = plain_job(topology="one_building", workload="mixtral-8x22b", degrees=degrees, num_accelerators=112)
    kernels = sa.plan(job, alternatives=False)
    network = tuple(
        choice.model_copy(update={"driver": "copy_engines"}) if choice.op == "all_to_all" else choice
        for choice in kernels.decision.network or ()
    )
    assert any(choice.driver == "copy_engines" for choice in network)
    engines = kernels.model_copy(update={"decision": kernels.decision.model_copy(update={"network": network})})
    files = EMITTERS["nccl"](engines)
    assert "NCCL_CTA_POLICY" not in environment(files["nccl.env"])
    assert "ep all_to_all of tokens: driven by copy engines. Its parts are unequal" in files["nccl_explain.md"]
    assert "cta_policy" not in group_options(engines).get("ep", {})
