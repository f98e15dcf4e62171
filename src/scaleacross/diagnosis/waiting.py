"""Builds the graph of waiting ranks and stuck operations, and finds the faults at its roots; ``verdict`` calls it.

Nodes are ranks and stuck instances. A rank has edges to the instances in which it waits, an instance to the members
that keep it from starting. A path from any victim ends in a *root*: a strongly connected component without an outgoing
edge. A root of one rank is the culprit. A root of one instance has a mismatch, or all members joined it and it is stuck
inside. The ranks of a root of several ranks wait for each other in a cycle. Hundreds of victims thus lead to one root,
in time linear in the size of the dumps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

from scaleacross.diagnosis.align import Alignment, Instance
from scaleacross.diagnosis.mismatch import mismatch
from scaleacross.diagnosis.transport import stuck_inside
from scaleacross.spec.diagnosis import Fault
from scaleacross.spec.trace import Operation, RankTrace

Node = int | Instance


@dataclass(slots=True)
class WaitGraph:
    """Edges between ranks and stuck instances, and the instances whose members mismatch."""

    graph: nx.DiGraph
    mismatches: dict[Instance, Fault]


def waiting_roots(alignment: Alignment) -> list[Fault]:
    """Return the faults at the roots of the graph: most victims first, then the earliest."""
    waits = wait_graph(alignment)
    condensed = nx.condensation(waits.graph)
    faults: list[Fault] = []
    for component in condensed:
        if condensed.out_degree(component):
            continue
        nodes: set[Node] = condensed.nodes[component]["members"]
        victims = _ranks_behind(waits.graph, nodes)
        fault = _root(alignment, waits, nodes)
        if fault is not None:
            faults.append(fault.model_copy(update={"num_victims": len(victims - set(fault.ranks))}))
    return sorted(faults, key=lambda one: (-one.num_victims, one.since_ns or 0))


def wait_graph(alignment: Alignment) -> WaitGraph:
    """Build the graph of the module docstring."""
    graph, mismatches = nx.DiGraph(), {}
    queued: dict[int, list[Instance]] = {}
    for instance in alignment.stuck():
        graph.add_node(instance)
        for rank in instance.pending:
            queued.setdefault(rank, []).append(instance)
        fault = mismatch(alignment, instance)
        if fault is not None:
            mismatches[instance] = fault
        else:
            graph.add_edges_from((instance, rank) for rank in _not_there(alignment, instance))
    for rank, instances in queued.items():
        graph.add_edges_from((rank, instance) for instance in _awaited(rank, instances))
        graph.add_edges_from(_behind(rank, instances, mismatches))
    return WaitGraph(graph, mismatches)


def _not_there(alignment: Alignment, instance: Instance) -> list[int]:
    """Return members that never issued the operation: they have no trace, or their trace proves it."""
    return [*(rank for rank in instance.members if rank not in alignment.traces), *instance.absent]


def _awaited(rank: int, instances: list[Instance]) -> list[Instance]:
    """Return the stuck instances that the program of ``rank`` waits for; all of them if its trace does not state it."""
    if any(instance.operations[rank].awaited is None for instance in instances):
        return instances
    return [instance for instance in instances if instance.operations[rank].awaited]


def _behind(rank: int, instances: list[Instance], mismatches: dict[Instance, Fault]) -> Iterator[tuple[Instance, Node]]:
    """Yield what a queued operation of ``rank`` waits for although peers started it: an earlier one, else ``rank``."""
    ordered = sorted(instances, key=lambda one: one.operations[rank].record_id)
    earlier: Instance | None = None
    for instance in ordered:
        begun = any(one.state != "scheduled" for one in instance.operations.values())
        if instance.operations[rank].state != "scheduled":
            earlier = instance
        elif begun and instance not in mismatches:
            yield instance, rank if earlier is None else earlier


def _ranks_behind(graph: nx.DiGraph, nodes: set[Node]) -> set[int]:
    """Return the ranks from which a path leads to ``nodes``, and the ranks among ``nodes``."""
    seen: set[Node] = set(nodes)
    queue: deque[Node] = deque(nodes)
    while queue:
        for before in graph.predecessors(queue.popleft()):
            if before not in seen:
                seen.add(before)
                queue.append(before)
    return {node for node in seen if isinstance(node, int)}


def _root(alignment: Alignment, waits: WaitGraph, nodes: set[Node]) -> Fault | None:
    ranks = sorted(node for node in nodes if isinstance(node, int))
    instances = sorted((node for node in nodes if isinstance(node, Instance)), key=lambda one: one.since_ns)
    if len(ranks) > 1:
        return _deadlock(waits.graph, ranks, instances)
    if ranks:
        waiting = sorted(
            (node for node in waits.graph.predecessors(ranks[0]) if isinstance(node, Instance)),
            key=lambda one: one.since_ns,
        )
        return _culprit(alignment, ranks[0], waiting)
    instance = instances[0]
    return waits.mismatches.get(instance) or stuck_inside(instance)


def _culprit(alignment: Alignment, rank: int, waiting: list[Instance]) -> Fault | None:
    """Return the fault of a rank that others wait for and that waits for no other; None without waiting instances."""
    if not waiting:
        return None
    instance, trace = waiting[0], alignment.traces.get(rank)
    joined, num_members = len(instance.operations), len(instance.members)
    others = f"{joined} of {num_members} ranks are in {instance.label()}"
    common = {"group": instance.group.name, "sequence": instance.sequence, "op": _op(instance), "num_victims": 0}
    if trace is None:
        verdict, text = "process_dead", f"rank {rank} left no dump; {others}"
    elif rank in instance.operations:
        verdict = "stuck_before"
        text = f"rank {rank} issued {instance.label()} and never started it; {_started(instance)} have"
    else:
        last = trace.operations[-1] if trace.operations else None
        verdict = "not_joined" if _went_on(trace, instance) else "stuck_outside"
        text = (
            f"rank {rank} never issued {instance.label()}, which {joined} of {num_members} ranks are in; "
            + _last_words(last, instance, verdict)
        )
    return Fault(verdict=verdict, ranks=(rank,), since_ns=instance.since_ns, explanation=text, **common)


def _op(instance: Instance) -> str:
    return next(iter(instance.operations.values())).op


def _started(instance: Instance) -> str:
    begun = sum(one.state != "scheduled" for one in instance.operations.values())
    return f"{begun} of {len(instance.members)} ranks"


def _went_on(trace: RankTrace, instance: Instance) -> bool:
    """Return whether the rank issued another operation after the last other member had joined."""
    last_arrival = max(one.created_ns for one in instance.operations.values())
    return any(one.created_ns > last_arrival for one in reversed(trace.operations))


def _last_words(last: Operation | None, instance: Instance, verdict: str) -> str:
    if last is None:
        return "its trace is empty: it has not come to its first operation"
    label = f"{last.op} #{last.sequence} of {last.group.desc or last.group.name}"
    if verdict == "not_joined":
        return f"it went on, last with {label} ({last.state})"
    end = last.completed_ns or last.started_ns or last.created_ns
    quiet_s = (max(one.created_ns for one in instance.operations.values()) - end) / 1e9
    after = f", {quiet_s:.3g} s before the last of them came" if quiet_s > 0 else ""
    return f"its last was {label} ({last.state}{after}), then nothing: its program stands outside of communication"


def _deadlock(graph: nx.DiGraph, ranks: list[int], instances: list[Instance]) -> Fault:
    """Return a fault that describes the shortest cycle through the lowest rank."""
    inside = graph.subgraph([*ranks, *instances])
    ways = [nx.shortest_path(inside, ranks[0], before) for before in inside.predecessors(ranks[0])]
    circle: list[Node] = min(ways, key=len)
    steps, waiter, at = [], ranks[0], instances[0]
    for node in [*circle[1:], ranks[0]]:
        if isinstance(node, int):
            steps.append(f"rank {waiter} waits in {at.label()} for rank {node}")
            waiter = node
        else:
            at = node
    first = min((node for node in circle if isinstance(node, Instance)), key=lambda one: one.since_ns)
    return Fault(
        verdict="deadlock",
        ranks=tuple(node for node in circle if isinstance(node, int)),
        group=first.group.name,
        sequence=first.sequence,
        op=_op(first),
        num_victims=0,
        since_ns=first.since_ns,
        explanation="; ".join(steps[:8]) + (f"; and {len(steps) - 8} more" if len(steps) > 8 else ""),
    )
