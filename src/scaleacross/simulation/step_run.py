"""Simulation of one step of a plan: ``simulate_step`` builds rank classes, step graph and tasks, and runs them.

``steady``, ``result``, ``execution`` and the package ``api`` use the result. CPU time depends on the number of rank
classes, not ranks: a few thousand tasks per class and micro-batch round, at 1 to 3 µs a task (building, lowering,
running). Groups of thousands of members add some 10 ms per kind of collective.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import chosen
from scaleacross.simulation import accounting
from scaleacross.simulation.calls import Calls
from scaleacross.simulation.connections import Drive, Way, library_way, stated_way
from scaleacross.simulation.fabric import Fabric, Floats, Ints, Slowdown, block_width
from scaleacross.simulation.lowering import Lowered, lower
from scaleacross.simulation.machine import WAITED, Machine, build_machine
from scaleacross.simulation.tasks import Timeline
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.parallelism import REDUCED_EVERY_PASS
from scaleacross.spec.placement import strides
from scaleacross.spec.plan import Plan, PredictedCollective
from scaleacross.spec.recomputation import policy_on, regathers_keys
from scaleacross.spec.step_work import PipelineWork
from scaleacross.step.graph import Computation, StepGraph
from scaleacross.step.program import build
from scaleacross.step.setting import SHAPES, Op, RankWork, Setting
from scaleacross.workloads.equal_copies import equal_copies
from scaleacross.workloads.layer_profile import ModelProfile
from scaleacross.workloads.problem import Problem

TASKS: Final = 120_000
"""Number of tasks to aim at. It limits the number of rank classes; below the limit the classes are exact."""
LEAST_CLASSES: Final = 4
"""Classes per pipeline rank that are allowed however many tasks they take. With half as many, simulations of pipelines
that straddle buildings were up to 10 % off those of all classes."""


HOSTS: Final = 2**31
"""Second word of the random seed of host paces; jitter uses the number of a rank class there."""


@dataclass(frozen=True)
class Disturbance:
    """Deviations of a simulated step from its plan.

    Attributes:
        jitter_fraction: standard deviation of the logarithm of every action's seconds.
        host_jitter_fraction: the same for the pace of every host, drawn once per step. A class of ranks runs at the
            pace of its slowest host. This can only make the step slower than simulating every rank: replicas wait for
            each other at its end.
        seed: seed of the jitter and of the links onto which flows are hashed. None: hashed flows load links as
            in the mean of draws, jitter as with 0.
        stragglers: global rank -> its seconds over those stated.
        slowdown: links that are slower.
        micro_batches: micro-batches of every replica, where some take over the work of others; None: the plan's.
        replicated_share: ``step.Setting.replicated_share``; below 1 where replicas synchronize only every few steps.
    """

    jitter_fraction: float = 0.0
    seed: int | None = None
    stragglers: Mapping[int, float] = field(default_factory=dict)
    slowdown: Slowdown = field(default_factory=Slowdown)
    micro_batches: int | None = None
    host_jitter_fraction: float = 0.0
    replicated_share: float = 1.0


@dataclass(frozen=True)
class StepRun:
    """A simulated step: machine, step graph, tasks, and the times of all tasks."""

    machine: Machine
    graph: StepGraph
    lowered: Lowered
    timeline: Timeline

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return self.timeline.total_s

    @cached_property
    def nodes(self) -> Timeline:
        """Start, end and arrival of every node of the graph."""
        return self.lowered.by_node(self.timeline)

    @cached_property
    def by_class(self) -> dict[int, dict[str, float]]:
        """Rank class -> component -> seconds, ``idle`` included."""
        return {who: accounting.components(self.graph.course(who), self.nodes) for who in self.graph.ranks}

    @cached_property
    def critical_path(self) -> list[int]:
        """Nodes of ``accounting.critical_path``, the last first."""
        return accounting.critical_path(self.nodes, self.graph.waits_of)

    @cached_property
    def busiest(self) -> int:
        """Rank class whose seconds are reported for the step: the busiest of those that compute on the critical path.

        Another class may compute as much and wait in a collective for a late replica. Its seconds would blame the
        collective.
        """
        kinds = (self.graph.node(node) for node in self.critical_path)
        awaited = {kind.rank_class for kind in kinds if isinstance(kind, Computation) and kind.component == "compute"}
        ranks = self.graph.ranks
        return _busiest(self.by_class, {who: ranks[who] for who in ranks if not awaited or who in awaited})

    @cached_property
    def components_s(self) -> dict[str, float]:
        """Seconds of the busiest class, by the component names of a plan."""
        return self.components_in((0.0, math.inf))

    def components_in(self, window: accounting.Window) -> dict[str, float]:
        """Return ``components_s`` within a window.

        Waiting up to the seconds of messages on the critical path counts as ``pp``, the rest as ``bubble``.
        """
        spent = accounting.components(self.graph.course(self.busiest), self.nodes, window)
        idle = spent.get(accounting.IDLE, 0.0)
        messages = set(self.graph.messages.values())
        saved = accounting.seconds_of([node for node in self.critical_path if node in messages], self.nodes, window)
        waited = min(saved, idle)
        own = {name: spent.get(name, 0.0) for name in ("compute", "tp", "cp", "ep", "dp", "optimizer")}
        return {**own, "bubble": idle - waited, "pp": spent.get("pp", 0.0) + waited}


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch the garbage collector off: it would scan a hundred thousand small live objects again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@no_collection()
def simulate_step(
    plan: Plan,
    problem: Problem,
    disturbance: Disturbance | None = None,
    fold: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> StepRun:
    """Simulate one step of ``plan``.

    Args:
        problem: the plan's job with everything that it refers to.
        fold: simulate one rank of each class of equal ranks; False simulates every rank.
        progress: called now and then with the number of ended tasks and of all tasks.

    Raises:
        InputError: the plan does not state its computation (older versions), or its schedule cannot run.
    """
    if plan.work is None:
        raise InputError(
            f"plan '{plan.job.name}' does not state its computation, which plans of this version do: "
            "evaluate it again (scaleacross evaluate plan.json -o DIR)"
        )
    disturbed = disturbance or Disturbance()
    machine, pace, counts = _machine(plan, problem, disturbed, fold)
    launch = max(one.collective_start_s for one in _accelerators(machine))
    calls = Calls(machine, launch, equal_copies(problem.job, problem.profile), disturbed.seed)
    setting = replace(_setting(plan, problem.profile), replicated_share=disturbed.replicated_share)
    graph = build(machine, setting, _ranks(plan, plan.work, machine, pace, counts, disturbed))
    lowered = lower(graph, calls, _ways(plan, machine.fabric, _accelerators(machine)))
    return StepRun(machine, graph, lowered, lowered.run(progress))


def _accelerators(machine: Machine) -> list[Accelerator]:
    return [building.accelerator for building in machine.fabric.buildings]


def _busiest(by_class: Mapping[int, Mapping[str, float]], ranks: Mapping[int, RankWork]) -> int:
    """Return the class with most seconds of computation and layer collectives; on a tie, the one that waits least."""

    def busy(who: int) -> tuple[float, float, int]:
        spent = by_class[who]
        own = sum(spent.get(name, 0.0) for name in ("compute", "tp", "cp", "ep"))
        return round(own, 9), -spent[accounting.IDLE], -ranks[who].pipeline_rank

    return max(ranks, key=busy)


def _machine(plan: Plan, problem: Problem, disturbed: Disturbance, fold: bool) -> tuple[Machine, Floats, Ints]:
    """Return the machine, (blocks,) pace of each block, and (blocks,) micro-batches of its replica."""
    degrees, placement = plan.degrees, plan.placement
    width = block_width(problem.topology, placement, degrees) if fold else 1
    if disturbed.stragglers:
        # blocks shrink until every straggler starts one; other ranks of its block are slowed with it
        width = math.gcd(width, *disturbed.stragglers) if fold else 1
    pace = np.ones(degrees.world_size // width)
    for global_rank, factor in disturbed.stragglers.items():
        if not 0 <= global_rank < degrees.world_size:
            raise InputError(f"there is no global rank {global_rank}: the plan uses 0 to {degrees.world_size - 1}")
        pace[global_rank // width] = factor
    counts = _micro_batches(plan, width)
    if disturbed.micro_batches is not None:
        counts = np.full(len(counts), disturbed.micro_batches)
    machine = build_machine(
        problem.topology,
        placement,
        degrees,
        _kinds(plan),
        block_facts=np.stack([pace, counts.astype(float)], axis=1),
        copies=equal_copies(problem.job, problem.profile),
        max_blocks=_most_classes(plan) if fold else None,
        slowdown=disturbed.slowdown,
        width=width,
        waited=(*WAITED, *(("dp_shard", "expert") if plan.decision.shard in REDUCED_EVERY_PASS else ())),
    )
    return machine, pace, counts


def _most_classes(plan: Plan) -> int:
    """Return the number of classes of blocks that keeps tasks near ``TASKS``, by an estimate of tasks per class."""
    layers = max(map(sum, plan.layers_per_stage))
    pieces = layers if plan.decision.shard in REDUCED_EVERY_PASS else plan.decision.pipeline.num_chunks
    each = plan.num_micro_batches * 2 * pieces * 4 + 6 * layers
    return max(LEAST_CLASSES * plan.degrees.pp, TASKS // each)


def replicas_of(plan: Plan, global_rank: Ints) -> Ints:
    """Return the data-parallel replica of every global rank; dp_shard varies fastest over the replica numbers."""
    degrees, stride = plan.degrees, strides(plan.degrees, plan.placement.axis_order)
    replicated = global_rank // stride["dp_replicate"] % degrees.dp_replicate
    return replicated * degrees.dp_shard + global_rank // stride["dp_shard"] % degrees.dp_shard


def _micro_batches(plan: Plan, width: int) -> Ints:
    """Return (blocks,) micro-batches of each block's replica, as stated for the buildings that the replica uses."""
    degrees, placement = plan.degrees, plan.placement
    global_rank = np.arange(0, degrees.world_size, width)
    if plan.decision.batch_shares is None:
        return np.full(len(global_rank), plan.num_micro_batches)
    replica = replicas_of(plan, global_rank)
    ends = np.cumsum([share.num_accelerators for share in placement.fill])
    touched = np.zeros((degrees.dp, len(ends)), dtype=bool)
    touched[replica, np.searchsorted(ends, global_rank, side="right")] = True
    names = [share.building for share in placement.fill]
    stated = {share.buildings: share.num_micro_batches for share in plan.decision.batch_shares}
    first, of = np.unique(replica, return_inverse=True)  # of a block's replicas, which are in one building
    shares = np.array([stated[tuple(names[b] for b in np.flatnonzero(row))] for row in touched[first]])
    return shares[of]


