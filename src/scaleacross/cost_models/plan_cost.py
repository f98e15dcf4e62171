"""Cost model of one decision: step time and its breakdown, memory per stage, traffic per level, and collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scaleacross.cost_models.axes import (
    Networks,
    group_of,
    network_of,
)
from scaleacross.cost_models.candidates import Candidates, candidate_of
from scaleacross.cost_models.chunk_work import chunk_work
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.layer_seconds import TimedLayers
from scaleacross.cost_models.layout import Layout, layout_of, types_of_ranks
from scaleacross.cost_models.levels import CAMPUS, Levels, accelerator_types, build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.memory import host_bytes, memory_parts
from scaleacross.cost_models.offloading import host_room_bytes
from scaleacross.cost_models.overlap import Window
from scaleacross.cost_models.pipeline.placed import TimedPipeline
from scaleacross.cost_models.plan_traffic import level_traffic, predicted
from scaleacross.cost_models.recomputation import on_ranks, own
from scaleacross.cost_models.replica_kinds import KnownReplicas, OnLayout, Replicas
from scaleacross.cost_models.stages import block_counts, equal_stages, every_rank, head_rank, layers_of_ranks
from scaleacross.cost_models.step import StepTimes, exact_shapes, one_row
from scaleacross.cost_models.traffic import Flow, Volumes, flows
from scaleacross.schedules.pipeline import SCHEDULES, chosen
from scaleacross.schedules.pipeline.check import peak_in_flight
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import CostBreakdown, Decision, LevelTraffic, PredictedCollective, StageMemory
from scaleacross.spec.step_work import PipelineWork
from scaleacross.spec.topology import Topology
from scaleacross.workloads.layer_profile import ModelProfile


@dataclass(frozen=True)
class PlanCost:
    """The computed part of a plan.

    Attributes:
        volumes: the single row that sets the step time, that of the longest kind of rank.
        pipeline: the timed pipeline of its replicas.
        windows: windows of the rank of these with most exposed traffic.
        gradient_shapes: shapes of that rank's groups that reduce gradients alone on inter-building links.
        rank_shapes: shapes of the groups that one pipeline rank's passes call, for communicators that cross buildings.
        sent: communication of ``volumes``, from which collectives and traffic are computed.
    """

    placement: Placement
    layers_per_stage: tuple[tuple[int, ...], ...]
    num_micro_batches: int
    cost: CostBreakdown
    memory: tuple[StageMemory, ...]
    traffic: tuple[LevelTraffic, ...]
    collectives: tuple[PredictedCollective, ...]
    volumes: Volumes
    windows: tuple[Window, ...]
    gradient_shapes: Mapping[str, GroupShape]
    rank_shapes: Mapping[str, GroupShape]
    pipeline: TimedPipeline
    sent: tuple[Flow, ...]


def plan_cost(
    job: Job,
    profile: ModelProfile,
    topology: Topology,
    decision: Decision,
    shapes: Mapping[str, GroupShape] | None = None,
    levels: Levels | None = None,
    layout: Layout | None = None,
    network: Networks | None = None,
) -> PlanCost:
    """Compute all figures of one decision with its placement.

    Args:
        shapes: group shapes per axis, ``ep`` and ``expert``; None counts them on the placement (verification gives
            them).
        levels: figures of the allocation; None reads them from the topology (``sensitivity`` changes them).
        layout: replica classes of the placement; None reads them from the topology.
        network: how communicators run their collectives; None reads it from the decision. A search passes "best".

    Raises:
        ValueError: the decision has no placement, its numbers do not divide, or its batch shares name other classes of
            replicas than the placement has.
        KeyError: a building of the placement is not in the topology.
    """
    placement = _placement(decision)
    levels = levels or build_levels(topology, placement.fill)
    layout = layout_of(topology, decision) if layout is None else layout
    if shapes is None:
        shapes = exact_shapes(decision.degrees, placement.axis_order, levels)
    candidates = candidate_of(decision, job.global_batch_sequences)
    groups = groups_of(shapes, levels, network_of(decision) if network is None else network)
    given = _given(job, profile, levels, decision, layout)
    slowest = max(Replicas.of(given).placed(placement, groups, levels).kinds(), key=lambda kind: kind.step_s)
    volumes, times = slowest.busiest, slowest.times
    sent = flows(slowest.calling)
    collectives = tuple(predicted(flow, groups[flow.shape], volumes.equal_copies) for flow in sent)
    step_s = float(times.step_s[0])
    spans = {flow.axis: LINK_LEVELS[int(shapes[flow.axis].span)] for flow in sent}
    return PlanCost(
        placement=placement.model_copy(update={"spans": spans}),
        layers_per_stage=given.split,
        num_micro_batches=max(given.micro_batches),
        cost=_breakdown(job, profile, peak_flop_per_s(topology, placement, job), candidates, times),
        memory=stage_memory(job, profile, levels.accelerators, decision, candidates, layout),
        traffic=level_traffic(sent, collectives, shapes, levels, decision.pipeline, step_s, decision.network or ()),
        collectives=collectives,
        volumes=volumes,
        windows=slowest.least_windows,
        gradient_shapes=slowest.gradient_shapes,
        rank_shapes=slowest.rank_shapes,
        pipeline=slowest.pipeline,
        sent=tuple(sent),
    )


def simulated_work(job: Job, profile: ModelProfile, topology: Topology, decision: Decision) -> dict[str, PipelineWork]:
    """Computation of a placed decision by accelerator type, as a plan states it for simulation. Raises ValueError as
    ``plan_cost`` does."""
    accelerators = accelerator_types([topology.building(share.building) for share in _placement(decision).fill])
    candidates = on_ranks(candidate_of(decision, job.global_batch_sequences), decision.stage_recompute)
    return chunk_work(TimedLayers.of(profile, job, accelerators, candidates), layers_per_stage(profile, decision))


def step_seconds(
    job: Job,
    profile: ModelProfile,
    topology: Topology,
    decision: Decision,
    groups: Mapping[str, Group],
    levels: Levels | None = None,
    known: KnownReplicas | None = None,
    limit_s: float = np.inf,
    after_pipeline_s: float = 0.0,
    layout: Layout | None = None,
) -> float:
    """The step time of ``plan_cost`` alone, s, for searches and fits, which time many decisions on few placements.

    Args:
        groups: of every communicator (``groups_of``); they remember what no size changes.
        known: remembers what placements and networks of one decision share.
        limit_s: the result is inf as soon as the step is known to take this long; its exact length is not computed.
        after_pipeline_s: lower bound on the part of the step after the pipelines.
        layout: replica classes of the placement; None reads them from the topology.
    """
    placement = _placement(decision)
    levels = levels or build_levels(topology, placement.fill)
    layout = layout_of(topology, decision) if layout is None else layout
    given = _given(job, profile, levels, decision, layout)
    return (known or KnownReplicas()).of(given).placed(placement, groups, levels).step_s(limit_s, after_pipeline_s)


def groups_of(shapes: Mapping[str, GroupShape], levels: Levels, network: Networks) -> dict[str, Group]:
    """The groups of every communicator, one row each, on the links of an allocation.

    Groups inside buildings are also given the links of each accelerator type.
    """
    links, launch_s = links_of(levels), max(one.collective_start_s for one in levels.accelerators)
    groups = {name: group_of(network, name, one_row(shape), links, launch_s) for name, shape in shapes.items()}
    own = {name: links_of(one) for name, one in levels.by_type.items()}
    inside = {name for name, shape in shapes.items() if own and shape.span < CAMPUS}
    return groups | {
        name: replace(groups[name], by_type={of: replace(groups[name], links=each) for of, each in own.items()})
        for name in inside
    }


def placed_shapes(topology: Topology, decision: Decision) -> Mapping[str, GroupShape]:
    """Group shapes of a placed decision, per axis, ``ep`` and ``expert``. Raises ValueError as ``plan_cost`` does."""
    placement = _placement(decision)
    levels = build_levels(topology, placement.fill)
    return exact_shapes(decision.degrees, placement.axis_order, levels)


def placed_groups(topology: Topology, decision: Decision, shapes: Mapping[str, GroupShape]) -> Mapping[str, Group]:
    """``groups_of`` for a placed decision with its network. Raises ValueError as ``plan_cost`` does."""
    return groups_of(shapes, build_levels(topology, _placement(decision).fill), network_of(decision))


def _placement(decision: Decision) -> Placement:
    placed, needed = decision.placed.num_accelerators, decision.degrees.world_size
    if placed != needed:
        raise ValueError(f"the placement holds {placed} accelerators, the degrees need {needed}: {decision.degrees}")
    return decision.placed


def layers_per_stage(profile: ModelProfile, decision: Decision) -> tuple[tuple[int, ...], ...]:
    """[stage][chunk] -> layers, as the decision states them or else as equal as possible."""
    if decision.layers_per_stage is not None:
        return decision.layers_per_stage
    pp, num_chunks, name = decision.degrees.pp, decision.pipeline.num_chunks, decision.pipeline.schedule
    return equal_stages(profile.num_layers, pp, num_chunks, SCHEDULES[name].placement)


def micro_batches_of(decision: Decision, candidates: Candidates, layout: Layout) -> tuple[int, ...]:
    """Micro-batches of every replica class of ``layout``.

    Raises:
        ValueError: the batch shares are not those of the placement's replica classes.
    """
    if decision.batch_shares is None:
        return (int(candidates.num_micro_batches[0]),) * len(layout)
    stated = {share.buildings: share for share in decision.batch_shares}
    if {one.buildings: one.num_replicas for one in layout} != {
        share.buildings: share.num_replicas for share in decision.batch_shares
    }:
        has = ", ".join(f"{one.num_replicas} in {'+'.join(one.buildings)}" for one in layout)
        raise ValueError(f"the batch shares do not match the replicas of the placement: {has}")
    return tuple(stated[one.buildings].num_micro_batches for one in layout)


def peak_flop_per_s(topology: Topology, placement: Placement, job: Job) -> float:
    """Dense peak of an accelerator, FLOP/s, the mean over those used."""
    peaks = (
        share.num_accelerators * topology.building(share.building).accelerator.peak_flop_per_s[job.precision]
        for share in placement.fill
    )
    return sum(peaks) / placement.num_accelerators


def _breakdown(job: Job, profile: ModelProfile, peak: float, candidates: Candidates, times: StepTimes) -> CostBreakdown:
    step_s, world = float(times.step_s[0]), int(candidates.world_size[0])
    flop = profile.model_flop_per_token(job.sequence_length) * job.tokens_per_step
    rate = flop / step_s / world
    return CostBreakdown(
        step_s=step_s,
        compute_s=float(times.compute_s[0]),
        bubble_s=float(times.bubble_s[0]),
        exposed_s={name: float(seconds[0]) for name, seconds in times.exposed_s.items()},
        optimizer_s=float(times.optimizer_s[0]),
        tokens_per_s=job.tokens_per_step / step_s,
        model_flop_per_s=rate,
        mfu=rate / peak,
    )


def _given(job: Job, profile: ModelProfile, levels: Levels, decision: Decision, layout: Layout) -> OnLayout:
    candidates = candidate_of(decision, job.global_batch_sequences)
    split, micro_batches = layers_per_stage(profile, decision), micro_batches_of(decision, candidates, layout)
    return OnLayout(job, profile, levels.accelerators, decision, layout, split, micro_batches)


def stage_memory(
    job: Job,
    profile: ModelProfile,
    accelerators: Sequence[Accelerator],
    decision: Decision,
    candidates: Candidates,
    layout: Layout,
) -> tuple[StageMemory, ...]:
    """Memory of every pipeline rank, for the replicas with most micro-batches, on its type with least memory."""
    pp, pipeline = decision.degrees.pp, decision.pipeline
    placement = SCHEDULES[pipeline.schedule].placement
    layers = layers_of_ranks(block_counts(profile), layers_per_stage(profile, decision), placement)
    classes = every_rank(layers, head_rank(pp, pipeline.num_chunks, placement))
    most = max(micro_batches_of(decision, candidates, layout))
    # an order of its own has no closed form for the micro-batches in flight, so they are counted
    flight = None if pipeline.order is None else np.array(peak_in_flight(chosen(pipeline, pp, most)))
    each = on_ranks(candidates, decision.stage_recompute)
    fullest = replace(each, num_micro_batches=np.full(len(each), most))
    parts = memory_parts(profile, job, fullest, classes, flight)
    offloaded = own(host_bytes(profile, job, fullest, classes, flight))
    out = []
    for rank, types in enumerate(types_of_ranks(layout)):
        here = [accelerator for accelerator in accelerators if accelerator.name in types]
        tightest = min(here, key=lambda one: one.room_bytes(job.memory_headroom_fraction))
        out.append(
            StageMemory(
                stage=rank,
                num_layers=int(layers[rank].sum()),
                **{f"{name}_bytes": float(own(values)[rank]) for name, values in parts.items()},
                reserved_bytes=tightest.reserved_memory_bytes,
                capacity_bytes=tightest.memory_bytes,
                headroom_bytes=job.memory_headroom_fraction * tightest.memory_bytes,
                host_bytes=float(offloaded[rank]),
                host_capacity_bytes=host_room_bytes(here) if offloaded[rank] else 0.0,
            )
        )
    return tuple(out)
