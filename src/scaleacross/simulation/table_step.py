"""Simulation of one step of a recommendation plan on the links of its topology; called by ``api.recommendation_study``.

Every rank of every replica group is simulated. Its device runs look-ups forward, bottom MLP, interaction and top MLP
both ways, bottom MLP back, and row updates. The links carry:

* vectors of whole, column- and host-wise tables, and rows that are not pooled: one flow per holder to all ranks of its
  group, after its look-ups. Their gradients return the same way once every top MLP is done. A host that shares a pooled
  table reduces its partial sums first.
* pooled tables split by rows over all ranks: reduce-scatter of partial sums forward, all-gather of gradients back
* all-reduce of data-parallel tables and of dense gradients, concurrent with these gradients; average over replica
  groups at the end

Flows of vectors and gradients hold multiprocessors while the bottom MLP runs. Flows share links max-min fairly.
Look-ups take the seconds that the plan states for a rank, a third of them forward (rows are read once forward, read and
written back). Bytes are counted here from the model. Row numbers travel ahead of the step and are left out, as in the
estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from scaleacross.errors import InputError
from scaleacross.simulation import patterns
from scaleacross.simulation.calls import Calls
from scaleacross.simulation.connections import BY_KERNELS, Drive, Way
from scaleacross.simulation.engine import Simulation
from scaleacross.simulation.fabric import Fabric, Floats, Slowdown
from scaleacross.simulation.machine import Machine, build_machine
from scaleacross.simulation.tasks import Path, Timeline
from scaleacross.spec.exchange_codec import TableCodec
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.parallelism import Degrees, GridAxis
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.recommendation import BYTES_OF, RecommendationPlan, adds_partial_sums, sends_vectors
from scaleacross.spec.simulation import LinkUse, SimulatedTables, TablePhase
from scaleacross.spec.topology import Topology, with_host_shares
from scaleacross.step.setting import Op
from scaleacross.workloads.recommendation import Dlrm

MOST_RANKS: Final = 2048
"""Largest number of ranks. Each rank's flow loads links of all others: more ranks take minutes and gigabytes."""
FORWARD: Final = 1 / 3
_GRADIENT_BYTES: Final = 4
_WAY: Final = Way("hierarchical")


@dataclass
class _Sent:
    """Bytes of a step in one replica group.

    Attributes:
        vectors: codec (None: not encoded) -> (ranks,) bytes of vectors that each rank sends forward.
        back: (ranks,) gradients of vectors that each rank receives.
        inside: (ranks,) partial sums that each rank reduces within its host.
        stored: (ranks,) table bytes that each rank stores.
        row_wise: vectors of all pooled row-wise tables.
        copies: gradients of all data-parallel tables.
    """

    vectors: dict[TableCodec | None, Floats]
    back: Floats
    inside: Floats
    stored: Floats
    row_wise: float = 0.0
    copies: float = 0.0


def sent_bytes(plan: RecommendationPlan, model: Dlrm) -> _Sent:
    """Count the bytes that the ranks of one group send, from the tables and their placement."""
    job, size = plan.job, len(plan.ranks)
    batch = job.global_batch_samples / plan.decision.num_groups
    placed = {one.table: one for one in plan.decision.tables}
    codecs = {one.table: one.model_copy(update={"table": "any"}) for one in plan.decision.codecs}
    sent = _Sent({}, *np.zeros((3, size)))
    for table in model.expanded():
        own = placed[table.name]
        vectors = batch * table.outputs_per_sample * BYTES_OF[job.exchange_precision]
        copied = own.sharding == "data_parallel"
        held = table.num_elements * BYTES_OF[job.table_precision] / (1 if copied else len(own.ranks))
        np.add.at(sent.stored, list(own.ranks), held)
        if copied:
            sent.copies += table.num_elements * _GRADIENT_BYTES
        elif not sends_vectors(own.sharding, table.pooled):
            sent.row_wise += vectors * table.dimension
        else:
            by_rows = own.sharding in ("row_wise", "table_row_wise")
            each = vectors * (table.dimension / len(own.ranks) if by_rows else own.column_width)
            forward = sent.vectors.setdefault(codecs.get(table.name), np.zeros(size))
            np.add.at(forward, list(own.ranks), each)
            np.add.at(sent.back, list(own.ranks), each)
            if adds_partial_sums(own.sharding, table.pooled):
                sent.inside[list(own.ranks)] += vectors * table.dimension * (1 - 1 / len(own.ranks))
    return sent


