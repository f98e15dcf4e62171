"""A step as Chakra execution traces, one file per rank, with the files that ASTRA-sim needs to run them.

* ``trace.N.et``         nodes of rank N: computations by seconds, collectives by group, kind and bytes, messages by peer and tag
* ``comm_groups.json``   members of every group, numbered from 1 (0 means all ranks to ASTRA-sim)
* ``network.yml``        one dimension per level; left out where the network is not uniform (``astra_network``)
* ``system.json``, ``remote_memory.json``, ``run.sh``   rings and direct all-to-alls, four chunks, no remote memory; the command
* ``manifest.json``      what was written, from what, and the simulated step time to compare with

ASTRA-sim runs one communication of a rank at a time. So they depend on one another in the order of the simulation.
Otherwise ranks that start with different ones would wait for each other forever. An all-gather states the bytes that a
rank contributes, everything else the whole. Durations are whole microseconds, as in the format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, Final

from scaleacross.emitters.astra_network import astra_network
from scaleacross.emitters.chakra_schema import (
    CLASSES,
    COLL_NODE,
    COLLECTIVES,
    COMP_NODE,
    RECV_NODE,
    SEND_NODE,
    attributes,
    delimited,
)
from scaleacross.emitters.rank_order import plan_topology
from scaleacross.errors import EmitError
from scaleacross.spec.execution_trace import ExecutionTrace, Operation
from scaleacross.spec.plan import Plan

SCHEMA_VERSION: Final = "0.0.4"
NODE_BYTES: Final = 120
"""Approximate bytes of a node, for the forecast of a file's size."""
MOST_BYTES: Final = 512 * 2**20
RUN: Final = """\
#!/usr/bin/env bash
# ASTRA_SIM: the binary of its analytical backend, AstraSim_Analytical_Congestion_Unaware (the one with several dimensions)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"${ASTRA_SIM:?set it to the path of the binary}" \\
    --workload-configuration="$here/trace" \\
    --comm-group-configuration="$here/comm_groups.json" \\
    --system-configuration="$here/system.json" \\
    --remote-memory-configuration="$here/remote_memory.json" \\
    --network-configuration="${1:-$here/network.yml}"
"""


def chakra_files(
    trace: ExecutionTrace, plan: Plan, told: Callable[[int, int], None] | None = None
) -> tuple[dict[str, str | bytes], str]:
    """Return the files by name, and the reason why ``network.yml`` is missing ('' where it is not).

    Args:
        trace: operations of every rank.
        plan: the plan that the trace is of.
        told: called with the number of ranks written and their total.

    Raises:
        EmitError: the traces would be larger than MOST_BYTES.
    """
    _require_a_size_that_can_be_read(trace)
    groups = _Groups(trace)
    files: dict[str, str | bytes] = {}
    for rank in range(trace.num_ranks):
        files[f"trace.{rank}.et"] = delimited(_messages(trace, groups, rank))
        if told is not None:
            told(rank + 1, trace.num_ranks)
    network = astra_network(plan)
    files["comm_groups.json"] = groups.text()
    files |= {"network.yml": network.text} if network.text else {}
    files["system.json"] = _system(network.num_dimensions, _memory_bytes_per_s(plan))
    files["remote_memory.json"] = json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}) + "\n"
    files["run.sh"] = RUN
    files["manifest.json"] = _manifest(trace, files, network.reason)
    return files, network.reason


def _require_a_size_that_can_be_read(trace: ExecutionTrace) -> None:
    nodes = [sum(one.num_calls for one in program) for program in trace.programs]
    size = sum(nodes[program] for program in trace.program_of) * NODE_BYTES
    if size > MOST_BYTES:
        ranks, most = trace.num_ranks, MOST_BYTES // 2**20
        fits = max(1, math.floor(ranks * MOST_BYTES / size))
        raise EmitError(
            f"Chakra traces of {ranks:,} ranks would take about {size / 2**20:,.0f} MiB ({size / ranks / 2**20:.2f} MiB each); "
            f"at most {most} MiB are written, about {fits:,} ranks of this plan. Ways out: the same degrees with fewer replicas "
            "(dp_replicate, dp_shard), or a smaller global batch"
        )


