"""Checks whether a plan is legal, fits in memory and recomputes, without knowledge of how the solver found it.

Counted, by code that shares no formula with the solver and uses no part of ``plan_cost``:

V1 devices    every building exists and holds its share; of several buildings each gives whole hosts; all
              accelerators have one collective library; shares add up to the degrees' product
V2 rules      heads, sequence, layers, experts and batch divide; the schedule accepts its micro-batches; shard level and
              degrees agree; stated layers add up and fill every stage; batch shares match the replicas and add up
V3 memory     bytes of every pipeline rank equal the count by layer and action, and fit its accelerator
V4 placement  group shapes and replica classes, rank by rank from the device list (not by the solver's arithmetic)
V8 failures   no zone (building) holds more data-parallel replicas than the job allows to lose

Recomputed with the cost model, on the groups and replica classes of V4. Errors of the cost model itself are left to the
simulation (``scaleacross verify --deep``) and to the measured runs of ``docs/accuracy.md``.

V5 figures    step time, its interval, components, traffic and collectives recompute from the decision alone
V6 proof      the objective is step time or spending of a step, no bound exceeds it, and the gap follows from both
V7 spending   joules or currency units per step recompute, with groups across buildings counted; limits are met
V9 network    every choice is possible on the groups counted, budgets are kept, its stated figures recompute
V10 target    the job's target expresses the decision; the targets that do are those that the plan states
V11 goodput   the useful share of the time recomputes, and failures of hosts hit as many fault units as are counted
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.layout import Layout
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, REGION, accelerator_types, build_levels
from scaleacross.cost_models.plan_cost import PlanCost, layers_per_stage, plan_cost, simulated_work
from scaleacross.cost_models.trunk_routes import Routes
from scaleacross.errors import VerificationError
from scaleacross.spec.job import DegreeRequest, Job
from scaleacross.spec.offloading import OFFLOADS
from scaleacross.spec.parallelism import WITHOUT_PIPELINE
from scaleacross.spec.placement import Placement, devices
from scaleacross.spec.plan import Decision, Plan
from scaleacross.spec.recomputation import BY_STAGE, OF_STAGES, rerun_period
from scaleacross.spec.step_errors import StepErrors
from scaleacross.spec.topology import Topology
from scaleacross.targets import refused_by_own
from scaleacross.verification.failures import recomputed_states, v8_failures, v11_goodput
from scaleacross.verification.figures import TOLERANCE, v5_figures, v5_interval, v6_proof
from scaleacross.verification.groups import Places, busiest_ways, changes, counted_groups, lying, touched_children
from scaleacross.verification.memory import counted_memory, does_not_fit, takes_headroom, v3_memory
from scaleacross.verification.network import v9_network, v9_report, v9_trunks
from scaleacross.verification.placed import v1_devices
from scaleacross.verification.shares import counted_layout, refused, v2_batch_shares, v2_layers
from scaleacross.verification.spending import v7_spending
from scaleacross.verification.target_fits import target_fits
from scaleacross.workloads.problem import Problem, problem_of

CHECKS: Final[tuple[tuple[str, Literal["counted", "recomputed"], str], ...]] = (
    ("V1", "counted", "devices exist and add up to the degrees; of several buildings each gives whole hosts"),
    ("V2", "counted", "heads, sequence, layers, experts, batch, schedule and shard level obey the rules of the job"),
    (
        "V3",
        "counted",
        "memory of every pipeline rank, layer by layer and action by action, and it fits with the headroom left free",
    ),
    ("V4", "counted", "group shapes and replica classes, rank by rank from the device list"),
    ("V5", "recomputed", "step time, interval, components, traffic, collectives, by the cost model on groups of V4"),
    ("V6", "recomputed", "objective, bounds, gap and status follow from one another"),
    ("V7", "recomputed", "energy or money of a step, where the objective has one"),
    ("V8", "counted", "no zone or building holds more replicas than may be lost"),
    ("V9", "recomputed", "the network's choices are possible, within their budgets, and their figures recompute"),
    ("V10", "counted", "the job's target expresses the decision, by the target's own laws"),
    ("V11", "recomputed", "goodput, where failures are stated; fault units that a host failure hits are counted"),
)
"""(name, how, what) of every check of ``verify``."""

__all__ = [
    "CHECKS",
    "TOLERANCE",
    "Places",
    "count_groups",
    "counted_memory",
    "counted_shapes",
    "does_not_fit",
    "illegal",
    "places_of",
    "recompute",
    "refused_rules",
    "takes_headroom",
    "target_fits",
    "verify",
]


STATE_ANEW: Final = " (of an older version? 'scaleacross evaluate PLAN -o DIR' states its decision by today's laws)"
"""Advice where the decision is legal, but its stated figures do not recompute."""


def verify(plan: Plan, errors: StepErrors | None = None) -> None:
    """Run the checks V1–V11 on ``plan``; with the constants of intervals (``errors``), also check the interval of its
    step time.

    Raises:
        VerificationError: everything that is wrong, one line each.
    """
    problem = problem_of(plan.job)
    wrong, way_out = list(illegal(problem, plan.decision)), ""
    if not wrong:
        topology, way_out = problem.topology, STATE_ANEW
        shapes, layout = counted_shapes(topology, plan.decision), counted_layout(topology, plan.decision)
        cost = _priced(problem, plan.decision, shapes, layout)
        used = accelerator_types([problem.topology.building(share.building) for share in plan.placement.fill])
        work = simulated_work(problem.job, problem.profile, problem.topology, plan.decision)
        memory = counted_memory(problem, plan.decision, layout)
        wrong = list(v3_memory(plan.memory, memory, TOLERANCE))
        # settings that a user supplies may use the headroom: ``evaluate`` notes it
        wrong += takes_headroom(memory) if plan.report.status != "evaluated" else ()
        wrong += [*v5_figures(plan, cost, recomputed_states(problem, plan), work), *v6_proof(plan)]
        wrong += () if errors is None else v5_interval(plan, problem, errors)
        wrong += v7_spending(plan, problem.topology, cost, TOLERANCE)
        wrong += v11_goodput(problem, plan, plan.cost.step_s, TOLERANCE)
        wrong += v9_network(problem.job, plan.decision, cost, shapes, used)
        levels = build_levels(problem.topology, plan.placement.fill)
        wrong += v9_trunks(problem.job, plan.decision, cost, shapes, levels)
        if plan.targets != target_fits(problem, plan.decision):
            wrong.append("V10: what the plan states about targets is not what their laws and memory say")
        if plan.network is not None:
            library = _priced(problem, plan.decision.model_copy(update={"network": None}), shapes, layout)
            wrong += v9_report(plan, cost, library, shapes)
    if wrong:
        listed = "\n".join(f"- {line}" for line in wrong)
        raise VerificationError(f"plan '{plan.job.name}' does not verify{way_out}:\n{listed}")


def recompute(problem: Problem, decision: Decision) -> PlanCost:
    """Return the ``PlanCost`` of a decision from group shapes that are counted rank by rank (V4)."""
    shapes, layout = counted_shapes(problem.topology, decision), counted_layout(problem.topology, decision)
    return _priced(problem, decision, shapes, layout)


def _priced(problem: Problem, decision: Decision, shapes: Mapping[str, GroupShape], layout: Layout) -> PlanCost:
    return plan_cost(problem.job, problem.profile, problem.topology, decision, shapes, layout=layout)


def illegal(problem: Problem, decision: Decision) -> Iterator[str]:
    """Yield every violation of V1, V2, V8 and V10 by a decision, with its numbers; nothing if it is legal."""
    if decision.placement is None:
        yield "V1: there is no placement"
        return
    placed = list(v1_devices(problem.topology, decision.degrees, decision.placement))
    yield from placed
    yield from refused_rules(problem, decision)
    if not placed:
        if decision.batch_shares is not None:
            yield from v2_batch_shares(problem, decision)
        yield from v8_failures(problem, decision)


def _v2_rules(problem: Problem, decision: Decision) -> Iterator[str]:
    job, profile, degrees, pipeline = problem.job, problem.profile, decision.degrees, decision.pipeline
    yield from _v2_pins(job, decision, profile.num_experts > 0)
    for block, _ in profile.blocks:
        if any(number % degrees.tp for number in block.heads):
            heads = f"{block.heads[0]} heads and {block.heads[1]} " + (
                "key/value heads" if block.attention else "groups"
            )
            yield f"V2: tp {degrees.tp} does not divide {heads} of {block.name}"
    halves = 2 * degrees.cp if degrees.cp > 1 else 1
    if job.sequence_length % halves or (job.sequence_length // degrees.cp) % degrees.tp:
        yield f"V2: {job.sequence_length} tokens do not divide by 2·cp {degrees.cp} and tp {degrees.tp}"
    if degrees.cp > 1 and decision.context_exchange == "all_to_all":
        for block, _ in profile.blocks:
            if any(number % (degrees.tp * degrees.cp) for number in block.heads):
                whole = degrees.tp * degrees.cp
                yield f"V2: tp · cp = {whole} does not divide the heads of {block.name}, which all-to-alls over cp ask for"
    if (decision.context_exchange == "all_to_all_ring" and degrees.cp > 1) != (degrees.cp_inner > 1):
        yield (
            f"V2: cp_inner {degrees.cp_inner} with context_exchange {decision.context_exchange}: all_to_all_ring asks for 1 < "
            f"cp_inner < cp {degrees.cp}, all others for 1"
        )
    for block, _ in profile.blocks if degrees.cp_inner > 1 else ():
        whole = degrees.tp * degrees.cp_inner
        if block.recurrence or any(number % whole for number in block.heads):
            yield f"V2: tp · cp_inner = {whole} does not divide the heads of {block.name}, or it has a recurrence"
    if degrees.expert_ranks > 1 and (not profile.num_experts or profile.num_experts % degrees.expert_ranks):
        lanes = f" on {degrees.expert_lanes} lanes of tp and cp" if degrees.expert_lanes > 1 else ""
        yield f"V2: ep {degrees.ep}{lanes} does not divide {profile.num_experts} experts"
    if profile.num_layers + profile.empty_ends < degrees.pp * pipeline.num_chunks:
        yield f"V2: {profile.num_layers} layers cannot fill pp {degrees.pp} × {pipeline.num_chunks} chunks, ends left empty"
    if decision.batch_shares is None:  # else ``v2_batch_shares`` adds up what every replica has
        yield from _v2_equal_shares(job, decision)
    yield from v2_layers(problem, decision)
    yield from _v2_some_layers(problem, decision)
    if decision.shard == "none" and degrees.dp_shard > 1:
        yield f"V2: dp_shard {degrees.dp_shard} with nothing sharded: call it dp_replicate"
    if decision.shard in WITHOUT_PIPELINE and degrees.pp > 1:
        yield (
            f"V2: shard {decision.shard} with pp {degrees.pp}: the backward pass of one micro-batch drops what others in flight "
            "need; use shard gradients, or pp 1"
        )


def _v2_equal_shares(job: Job, decision: Decision) -> Iterator[str]:
    """V2 of replicas with equally many micro-batches: they hold the batch, and the schedule accepts their number."""
    pipeline, pp = decision.pipeline, decision.degrees.pp
    per_round = decision.degrees.dp * pipeline.micro_batch_sequences
    if job.global_batch_sequences % per_round:
        yield f"V2: a batch of {job.global_batch_sequences} sequences does not divide by dp · micro-batch = {per_round}"
        return
    reason = refused(pipeline, pp, job.global_batch_sequences // per_round)
    if reason and pp > 1:
        yield f"V2: {reason}"


def _v2_some_layers(problem: Problem, decision: Decision) -> Iterator[str]:
    """V2 of partial recomputation: a whole number of layers in every chunk, of one kind, without offload."""
    profile, policies, pp = problem.profile, decision.stage_recompute, decision.degrees.pp
    by_stage = decision.recompute == BY_STAGE
    if (
        by_stage != (policies is not None)
        or len(policies or ()) not in (0, pp)
        or not OF_STAGES.issuperset(policies or ())
    ):
        yield f"V2: recompute {decision.recompute}: per_stage alone has stage_recompute: none, full or full:n/d, {pp} times"
        return
    if rerun_period(decision.recompute) == 1 and not by_stage:
        return
    split = layers_per_stage(profile, decision)
    parts = zip(policies, split, strict=True) if policies else [(decision.recompute, [n for one in split for n in one])]
    for policy, chunks in parts:
        counts, period = sorted(set(chunks)), rerun_period(policy)
        if period > 1 and (len(counts) > 1 or counts[0] % period):
            held = " or ".join(map(str, counts))
            yield f"V2: recompute {policy} with {held} layers a chunk: {period} must divide them, all chunks equal"
    if decision.activation_offload:
        yield f"V2: recompute {decision.recompute} with activation_offload: which layers do what is not stated; drop one of them"
    if len(profile.blocks) > 1:
        yield f"V2: recompute {decision.recompute}: the model has layers of {len(profile.blocks)} kinds"


def _v2_pins(job: Job, decision: Decision, has_experts: bool) -> Iterator[str]:
    """V2 of settings that the job pins: degrees, number of accelerators, schedule, recompute policy, shard level."""
    for axis in DegreeRequest.model_fields:
        value = decision.degrees.model_dump()[axis]
        if not job.degrees.allows(axis, value):
            yield f"V2: the job pins degrees.{axis} to {getattr(job.degrees, axis)}, the decision has {value}"
    if not job.allows_accelerators(decision.degrees.world_size):
        used = decision.degrees.world_size
        yield f"V2: the job asks for {job.num_accelerators} accelerators, the decision uses {used}"
    chosen: tuple[tuple[str, object], ...]
    chosen = (("schedules", decision.pipeline.schedule), ("recompute", decision.recompute), ("shard", decision.shard))
    if decision.degrees.cp > 1:
        chosen += (("context_exchange", decision.context_exchange),)
    if decision.degrees.tp * decision.degrees.cp > 1 and has_experts:
        chosen += (("expert_folding", decision.degrees.expert_folding),)
    chosen += tuple((name, getattr(decision, name)) for name in OFFLOADS)
    for name, value in chosen:
        allowed = getattr(job, name)
        if value not in allowed:
            yield f"V2: the job allows {name} {', '.join(map(str, allowed))}; the decision has {value}"


def v10_target(problem: Problem, decision: Decision) -> Iterator[str]:
    """V10: yield what the job's target cannot express; nothing if the batch does not divide, which V2 reports."""
    per_round = decision.degrees.dp * decision.pipeline.micro_batch_sequences
    if decision.batch_shares is not None or problem.job.global_batch_sequences % per_round == 0:
        for line in refused_by_own(problem.job, problem.profile, decision):
            yield f"V10: target {problem.job.target}: {line}"