@dataclass
class _TableRun:
    """The step under construction.

    ``groups``: replica group -> its ranks; ``phases``: name of a phase -> tasks that end it, in the order of the step.
    """

    machine: Machine
    calls: Calls
    simulation: Simulation
    groups: Mapping[int, Sequence[int]]
    drive: Drive = BY_KERNELS
    phases: dict[str, list[int]] = field(default_factory=dict)

    def all_done(self, name: str, after: Sequence[int]) -> int:
        """End the phase ``name`` with all of ``after``; return a task that ends when they have arrived."""
        self.phases[name] = list(after)
        return self.simulation.compute(name, 0.0, after=after)

    def collective(self, shape: str, op: Op, sizes: ArrayLike, after: Sequence[int]) -> list[int]:
        """Add a collective of all groups of ``shape``; return the last task of every group that has something to send.

        Args:
            sizes: bytes of every group in the order of the machine's rows, or one figure for all.
        """
        members, out = self.machine.shapes[shape].members, []
        for row, size in enumerate(np.broadcast_to(sizes, len(members)).tolist()):
            if size <= 0 or members.shape[1] <= 1:
                continue
            last, group = list(after), self.machine.offsets[shape] + row
            for one in self.calls.of(shape, group, (op,), (_WAY,), size):
                cap = one.cap_bytes_per_s
                name = f"{op} of {shape}"
                last = [self.simulation.flow(name, one.amount, one.load, one.fixed_s, last, cap_bytes_per_s=cap)]
            out += last
        return out

    def moved(
        self, name: str, size: float, path: Path, latency_s: float, after: Sequence[int], rank: int, crossing: float
    ) -> int:
        """Add the flow of one rank's bytes in an all-to-all, sent or received; return its task.

        Args:
            crossing: share of ``size`` that leaves the rank, and so is limited by the driver's port.
        """
        drive, port = self.drive, int(self.machine.fabric.port(np.array([rank]))[0])
        # a slower driver loads the port for longer; other links see the same bytes
        path = tuple((link, load / drive.inside_share if link == port else load) for link, load in path)
        cap = drive.port_bytes_per_s / crossing if crossing else np.inf
        held, fixed_s = drive.held_fraction, latency_s + drive.start_s
        return self.simulation.flow(
            name, size, path, fixed_s, after, cap_bytes_per_s=cap, holds=(rank,), held_fraction=held
        )


def simulated_tables(
    plan: RecommendationPlan,
    model: Dlrm,
    topology: Topology,
    allocation: Sequence[BuildingShare],
    slowdown: Slowdown | None = None,
    stragglers: Mapping[int, float] | None = None,
    what_if: Sequence[str] = (),
) -> SimulatedTables:
    """Simulate one step of ``plan``.

    Args:
        allocation: the allocation, accelerators of every building that the plan uses.
        stragglers: rank -> its seconds of computation over those stated.

    Raises:
        InputError: the plan does not state its dense computation (older versions, or TorchRec's estimator), has too many ranks,
            or there is no such rank.
    """
    cost, size, groups = plan.cost, len(plan.ranks), plan.decision.num_groups
    whole = size * groups
    if cost.top_s is None or cost.bottom_s is None:
        raise InputError(
            f"plan '{plan.job.name}' does not state its dense computation: plan it again with cost_model scaleacross"
        )
    if whole > MOST_RANKS:
        raise InputError(f"{whole:,} accelerators: steps of up to {MOST_RANKS:,} are simulated")
    if strange := [rank for rank in stragglers or {} if not 0 <= rank < whole]:
        raise InputError(f"there is no rank {strange[0]}: the plan uses 0 to {whole - 1}")
    pace = np.ones(whole)
    for rank, factor in (stragglers or {}).items():
        pace[rank] = factor
    if plan.decision.driver == "host":
        topology = with_host_shares(topology)
    machine = _machine(plan, topology, allocation, slowdown)
    launch = max(building.accelerator.collective_start_s for building in machine.fabric.buildings)
    run = _TableRun(
        machine,
        Calls(machine, launch),
        Simulation(machine.capacities),
        {g: [int(one) for one in row] for g, row in enumerate(machine.shapes["dp_shard"].members)},
        Drive.of(plan.decision.driver, [topology.building(one.building).accelerator for one in allocation]),
    )
    _add_tasks(run, plan, model, pace, (cost.top_s, cost.bottom_s))
    return _facts(plan, run, run.simulation.run(), tuple(what_if))