def _use(plan: Plan, one: PredictedCollective) -> str:
    """Return a planned collective's use in a step graph (``step.Setting.size_bytes``)."""
    if one.axis == "cp" and "key" in one.name and plan.degrees.cp_inner > 1:
        return "cp_inner" if one.op == "all_to_all" else "cp_outer"
    if one.axis == "cp" and "key" not in one.name:  # parameters and gradients
        return "cp_states"
    return "expert" if one.axis == "dp_shard" and "expert" in one.name else str(one.axis)


def _ways(plan: Plan, fabric: Fabric, accelerators: Sequence[Accelerator]) -> dict[tuple[str, Op], Way]:
    """Return (use, operation) -> how that kind of collective runs."""
    return {(_use(plan, one), one.op): _way(plan, one, fabric, accelerators) for one in plan.collectives}


def _way(plan: Plan, one: PredictedCollective, fabric: Fabric, accelerators: Sequence[Accelerator]) -> Way:
    """Return how a collective runs: as the plan's network decision says, else with the library's defaults."""
    use = _use(plan, one)
    communicator = SHAPES.get(use, use)
    payload = one.name.partition(" of ")[2]
    for choice in plan.decision.network or ():
        if (choice.communicator, choice.op, choice.payload) == (communicator, one.op, payload):
            return stated_way(one.algorithm, choice, Drive.of(choice.driver, accelerators))
    return library_way(one.algorithm, fabric, Drive.of("multiprocessors", accelerators))


