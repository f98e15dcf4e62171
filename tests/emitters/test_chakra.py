"""Chakra traces decode with an independent reader of the wire format.

They run to their end in ASTRA-sim's order of issue.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner

import instances
import scaleacross as sa
from scaleacross.api import execution_trace
from scaleacross.cli import app
from scaleacross.emitters import chakra
from scaleacross.emitters.rank_order import plan_topology
from scaleacross.errors import EmitError, ScaleAcrossError
from scaleacross.spec.plan import Plan

COMP, SEND, RECV, COLL = 4, 5, 6, 7
KINDS: Final = {0: "all_reduce", 2: "all_gather", 6: "all_to_all", 7: "reduce_scatter"}
ATTRIBUTES: Final = {7: "int32", 9: "int64", 13: "uint64", 27: "bool", 29: "string"}


# --- a reader that shares nothing with the writer -----------------------------------------------------------------------


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> dict[int, list[Any]]:
    """Field number -> values, as varints or bytes."""
    out: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
            out[key >> 3].append(value)
        else:
            assert key & 7 == 2
            length, at = varint(data, at)
            out[key >> 3].append(data[at : at + length])
            at += length
    return out


def numbers(values: list[Any]) -> list[int]:
    """Repeated integers, packed or not."""
    out: list[int] = []
    for value in values:
        if isinstance(value, int):
            out.append(value)
            continue
        at = 0
        while at < len(value):
            one, at = varint(value, at)
            out.append(one)
    return out


def nodes_of(data: bytes) -> list[dict[str, Any]]:
    messages, at = [], 0
    while at < len(data):
        length, at = varint(data, at)
        messages.append(fields(data[at : at + length]))
        at += length
    assert messages[0][1] == [b"0.0.4"]
    out = []
    for node in messages[1:]:
        found: dict[str, Any] = {"id": node[1][0], "name": node[2][0].decode(), "type": node[3][0]}
        found |= {"waits": numbers(node[4] + node[5]), "micros": node.get(7, [0])[0]}
        for attribute in map(fields, node[10]):
            name = attribute.pop(1)[0].decode()
            [(number, [value])] = attribute.items() or [(27, [0])]
            found[name] = value.decode() if ATTRIBUTES[number] == "string" else value
        out.append(found)
    return out


def run(ranks: list[list[dict[str, Any]]], groups: dict[str, list[int]]) -> bool:
    """Whether all nodes can run, lowest number first.

    A rank runs one computation and one communication at a time.
    """
    done: list[set[int]] = [set() for _ in ranks]
    left = [{node["id"]: node for node in nodes} for nodes in ranks]
    busy: list[dict[str, Any] | None] = [None] * len(ranks)
    sent: Counter[tuple[int, int, int]] = Counter()
    moved = True
    while moved:
        moved = False
        for rank, nodes in enumerate(left):
            for node in [one for one in nodes.values() if done[rank] >= set(one["waits"])][:50]:
                if node["type"] == COMP:
                    done[rank].add(nodes.pop(node["id"])["id"])
                    moved = True
                elif busy[rank] is None:
                    busy[rank] = nodes.pop(node["id"])
                    moved = True
            node = busy[rank]
            if node is None:
                continue
            if node["type"] == SEND:
                sent[rank, node["comm_dst"], node["comm_tag"]] += 1
            elif node["type"] == RECV:
                if not sent[node["comm_src"], rank, node["comm_tag"]]:
                    continue
                sent[node["comm_src"], rank, node["comm_tag"]] -= 1
            else:
                members = groups[node["pg_name"]]
                at = [busy[one] for one in members]
                same = ("type", "pg_name", "comm_type", "comm_size")
                if any(one is None or any(one.get(key) != node.get(key) for key in same) for one in at):
                    continue
                for one in members:
                    if one != rank:
                        done[one].add(busy[one]["id"])  # type: ignore[index]
                        busy[one] = None
            done[rank].add(node["id"])
            busy[rank] = None
            moved = True
    return not any(left) and not any(busy)


# --- plans --------------------------------------------------------------------------------------------------------------


Written = tuple[list[list[dict[str, Any]]], dict[str, list[int]], dict[str, Any]]


def written(plan: Plan) -> Written:
    files, _ = chakra.chakra_files(execution_trace(plan), plan)
    ranks = [nodes_of(files[f"trace.{rank}.et"]) for rank in range(plan.degrees.world_size)]  # type: ignore[arg-type]
    return ranks, json.loads(files["comm_groups.json"]), files


def plan_of(**changes: Any) -> Plan:
    degrees = {"pp": 2, "dp_replicate": 2, "tp": 2, "cp": 1, "dp_shard": 1}
    return sa.plan(
        instances.plain_job(1, 1, **{"degrees": degrees, "num_accelerators": 8} | changes),
        time_limit_s=2,
        gap_tolerance=0.1,
        alternatives=False,
    )


@cache
def plans(seeds: tuple[int, ...]) -> tuple[Plan, ...]:
    experts = {"pp": 2, "tp": 1, "cp": 1, "dp_shard": 4, "dp_replicate": 1, "ep": 4}
    out = [plan_of(shard=["none"]), plan_of(workload=instances.moe(), degrees=experts, shard=["optimizer"])]
    out.append(plan_of(degrees={"pp": 1, "tp": 1, "cp": 2, "dp_shard": 4, "dp_replicate": 1}, shard=["parameters"]))
    for seed in seeds:
        try:
            out.append(sa.plan(instances.random_job(seed), time_limit_s=2, gap_tolerance=0.1, alternatives=False))
        except ScaleAcrossError:
            continue
    return tuple(plan for plan in out if plan.degrees.world_size <= 64)


@pytest.mark.slow
def test_traces_run_to_their_end_one_communication_at_a_time() -> None:
    crossed: Counter[int] = Counter()
    for plan in plans((0, 1, 2)):
        ranks, groups, _ = written(plan)
        assert run(ranks, groups), plan.job.name
        crossed.update(node["type"] for nodes in ranks for node in nodes)
    assert set(crossed) == {COMP, SEND, RECV, COLL}


@pytest.mark.heavy
@pytest.mark.parametrize(
    "seeds",
    [(), pytest.param((10,), marks=pytest.mark.heavy), pytest.param((0, 1, 2), marks=pytest.mark.slow)],
    ids=str,
)
def test_every_rank_computes_what_its_plan_says(seeds: tuple[int, ...]) -> None:
    """The busiest rank's seconds equal those of the simulation, up to a microsecond per node."""
    for plan in plans(seeds):
        ranks, _, _ = written(plan)
        most = max(sum(node["micros"] for node in nodes) for nodes in ranks)
        nodes = max(len(one) for one in ranks)
        step = sa.simulate(plan)
        spent = max(row.components_s["compute"] + row.components_s.get("optimizer", 0.0) for row in step.rows)
        assert most * 1e-6 == pytest.approx(spent, abs=nodes * 1e-6)