def _machine(
    plan: RecommendationPlan, topology: Topology, allocation: Sequence[BuildingShare], slowdown: Slowdown | None
) -> Machine:
    """Build the machine: replica groups are ``dp_shard`` groups, their equal ranks ``dp_replicate`` groups."""
    degrees = Degrees(dp_shard=len(plan.ranks), dp_replicate=plan.decision.num_groups)
    near: tuple[GridAxis, GridAxis] = ("dp_shard", "dp_replicate")
    axes = near if plan.decision.replicas == "outer" else (near[1], near[0])
    placement = Placement(axis_order=("tp", "cp", *axes, "pp"), fill=tuple(allocation))
    kinds: dict[str, list[str]] = {shape: ["levels"] for shape in near}
    return build_machine(topology, placement, degrees, kinds, slowdown=slowdown, width=1)


def _add_tasks(
    table_run: _TableRun, plan: RecommendationPlan, model: Dlrm, pace: Floats, dense_s: tuple[float, float]
) -> None:
    """Add the tasks of the step."""
    run, sent = table_run.simulation, sent_bytes(plan, model)
    lookup = {rank: plan.ranks[i].lookup_s for own in table_run.groups.values() for i, rank in enumerate(own)}
    every = sorted(lookup)

    def computed(name: str, rank: int, seconds: float, after: Sequence[int] = ()) -> int:
        return run.compute(name, seconds * float(pace[rank]), rank, after, lane=rank)

    read = {rank: computed("look-ups", rank, lookup[rank] * FORWARD) for rank in every}
    forward = _vectors(table_run, sent, read)
    forward += table_run.collective("dp_shard", "reduce_scatter", sent.row_wise, [*read.values()])
    below = [computed("bottom MLP", rank, dense_s[1] / 3) for rank in every]
    there = table_run.all_done("look-ups and vectors forward", [*forward, *read.values()])
    decode_s = _decoding_s(table_run, sent)
    top = [computed("top MLP", rank, dense_s[0] + decode_s, (there, below[i])) for i, rank in enumerate(every)]
    table_run.all_done("dense networks", top)
    done = run.compute("all top MLPs", 0.0, after=top)
    below = [computed("bottom MLP, back", rank, 2 / 3 * dense_s[1], (done,)) for rank in every]
    back = _gradients(table_run, sent, done)
    gathered = table_run.collective("dp_shard", "all_gather", sent.row_wise, [done])
    summed = table_run.collective("dp_shard", "all_reduce", sent.copies, [done])
    summed += _dense_gradients(table_run, 4.0 * model.dense_weights, below)
    updated = [
        computed("row updates", rank, lookup[rank] * (1 - FORWARD), [*back.get(rank, ()), *gathered]) for rank in every
    ]
    table_run.all_done("gradients back and row updates", [*updated, *summed])
    place = {rank: number for own in table_run.groups.values() for number, rank in enumerate(own)}
    stored = sent.stored[[place[int(row[0])] for row in table_run.machine.shapes["dp_replicate"].members]]
    synced = table_run.collective("dp_replicate", "all_reduce", stored / plan.job.sync_interval_steps, updated)
    table_run.all_done("average over replica groups", [*synced, *updated, *summed])


def _vectors(table_run: _TableRun, sent: _Sent, read: Mapping[int, int]) -> list[int]:
    """Add the vectors forward: reduced inside hosts, encoded, sent. Return the flows."""
    run, fabric, out = table_run.simulation, table_run.machine.fabric, []
    for own in table_run.groups.values():
        start = {
            rank: _inside(table_run, rank, float(sent.inside[place]), [read[rank]]) for place, rank in enumerate(own)
        }
        for codec, sizes in sent.vectors.items():
            paths, fixed, crossing = _spread(fabric, own, codec, backward=False)
            for place, rank in enumerate(own):
                if sizes[place] <= 0:
                    continue
                before = start[rank]
                if codec is not None:
                    seconds = float(sizes[place]) * crossing[place] / codec.encode_bytes_per_s
                    before = [run.compute("encode", seconds, rank, before, lane=rank)]
                latency = table_run.calls.launch_s + fixed[place]
                size = float(sizes[place])
                out.append(table_run.moved("vectors", size, paths[place], latency, before, rank, 1 - 1 / len(own)))
    return out