def counted_shapes(topology: Topology, decision: Decision) -> Mapping[str, GroupShape]:
    """Return the group shapes of every axis, ``ep`` and ``expert``, by inspection of every group rank by rank.

    Raises:
        ValueError: the decision has no placement.
    """
    places = places_of(topology, decision.placed)
    axes = counted_groups(decision.degrees, decision.placed)
    routes = build_levels(topology, decision.placed.fill).routes
    geometry = {
        name: (degree, step if degree > 1 else 1) for name, (degree, step) in axes.items()
    }  # of single ranks: one
    counted = {each: count_groups(places, *each, routes) for each in set(geometry.values())}
    return {name: counted[each] for name, each in geometry.items()}


def places_of(topology: Topology, placement: Placement) -> Places:
    """Return (ranks, NUM_LEVELS) the child of every level that holds each global rank.

    Children are accelerator, scale-up domain, rack, zone, building and run of a region, numbered per level in no order.
    """
    rows = []
    names = [share.building for share in placement.fill]
    regions = [topology.region_of(name) for name in names]
    runs = np.cumsum([0, *(here != there for here, there in pairwise(regions))])
    buildings = {name: (number, topology.building(name)) for number, name in enumerate(names)}
    for global_rank, device in enumerate(devices(topology, placement)):
        number, building = buildings[device.building]
        rack = device.zone * building.racks_per_zone + device.rack
        domain = device.host if building.scale_up_domain == "host" else rack
        rows.append((global_rank, domain, rack, device.zone, 0, runs[number], number))
    ids = np.array(rows, dtype=np.int64)
    ids[:, 1:5] = ids[:, 1:5] * len(names) + ids[:, 6:]  # distinct numbers in different buildings
    return ids[:, :NUM_LEVELS]