def test_bytes_are_those_of_the_plan() -> None:
    """Gradients of a group have the bytes that the plan states, in any number of calls.

    Messages go between the right ranks.
    """
    plan = plans(())[0]
    ranks, groups, _ = written(plan)
    stated = {one.op: one.bytes_per_rank * one.per_step for one in plan.collectives if one.axis == "dp_replicate"}
    for rank, nodes in enumerate(ranks):
        mine = [node for node in nodes if node["type"] == COLL and node["name"].startswith("dp_replicate")]
        assert all(rank in groups[node["pg_name"]] for node in nodes if node["type"] == COLL)
        assert {KINDS[node.get("comm_type", 0)] for node in mine} == set(stated)
        largest = stated["all_reduce"]
        assert 0.2 * largest < sum(node["comm_size"] for node in mine) <= largest * (1 + 1e-6)
    sends = Counter(
        (rank, n["comm_dst"], n["comm_tag"]) for rank, nodes in enumerate(ranks) for n in nodes if n["type"] == SEND
    )
    receives = Counter(
        (n["comm_src"], rank, n["comm_tag"]) for rank, nodes in enumerate(ranks) for n in nodes if n["type"] == RECV
    )
    assert sends == receives
    assert max(sends.values()) == 1


def test_network_has_a_dimension_per_level_and_the_units_of_its_reader() -> None:
    plan = plans(())[0]
    _, _, files = written(plan)
    network, system = yaml.safe_load(files["network.yml"]), json.loads(files["system.json"])
    assert network == {
        "topology": ["Switch", "Switch"],
        "npus_count": [4, 2],
        "bandwidth": [round(80e9 / 2**30, 3), network["bandwidth"][1]],
        "latency": [500.0, 10000.0],
    }
    assert network["bandwidth"][1] == pytest.approx(min(8e9, 20e9 / 4) / 2**30, abs=1e-3)
    assert system["all-reduce-implementation"] == ["ring", "ring"]
    assert system["all-to-all-implementation"] == ["direct", "direct"]
    one = plan_topology(plan).buildings[0].accelerator
    assert system["local-mem-bw"] == round(one.memory_bandwidth_bytes_per_s * one.memory_efficiency_fraction / 1e9)
    manifest = json.loads(files["manifest.json"])
    assert manifest["replayed_step_s"] == sa.simulate(plan).step_s
    assert sum(program["ranks"] for program in manifest["programs"]) == 8


def test_unequal_buildings_leave_the_network_out_and_say_so(tmp_path: Path) -> None:
    job = instances.plain_job(1, 2, num_accelerators=12, degrees={"pp": 3, "tp": 2, "dp_replicate": 2})
    plan = sa.plan(job, time_limit_s=2, gap_tolerance=0.1, alternatives=False)
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    result = CliRunner().invoke(app, ["simulate", str(tmp_path / "plan.json"), "--chakra", str(tmp_path / "traces")])
    assert result.exit_code == 0, result.output
    assert (
        "no network.yml: ASTRA-sim's analytical network cannot express the topology: it has equal parts only"
        in result.stderr
    )
    names = {path.name for path in (tmp_path / "traces").iterdir()}
    assert {"trace.0.et", "trace.11.et", "comm_groups.json", "run.sh", "manifest.json"} <= names
    assert "network.yml" not in names
    assert (tmp_path / "traces" / "run.sh").stat().st_mode & 0o100


def test_traces_that_nobody_could_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plans(())[0]
    trace = execution_trace(plan)
    monkeypatch.setattr(chakra, "MOST_BYTES", 2000)
    with pytest.raises(
        EmitError, match=r"Chakra traces of 8 ranks would take .* about 1 ranks of this plan\. Ways out"
    ):
        chakra.chakra_files(trace, plan)