def _gradients(run: _TableRun, sent: _Sent, done: int) -> dict[int, list[int]]:
    """Add the gradients of vectors to their holders; return rank -> the tasks that it waits for."""
    out: dict[int, list[int]] = {}
    for own in run.groups.values():
        paths, fixed, _ = _spread(run.machine.fabric, own, None, backward=True)
        for place, rank in enumerate(own):
            if sent.back[place] > 0:
                latency = run.calls.launch_s + fixed[place]
                size = float(sent.back[place])
                came = run.moved("gradients", size, paths[place], latency, [done], rank, 1 - 1 / len(own))
                out[rank] = _inside(run, rank, float(sent.inside[place]), [came])
    return out


def _inside(run: _TableRun, rank: int, size: float, before: list[int]) -> list[int]:
    """Add the reduction of partial sums within a host, over the port of the rank; return the tasks to wait for."""
    if size <= 0:
        return before
    fabric = run.machine.fabric
    rate = float(fabric.rates[0, fabric.building[rank]])
    return [run.simulation.flow("sums in the host", size, ((rank, 1 / rate),), run.calls.launch_s, before)]


def _dense_gradients(run: _TableRun, size: float, after: list[int]) -> list[int]:
    """Add an all-reduce over all ranks: scatter within a group, all-reduce over the groups, gather within a group."""
    parts: list[int] = after
    degree = run.machine.shapes["dp_shard"].degree
    turns: tuple[tuple[str, Op, float], ...] = (
        ("dp_shard", "reduce_scatter", size),
        ("dp_replicate", "all_reduce", size / degree),
        ("dp_shard", "all_gather", size),
    )
    for shape, op, each in turns:
        parts = run.collective(shape, op, each, parts) or parts
    return parts


def _decoding_s(run: _TableRun, sent: _Sent) -> float:
    """Return the seconds in which one rank decodes its vectors; every holder sends all ranks the same share."""
    own, seconds = run.groups[0], 0.0
    for codec, sizes in sent.vectors.items():
        if codec is not None:
            crossing = _spread(run.machine.fabric, own, codec, backward=False)[2]
            seconds += float((sizes * crossing).sum()) / len(own) / codec.decode_bytes_per_s
    return seconds


def _spread(
    fabric: Fabric, own: Sequence[int], codec: TableCodec | None, backward: bool
) -> tuple[list[Path], Floats, Floats]:
    """Return per rank: loads of bytes sent evenly to its group (or received), latency (s), share on encoded levels."""
    ratios = {LINK_LEVELS.index(one): codec.ratio for one in codec.levels} if codec else {}
    loads, latency, coded = patterns.spread(fabric, np.array(own), ratios, backward)
    return [*loads], latency, coded


def _facts(plan: RecommendationPlan, run: _TableRun, timeline: Timeline, what_if: tuple[str, ...]) -> SimulatedTables:
    """Return the simulated step: phases in order, each from the end of the one before, and the use of links."""
    phases, now = [], 0.0
    for name, tasks in run.phases.items():
        over = float(timeline.arrival_s[tasks].max())
        phases.append(TablePhase(name=name, seconds=over - now))
        now = over
    carried = np.zeros(len(run.machine.capacities))
    for task in run.simulation.tasks:
        for link, weight in task.path or ():
            carried[link] += weight * task.amount
    step_s = timeline.total_s
    links = [
        LinkUse(
            name=name,
            capacity_bytes_per_s=float(run.machine.capacities[link]),
            carried_bytes=float(carried[link]),
            mean_utilisation=float(carried[link] / run.machine.capacities[link] / step_s),
        )
        for link, name in run.machine.fabric.link_names.items()
        if carried[link] > 0
    ]
    return SimulatedTables(
        plan_name=plan.job.name,
        step_s=step_s,
        predicted_step_s=plan.cost.step_s,
        phases=tuple(phases),
        num_ranks=len(plan.ranks) * plan.decision.num_groups,
        num_tasks=len(run.simulation.tasks),
        what_if=what_if,
        links=tuple(sorted(links, key=lambda one: -one.mean_utilisation)),
    )