def count_groups(places: Places, degree: int, stride: int, routes: Routes) -> GroupShape:
    """Return the shape of an axis' groups by the definition of ``GroupShape``, from the children that groups touch."""
    ranks = np.arange(len(places)).reshape(-1, degree, stride).transpose(0, 2, 1).reshape(-1, degree)
    leaving, exchanged = np.ones(NUM_LEVELS), np.zeros(NUM_LEVELS)
    apart = (places[ranks] != places[ranks[:, :1]]).any(axis=1).T  # (levels, groups): the group touches two children
    for level in range(NUM_LEVELS):
        touched = touched_children(places[ranks], level)
        crosses = np.unique(touched.group[touched.siblings > 1])
        if len(crosses):
            leaving[level] = np.bincount(touched.child[np.isin(touched.group, crosses)]).max()
        if level < CAMPUS:
            sent = touched.sizes * (degree - touched.sizes) / degree
            exchanged[level] = np.bincount(touched.child, sent).max()
    spans = np.where(apart, np.arange(NUM_LEVELS)[:, None], 0).max(axis=0)  # the widest level that a group crosses
    by_span = {span: lying(places[ranks[spans == span]]) for span in np.unique(spans).tolist()}
    every, farthest = lying(places[ranks]), by_span.pop(max(by_span))
    nowhere = np.stack([np.ones(NUM_LEVELS), np.ones(NUM_LEVELS), np.zeros(NUM_LEVELS), np.zeros(NUM_LEVELS)])
    in_building = np.stack([(places[ranks, CAMPUS] == one).sum(axis=1) for one in np.unique(places[:, CAMPUS])])
    exchanged[CAMPUS:] = routes.fullest(in_building @ in_building.T / degree)
    beyond = changes(places[ranks, REGION])
    far = beyond if beyond.any() else changes(places[ranks, CAMPUS])
    boundaries = [np.flatnonzero(row) for row in far[far.any(axis=1)]]
    return GroupShape(
        degree=np.array(float(degree)),
        fanout=every[0],
        members=every[1],
        crossing=np.concatenate([leaving[:CAMPUS], busiest_ways(places[ranks, CAMPUS], places[ranks, REGION])]),
        pairs=every[3],
        tail=np.array(float(min((degree - 1 - row[-1] for row in boundaries), default=degree))),
        spacing=np.array(float(max((np.diff(row).max(initial=1) for row in boundaries), default=1))),
        exchanged=exchanged,
        leaving=leaving,
        farthest_fanout=farthest[0],
        farthest_members=farthest[1],
        taken=every[2],
        farthest_taken=farthest[2],
        entering=np.array(routes.slowest_entry((1 - in_building / degree).sum(axis=1, where=in_building > 0))),
        nearer=np.stack([by_span.get(span, nowhere) for span in range(NUM_LEVELS - 1)]),
    )


def refused_rules(problem: Problem, decision: Decision) -> list[str]:
    """Return the violations of V2 and V10, for a decision whose placement is still open."""
    return [*_v2_rules(problem, decision), *v10_target(problem, decision)]