class _Groups:
    """Number the groups of all communicators, from 1."""

    def __init__(self, trace: ExecutionTrace) -> None:
        self.trace = trace
        self.number: dict[tuple[str, int], int] = {}
        self.members: dict[str, list[int]] = {}
        for name, communicator in trace.communicators.items():
            for group in communicator.groups(trace.num_ranks):
                number = len(self.number) + 1
                self.number[name, group[0]] = number
                self.members[str(number)] = list(group)

    def of(self, name: str, rank: int) -> str:
        return str(self.number[name, self.trace.communicators[name].first(rank)])

    def text(self) -> str:
        return json.dumps(self.members) + "\n"


def _messages(trace: ExecutionTrace, groups: _Groups, rank: int) -> Iterator[Any]:
    """Yield metadata, then nodes. Consecutive calls wait for one another, and every communication for the previous one."""
    yield CLASSES["GlobalMetadata"](version=SCHEMA_VERSION)
    last: list[int] = []
    number, spoken = 0, 0
    for operation in trace.programs[trace.program_of[rank]]:
        before = [last[one] for one in operation.waits]
        for _ in range(operation.num_calls):
            number += 1
            node = CLASSES["Node"](id=number, name=operation.label, data_deps=before)
            if operation.kind == "compute":
                node.type, node.duration_micros = COMP_NODE, round(operation.seconds * 1e6)
                node.attr.extend(attributes(is_cpu_op=False))
            else:
                # every communication waits for the previous one: ASTRA-sim runs one per rank at a time
                node.ctrl_deps.extend([spoken] if spoken and spoken not in before else [])
                node.type, found = _communication(trace, groups, rank, operation)
                node.attr.extend(attributes(is_cpu_op=False, **found))
                spoken = number
            yield node
            before = [number]
        last.append(number)


def _communication(
    trace: ExecutionTrace, groups: _Groups, rank: int, operation: Operation
) -> tuple[int, dict[str, int | str]]:
    size = max(1, round(operation.size_bytes))
    if operation.op is not None:
        if operation.op == "all_gather":
            size = max(1, round(operation.size_bytes / trace.communicators[operation.communicator].degree))
        group = groups.of(operation.communicator, rank)
        return COLL_NODE, {"comm_type": COLLECTIVES[operation.op], "comm_size": size, "pg_name": group}
    peer, sends = trace.peer(rank, operation.following), operation.kind == "send"
    ends = {"comm_src": rank if sends else peer, "comm_dst": peer if sends else rank}
    return SEND_NODE if sends else RECV_NODE, {**ends, "comm_tag": operation.tag, "comm_size": size}


def _memory_bytes_per_s(plan: Plan) -> float:
    """Return the attainable memory bandwidth, in bytes/s, of the plan's slowest accelerator type."""
    topology = plan_topology(plan)
    types = [topology.building(share.building).accelerator for share in plan.placement.fill]
    return min(one.memory_bandwidth_bytes_per_s * one.memory_efficiency_fraction for one in types)


def _system(dimensions: int, memory_bytes_per_s: float) -> str:
    """Return system.json: rings, and all-to-alls sent to every member at once.

    Sums run at the accelerator's memory bandwidth.
    """
    kinds = {op: "direct" if op == "all_to_all" else "ring" for op in COLLECTIVES}
    named = {f"{op.replace('_', '-')}-implementation": [kind] * dimensions for op, kind in kinds.items()}
    data = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 4,
        **named,
        "collective-optimization": "localBWAware",
        "local-mem-bw": round(memory_bytes_per_s / 1e9),
        "boost-mode": 0,
        "roofline-enabled": 0,
    }
    return json.dumps(data, indent=2) + "\n"


def _manifest(trace: ExecutionTrace, files: dict[str, str | bytes], reason: str) -> str:
    data = {
        "plan": trace.plan_name,
        "scaleacross": version("scaleacross"),
        "replayed_step_s": trace.step_s,
        "ranks": trace.num_ranks,
        "programs": [
            {"ranks": trace.program_of.count(index), "nodes": sum(one.num_calls for one in program)}
            for index, program in enumerate(trace.programs)
        ],
        "communicators": {
            name: {"degree": one.degree, "stride": one.stride} for name, one in trace.communicators.items()
        },
        "trace_bytes": sum(len(content) for name, content in files.items() if name.endswith(".et")),
        "network_left_out": reason or None,
    }
    return json.dumps(data, indent=2) + "\n"
