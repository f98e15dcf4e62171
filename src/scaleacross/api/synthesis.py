"""The verb synthesize: find the fastest collective on a small irregular network, with its proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import get_args

from scaleacross import catalogue
from scaleacross.api.arguments import numbers, one_of, search_arguments, whole_numbers
from scaleacross.api.collective_study import group_on
from scaleacross.errors import InputError
from scaleacross.schedules.collective import CollectiveSchedule
from scaleacross.solvers.collective_synthesis.groups import network_of_group
from scaleacross.solvers.collective_synthesis.lanes import Network, network_of
from scaleacross.solvers.synthesize_collective import Phase, synthesize_collective
from scaleacross.spec.link_graph import LinkGraph
from scaleacross.spec.progress import Progress
from scaleacross.spec.synthesis import SynthesisPhase, SynthesisStudy, SynthesizedMessage, SynthesizedOp
from scaleacross.spec.topology import Topology


@dataclass(frozen=True)
class Synthesized:
    """The result (``study``), and the same as a schedule that ``schedules.collective.check`` has proved."""

    study: SynthesisStudy
    schedule: CollectiveSchedule


def synthesize(
    op: SynthesizedOp,
    size_bytes: float,
    *,
    graph: LinkGraph | str | Path | None = None,
    topology: Topology | str | Path | None = None,
    num_ranks: int | None = None,
    stride: int = 1,
    num_chunks: int | None = None,
    time_limit_s: float = 30.0,
    seed: int = 0,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Synthesized:
    """Return the fastest routing found of every chunk of a collective over a graph, or over one group of a topology.

    Args:
        op: all_gather, reduce_scatter or all_reduce.
        size_bytes: bytes of the full tensor.
        graph: a LinkGraph, a path, or the name of one of the catalogue (``graphs``). State this or ``topology``.
        topology, num_ranks, stride: as for ``collective``; every pair of ranks has a direct link there.
        num_chunks: chunks per rank; None tries 1, 2, 4, …
        time_limit_s: seconds of search, after which the best schedule so far is returned.
        seed: seed of the solver.
        progress: called at every improvement.

    Raises:
        InputError: not exactly one of graph and topology, an unknown name, an argument of a wrong type, ranks that
            cannot reach each other, a size that is not positive, or a group too large to synthesize.
    """
    search_arguments(time_limit_s, seed=seed)
    one_of("op", op, get_args(SynthesizedOp))
    numbers(size_bytes=size_bytes)
    whole_numbers(num_chunks=num_chunks)
    if (graph is None) == (topology is None):
        raise InputError("state a graph or a topology to synthesize on, one of the two")
    if num_chunks is not None and num_chunks < 1:
        raise InputError(f"{num_chunks} chunks per rank; at least 1 is needed")
    if graph is not None:
        found = catalogue.load_graph(graph)
        name, network = found.name, network_of(found)
    else:
        name, network = _of_topology(topology, num_ranks, stride)  # type: ignore[arg-type]
    made = synthesize_collective(
        op, network, size_bytes, num_chunks=num_chunks, time_limit_s=time_limit_s, seed=seed, report=progress
    )
    rate, factor = size_bytes / made.time_s, (network.num_ranks - 1) / network.num_ranks
    kinds = ("reduce_scatter", "all_gather") if op == "all_reduce" else (op,)
    study = SynthesisStudy(
        op=op,
        size_bytes=size_bytes,
        network=name,
        num_ranks=network.num_ranks,
        num_chunks=made.num_chunks,
        time_s=made.time_s,
        algorithm_bytes_per_s=rate,
        bus_bytes_per_s=rate * factor * (2 if op == "all_reduce" else 1),
        bound_s=made.bound_s,
        gap=made.gap,
        elapsed_s=made.elapsed_s,
        seed=seed,
        solver=f"CP-SAT of ortools {version('ortools')}",
        phases=tuple(_stated(kind, phase) for kind, phase in zip(kinds, made.phases, strict=True)),
    )
    return Synthesized(study, made.schedule)


def _of_topology(topology: Topology | str | Path, num_ranks: int | None, stride: int) -> tuple[str, Network]:
    tiling, shape = group_on(topology, num_ranks, stride)
    return tiling.topology.name, network_of_group(tiling.levels, shape, tiling.degree, stride)


def _stated(kind: str, phase: Phase) -> SynthesisPhase:
    tick = phase.tick_s
    messages = tuple(
        SynthesizedMessage(
            source=m.source, destination=m.destination, block=m.block, start_s=m.start * tick, end_s=m.end * tick
        )
        for m in sorted(phase.messages)
    )
    return SynthesisPhase(
        op=kind,
        time_s=phase.time_s,
        bound_s=phase.bound_s,
        status=phase.status,
        messages=messages,
    )
