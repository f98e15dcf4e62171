"""Files of communicators are read by their own programs:

NCCL's tuner plugin, NCCLX's variables, Megatron-LM's groups.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from tuner_reader import read_nccl

import scaleacross as sa
from instances import plain_job, plain_topology, plain_trunk
from readers import READERS, RING, SIMPLE, compiled_tuner, tuner, unpacked
from scaleacross.emitters import EMITTERS
from scaleacross.emitters.megatron_communicators import AXES_OF, OPTIONS, communicators
from scaleacross.emitters.nccl_variables import VARIABLES
from scaleacross.spec.plan import Plan


@cache
def plan(target: str = "megatron") -> Plan:
    """A plan of replicas over two buildings that shard their optimizer, with a pipeline inside."""
    topology = plain_topology(2, 2)
    topology["trunks"][0] = plain_trunk("b0", "b1", 0.2, 20.0)
    degrees = {"tp": 1, "cp": 1, "pp": 8, "dp_shard": 2, "dp_replicate": 1}
    return sa.plan(
        plain_job(
            topology=topology,
            degrees=degrees,
            shard=["optimizer"],
            target=target,
            recompute=["none"],
            global_batch_sequences=16,
        ),
        alternatives=False,
    )


def test_the_plugin_returns_the_planned_channels_and_leaves_others_to_nccl(tmp_path: Path) -> None:
    library = compiled_tuner(tmp_path)
    text = EMITTERS["ncclx"](plan())["ncclx/nccl_tuner.conf"]
    (tmp_path / "tuner.conf").write_text(text)
    decided = {(c.communicator, c.op, c.payload): c.num_channels for c in plan().decision.network or ()}
    asked = 0
    for row in read_nccl(text):
        if row.num_ranks < 0:
            continue
        with tuner(library, tmp_path / "tuner.conf", row.num_ranks, row.num_nodes) as answer:
            for one in plan().collectives:
                key = (one.axis, one.op, one.name.partition(" of ")[2])
                op = one.op.replace("_", "")
                if (
                    (op, one.group_size) == (row.collective, row.num_ranks)
                    and key in decided
                    and one.algorithm == "ring"
                ):
                    channels, chosen = answer(op, int(one.bytes_per_rank))  # type: ignore[operator]
                    assert (channels, chosen) == (decided[key], [(RING, SIMPLE)]), one
                    asked += 1
            channels, chosen = answer("broadcast", 8)  # type: ignore[operator]
            assert channels == 0 and chosen[0][0] == RING  # NCCL's own number
    assert asked
    with tuner(library, tmp_path / "tuner.conf", 48, 6) as answer:
        assert answer("allreduce", 1 << 30)[0] == 0  # type: ignore[operator]


@pytest.mark.parametrize("target", ["megatron", "any"])
def test_every_variable_and_hint_is_one_that_ncclx_reads(target: str) -> None:
    listed = READERS / "nccl_cvars.yaml"
    if not listed.exists():
        pytest.skip(f"no list of NCCLX's variables at {listed}")
    names = set(re.findall(r"^\s*-\s*name\s*:\s*(\S+)", listed.read_text(), re.M))
    files = EMITTERS["ncclx"](plan(target))
    for line in files["ncclx/ncclx.env"].splitlines():
        if line and not line.startswith("#"):
            assert line.split("=")[0] in names
    assert {name for name in VARIABLES if name.startswith(("NCCLX", "NCCL_CTRAN", "NCCL_COLLTRACE"))} <= names
    bare = {"trafficClass", "minCTAs", "maxCTAs", "splitShare", "netName"}
    known = {"ncclBuffSize", "ibQpsPerConnection", "allgatherAlgo", "allreduceAlgo", "alltoallAlgo", "sendrecvAlgo"}
    for hints in json.loads(files["ncclx/comm_hints.json"]).values():
        for name in hints:
            assert name in bare or name.removeprefix("ncclx::") in known, name
            assert (name in bare) != name.startswith("ncclx::")


def test_megatron_knows_every_group_option_and_description(tmp_path: Path) -> None:
    source = (unpacked("megatron-lm-*.tar.xz", tmp_path) / "megatron/core/parallel_state.py").read_text()
    files = EMITTERS["megatron"](plan())
    stated = yaml.safe_load(files["megatron/nccl_communicators.yaml"])
    assert stated == communicators(plan())
    keys = set(re.findall(r'get_nccl_options\(\s*["\'](\w+)', source))
    assert set(stated) | set(AXES_OF) <= keys
    for option in OPTIONS:
        assert f'"{option}"' in source
    assert "--nccl-communicator-config-path" in files["megatron/megatron_args.sh"]
    described = set(re.findall(r'group_desc=f?["\'](\w+)', source)) | {"HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1"}
    env = EMITTERS["ncclx"](plan())["ncclx/ncclx.env"]
    for name in re.findall(r"(\w+):\d+", env.split("PG_TRAFFIC_CLASS=")[1].splitlines()[0]):
        assert name in described, name