def _setting(plan: Plan, profile: ModelProfile) -> Setting:
    """Return the facts of the plan's decision that its step graph needs."""
    sizes: dict[tuple[str, Op], float] = {(_use(plan, one), one.op): one.bytes_per_rank for one in plan.collectives}
    whole = ("tp", "all_reduce") in sizes
    chosen = plan.decision
    policies = [policy_on(rank, chosen.recompute, chosen.stage_recompute) for rank in range(plan.degrees.pp)]
    keys, tokens = tuple(map(profile.keys_again, policies)), tuple(map(profile.tokens_again, policies))
    gathered = tuple(regathers_keys(policy, plan.job.kept.by) for policy in policies)
    return Setting(plan.job, plan.degrees, chosen.shard, chosen.context_exchange, sizes, whole, keys, tokens, gathered)


def _kinds(plan: Plan) -> dict[str, list[str]]:
    """Return group shape -> kinds of streams that the plan's collectives need."""
    kinds = {"ring": "ring", "tree": "ring", "hierarchical": "levels", "pairwise": "pairwise"}
    out: dict[str, list[str]] = {}
    for one in plan.collectives:
        use = _use(plan, one)
        if use == "pp":
            continue
        needed = out.setdefault(SHAPES.get(use, use), [])
        kind = kinds.get(one.algorithm)
        if kind is not None and kind not in needed:
            needed.append(kind)
    return out


