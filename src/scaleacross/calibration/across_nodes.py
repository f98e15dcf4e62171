"""Collectives over several nodes: compare them with the planner's time on their machine, and fit its levels.

The planner's time is that of the library's own choice (ring or tree, NCCL's defaults). Groups have equally many ranks
on every node, on whole hosts of the stated accelerator, with one port of the stated fabric for each rank. Machines come
through a ``find`` function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleacross.calibration.collective_data import Measurement
from scaleacross.calibration.collectives import summarise
from scaleacross.calibration.file_scores import GroupErrors, Skipped
from scaleacross.calibration.levels import MIN_SIZES, Bench, LevelFit, fit_levels
from scaleacross.calibration.systems import ACCELERATOR_OF
from scaleacross.cost_models.axes import group_of
from scaleacross.cost_models.groups import GroupShape, exact_shape
from scaleacross.cost_models.levels import Levels, build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.plan_traffic import time_of
from scaleacross.cost_models.step import one_row
from scaleacross.cost_models.traffic import Flow
from scaleacross.errors import InputError
from scaleacross.spec.parallelism import Degrees, GridAxis, PipelineChoice
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import Decision
from scaleacross.spec.topology import Topology
from scaleacross.workloads.equal_copies import EVERY_COPY

ORDER: Final[tuple[GridAxis, ...]] = ("tp", "cp", "dp_shard", "dp_replicate", "pp")


@dataclass(frozen=True)
class Fleet:
    """One kind of machine.

    ``port`` is one accelerator's network port, ``topology`` builds a topology of a given number of accelerators.
    """

    port: str
    accelerators_per_host: int
    topology: Callable[[int], Topology]


FindFleet = Callable[[str, str], Fleet]
"""(accelerator, fabric), as a file words them -> machine. Raises InputError if no machine is known."""


def node_errors(rows: Sequence[Measurement], skipped: list[Skipped], find: FindFleet) -> Iterator[GroupErrors]:
    """Yield (system, operation, size class), port and errors of the rows over several nodes.

    Rows of unknown machines are appended to ``skipped``.
    """
    for label, machine, own in _by_machine(rows, skipped, find):
        found = []
        for (nodes, ranks), group in _grouped(own).items():
            levels = _levels(machine.topology(nodes * machine.accelerators_per_host))
            shape = _shape(machine, nodes, ranks, levels)
            found += [(row, _price_s(row, shape, levels) / row.time_s - 1) for row in group]
        for one in summarise(found):
            if one.op != "all":
                yield (label, one.op, one.size_class), machine.port, np.array(one.errors)


@dataclass(frozen=True)
class NodeFit:
    """Fit of one machine.

    ``label`` is the file's name of it, ``base`` the topology of the catalogue, ``topology`` that with fitted levels.
    """

    label: str
    base: Topology
    topology: Topology
    fits: tuple[LevelFit, ...]


def node_fits(
    rows: Sequence[Measurement], source: str, date: str, skipped: list[Skipped], find: FindFleet
) -> Iterator[NodeFit]:
    """Fit the rack and zone levels of every machine that ``rows`` name."""
    for label, machine, own in _by_machine(rows, skipped, find):
        most = max(row.num_nodes for row in own)
        topology = machine.topology(most * machine.accelerators_per_host)
        topology = topology.model_copy(update={"name": _name(label)})
        levels = _levels(topology)
        shapes = {_key(*key): _shape(machine, *key, levels) for key in _grouped(own)}
        benches = [
            Bench(op, _key(nodes, ranks), tuple(sizes), tuple(sizes.values()), source)
            for (nodes, ranks), group in _grouped(own).items()
            for op in dict.fromkeys(row.op for row in group)
            for sizes in [_medians(row for row in group if row.op == op)]
        ]
        if len({size for bench in benches for size in bench.size_bytes}) < MIN_SIZES:
            reason = f"several nodes: a fit needs {MIN_SIZES} sizes (nccl-tests: -b 1K -e 1G -f 2)"
            skipped.append(Skipped(label, len(own), reason))
            continue
        launch_s = max(accelerator.collective_start_s for accelerator in levels.accelerators)
        fitted, fits = fit_levels(topology, _decision(topology), shapes, benches, launch_s, date)
        yield NodeFit(label, topology, fitted, fits)


def _by_machine(
    rows: Sequence[Measurement], skipped: list[Skipped], find: FindFleet
) -> Iterator[tuple[str, Fleet, list[Measurement]]]:
    for label in dict.fromkeys(row.label for row in rows):
        own = [row for row in rows if row.label == label]
        named = ACCELERATOR_OF.get(label) or own[0].gpu or label
        try:
            machine = find(named, own[0].fabric)
        except InputError as error:
            skipped.append(Skipped(label, len(own), f"several nodes: {error}"))
            continue
        fitting = [row for row in own if machine.accelerators_per_host % (row.num_ranks // row.num_nodes) == 0]
        if len(fitting) < len(own):
            reason = f"ranks per node do not divide the {machine.accelerators_per_host} accelerators of a host"
            skipped.append(Skipped(label, len(own) - len(fitting), reason))
        if fitting:
            yield label, machine, fitting


def _grouped(rows: Iterable[Measurement]) -> dict[tuple[int, int], list[Measurement]]:
    out: dict[tuple[int, int], list[Measurement]] = {}
    for row in rows:
        out.setdefault((row.num_nodes, row.num_ranks), []).append(row)
    return out


def _medians(rows: Iterable[Measurement]) -> Mapping[float, float]:
    times: dict[float, list[float]] = {}
    for row in rows:
        times.setdefault(float(row.size_bytes), []).append(row.time_s)
    return {size: float(np.median(found)) for size, found in sorted(times.items())}


def _levels(topology: Topology) -> Levels:
    return build_levels(topology, _fill(topology))


def _fill(topology: Topology) -> tuple[BuildingShare, ...]:
    (building,) = topology.buildings
    return (BuildingShare(building=building.name, num_accelerators=building.num_accelerators),)


def _shape(machine: Fleet, nodes: int, ranks: int, levels: Levels) -> GroupShape:
    return exact_shape(ranks, machine.accelerators_per_host * nodes // ranks, levels)


def _price_s(row: Measurement, shape: GroupShape, levels: Levels) -> float:
    launch_s = max(accelerator.collective_start_s for accelerator in levels.accelerators)
    group = group_of("library", "dp_shard", one_row(shape), links_of(levels), launch_s)
    return float(
        time_of(Flow("dp_shard", row.op, "", "dp_shard", float(row.size_bytes), {}), group, EVERY_COPY).time_s[0]
    )


def _decision(topology: Topology) -> Decision:
    return Decision(
        degrees=Degrees(dp_replicate=topology.num_accelerators),
        pipeline=PipelineChoice(schedule="1F1B", num_chunks=1, micro_batch_sequences=1),
        recompute="none",
        shard="none",
        placement=Placement(axis_order=ORDER, fill=_fill(topology)),
    )


def _key(nodes: int, ranks: int) -> str:
    return f"{ranks} ranks on {nodes} nodes"


def _name(label: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in label.lower()).strip("._-")[:48] + "-nodes"