def _ranks(
    plan: Plan, work: Mapping[str, PipelineWork], machine: Machine, pace: Floats, counts: Ints, disturbed: Disturbance
) -> dict[int, RankWork]:
    """Return rank class -> its schedule, chunks and paces."""
    degrees, fabric = plan.degrees, machine.fabric
    stride = strides(degrees, plan.placement.axis_order)["pp"]
    schedules = {m: chosen(plan.decision.pipeline, degrees.pp, m) for m in np.unique(counts).tolist()}
    out = {}
    hosts = _host_paces(machine, disturbed) if disturbed.host_jitter_fraction else {}
    for who in machine.block_classes:
        block = machine.first(who)
        rank = block * fabric.width // stride % degrees.pp
        schedule = schedules[int(counts[block])]
        stated = work[fabric.buildings[int(fabric.building[block])].accelerator.name]
        row = schedule.actions[rank]
        chunks = tuple(stated.chunk(rank, chunk) for chunk in range(schedule.num_chunks))
        paces = _paces(len(row), float(pace[block]) * hosts.get(who, 1.0), disturbed, who)
        out[who] = RankWork(rank, schedule, chunks, stated.optimizer_s[rank], paces)
    return out


def _host_paces(machine: Machine, disturbed: Disturbance) -> dict[int, float]:
    """Return class of blocks -> its slowest host's seconds over those stated. Hosts hold consecutive global ranks."""
    fabric = machine.fabric
    # place: the first accelerator of each block, counted from the start of its building
    before = np.flatnonzero(np.diff(fabric.building, prepend=-1))[fabric.building]
    place = (np.arange(fabric.num_blocks) - before) * fabric.width
    size = np.array([building.accelerators_per_host for building in fabric.buildings])[fabric.building]
    first, last = place // size, (place + fabric.width - 1) // size
    drawn = np.random.default_rng([disturbed.seed or 0, HOSTS]).normal(
        0.0, disturbed.host_jitter_fraction, (len(fabric.buildings), int(last.max()) + 1)
    )
    slowest = drawn[fabric.building, first]
    for further in range(1, int((last - first).max()) + 1):
        slowest = np.maximum(slowest, drawn[fabric.building, np.minimum(first + further, last)])
    most = np.full(len(machine.classes.first), -np.inf)
    np.maximum.at(most, machine.classes.of[: fabric.num_blocks], slowest)
    return {who: float(np.exp(most[who])) for who in machine.block_classes}


def _paces(count: int, pace: float, disturbed: Disturbance, who: int) -> tuple[float, ...]:
    """Return the pace of each of ``count`` actions, with jitter drawn for the rank class ``who``."""
    if not disturbed.jitter_fraction:
        return (pace,) * count
    drawn = np.random.default_rng([disturbed.seed or 0, who]).normal(0.0, disturbed.jitter_fraction, count)
    return tuple((pace * np.exp(drawn)).tolist())
