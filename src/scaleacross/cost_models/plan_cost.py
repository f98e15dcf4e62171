"""Everything a plan states about one decision: step breakdown, memory per stage, traffic per level, collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaleacross.cost_models.axes import axis_terms
from scaleacross.cost_models.collectives import (
    ALGORITHM_NAMES,
    POINT_TO_POINT,
    Links,
    Timed,
    all_reduce,
    all_to_all,
    gather,
    links_of,
    neighbour_messages,
)
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, Levels, build_levels
from scaleacross.cost_models.memory import memory_parts
from scaleacross.cost_models.settings import Floats, Settings, settings_of
from scaleacross.cost_models.stages import RankClasses, rank_layers
from scaleacross.cost_models.step import StepTimes, exact_shapes, one_row, step_times
from scaleacross.cost_models.traffic import Flow, Volumes, flows
from scaleacross.cost_models.work import block_counts, work_of
from scaleacross.schedules.pipeline import SCHEDULES, chosen
from scaleacross.schedules.pipeline.check import peak_in_flight
from scaleacross.schedules.pipeline.stage_placement import locate, virtual_stage
from scaleacross.spec.job import Job
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.parallelism import GRID_AXES, PipelineChoice, split_layers
from scaleacross.spec.placement import Placement
from scaleacross.spec.plan import CostBreakdown, Decision, LevelTraffic, PredictedCollective, StageMemory
from scaleacross.spec.topology import Topology
from scaleacross.workloads.layer_profile import ModelProfile


@dataclass(frozen=True)
class PlanCost:
    """The computed part of a plan; ``sent`` is what its collectives and traffic were computed from."""

    placement: Placement
    layers_per_stage: tuple[tuple[int, ...], ...]
    num_micro_batches: int
    cost: CostBreakdown
    memory: tuple[StageMemory, ...]
    traffic: tuple[LevelTraffic, ...]
    collectives: tuple[PredictedCollective, ...]
    sent: tuple[Flow, ...]


def plan_cost(
    job: Job,
    profile: ModelProfile,
    topology: Topology,
    decision: Decision,
    shapes: Mapping[str, GroupShape] | None = None,
    levels: Levels | None = None,
) -> PlanCost:
    """Price one decision with its placement.

    Args:
        shapes: group shapes per axis, ``ep`` and ``expert``; None counts them from the placement (verification passes
            its own).
        levels: figures of the fill; None reads them from the topology (``sensitivity`` changes them).

    Raises:
        ValueError: the decision has no placement, or its numbers do not divide.
        KeyError: a building of the placement is not in the topology.
    """
    placement = _placement(decision)
    levels = levels or build_levels(topology, placement.fill)
    if shapes is None:
        shapes = exact_shapes(decision.degrees, placement.axis_order, levels, profile.whole_experts)
    volumes, times = _timed_step(job, profile, levels, decision, shapes)
    settings, links, launch_s = volumes.settings, links_of(levels), volumes.launch_s
    rows = {name: one_row(shape) for name, shape in shapes.items()}
    sent = flows(volumes)
    step_s = float(times.step_s[0])
    spans = {flow.axis: LINK_LEVELS[int(shapes[flow.axis].span)] for flow in sent}
    return PlanCost(
        placement=placement.model_copy(update={"spans": spans}),
        layers_per_stage=layers_per_stage(profile, decision),
        num_micro_batches=int(settings.num_micro_batches[0]),
        cost=_breakdown(job, profile, levels, settings, times),
        memory=_stage_memory(job, profile, levels, settings, decision),
        traffic=_level_traffic(sent, shapes, levels, decision.pipeline, step_s),
        collectives=tuple(_predicted(flow, rows[flow.shape], links, launch_s, volumes.equal_copies) for flow in sent),
        sent=tuple(sent),
    )


def step_seconds(
    job: Job, profile: ModelProfile, topology: Topology, decision: Decision, shapes: Mapping[str, GroupShape]
) -> float:
    """The step time of ``plan_cost`` alone, s: for fits, which price the same placement many times."""
    levels = build_levels(topology, _placement(decision).fill)
    return float(_timed_step(job, profile, levels, decision, shapes)[1].step_s[0])


def placed_shapes(profile: ModelProfile, topology: Topology, decision: Decision) -> Mapping[str, GroupShape]:
    """Group shapes of a placed decision, per axis, ``ep`` and ``expert``. Raises ValueError as ``plan_cost`` does."""
    placement = _placement(decision)
    levels = build_levels(topology, placement.fill)
    return exact_shapes(decision.degrees, placement.axis_order, levels, profile.whole_experts)


def _placement(decision: Decision) -> Placement:
    if decision.placement is None:
        raise ValueError("the decision has no placement")
    placed, needed = decision.placement.num_accelerators, decision.degrees.world_size
    if placed != needed:
        raise ValueError(f"the placement holds {placed} accelerators, the degrees need {needed}: {decision.degrees}")
    return decision.placement


def _timed_step(
    job: Job, profile: ModelProfile, levels: Levels, decision: Decision, shapes: Mapping[str, GroupShape]
) -> tuple[Volumes, StepTimes]:
    settings = settings_of(decision, job.global_batch_sequences)
    work = work_of(profile, job, levels.accelerators, settings)
    launch_s = max(accelerator.kernel_launch_s for accelerator in levels.accelerators)
    volumes, links = Volumes(job, profile, settings, work, launch_s, decision.pipeline.order), links_of(levels)
    rows = {name: one_row(shape) for name, shape in shapes.items()}
    terms = [axis_terms(axis, volumes, rows[axis], links, rows["expert"], rows["ep"], exact=True) for axis in GRID_AXES]
    return volumes, step_times(volumes, terms)


def layers_per_stage(profile: ModelProfile, decision: Decision) -> tuple[tuple[int, ...], ...]:
    """[stage][chunk] -> layers, by the stage placement of the schedule."""
    pp, num_chunks = decision.degrees.pp, decision.pipeline.num_chunks
    counts, placement = (
        split_layers(profile.num_layers, pp * num_chunks),
        SCHEDULES[decision.pipeline.schedule].placement,
    )
    return tuple(
        tuple(counts[virtual_stage(placement, pp, rank, chunk)] for chunk in range(num_chunks)) for rank in range(pp)
    )


def _breakdown(job: Job, profile: ModelProfile, levels: Levels, settings: Settings, times: StepTimes) -> CostBreakdown:
    step_s, world = float(times.step_s[0]), int(settings.world_size[0])
    flop = profile.model_flop_per_token(job.sequence_length) * job.tokens_per_step
    peak = min(accelerator.peak_flop_per_s[job.precision] for accelerator in levels.accelerators)
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


def _stage_memory(
    job: Job, profile: ModelProfile, levels: Levels, settings: Settings, decision: Decision
) -> tuple[StageMemory, ...]:
    """Every pipeline rank as a class of its own."""
    pp, pipeline = decision.degrees.pp, decision.pipeline
    placement = SCHEDULES[pipeline.schedule].placement
    layers = np.array(rank_layers(block_counts(profile), pp, pipeline.num_chunks, placement))
    ranks, last_rank = np.arange(pp), locate(placement, pp, pp * pipeline.num_chunks - 1)[0]
    classes = RankClasses(
        layers, (ranks == 0).astype(int), (ranks == last_rank).astype(int), ranks, np.ones_like(ranks)
    )
    flight = None
    if pipeline.order is not None:
        flight = np.array(peak_in_flight(chosen(pipeline, pp, int(settings.num_micro_batches[0]))))
    parts = memory_parts(profile, job, settings, classes, flight)
    tightest = min(levels.accelerators, key=lambda accelerator: accelerator.usable_memory_bytes)
    return tuple(
        StageMemory(
            stage=rank,
            num_layers=int(layers[rank].sum()),
            **{f"{name}_bytes": float(values[rank, 0]) for name, values in parts.items()},
            reserved_bytes=tightest.reserved_memory_bytes,
            capacity_bytes=tightest.memory_bytes,
        )
        for rank in range(pp)
    )


def _level_traffic(
    sent: list[Flow], shapes: Mapping[str, GroupShape], levels: Levels, pipeline: PipelineChoice, step_s: float
) -> tuple[LevelTraffic, ...]:
    """Per level, bytes out of the busiest child: groups that cross × bytes that one group sends out of it."""
    out = []
    for level in range(NUM_LEVELS):
        by_axis: dict[str, float] = {}
        for flow in sent:
            shape = shapes[flow.shape]
            if shape.fanout[level] > 1:
                each = _bytes_out(flow, shape, level, pipeline) * float(shape.crossing[level])
                by_axis[flow.axis] = by_axis.get(flow.axis, 0.0) + each * flow.per_step
        if by_axis:
            capacity = float(levels.capacity[level])
            out.append(
                LevelTraffic(
                    level=LINK_LEVELS[level],
                    bytes_per_step=by_axis,
                    capacity_bytes_per_s=capacity,
                    utilisation=sum(by_axis.values()) / (capacity * step_s),
                )
            )
    return tuple(out)


def _bytes_out(flow: Flow, shape: GroupShape, level: int, pipeline: PipelineChoice) -> float:
    """Bytes that one group sends out of one child of ``level`` in one collective, per direction."""
    fanout, members, degree = float(shape.fanout[level]), float(shape.members[level]), float(shape.degree)
    if flow.op == "send":
        return flow.size_bytes * _leaving_share(fanout, level, pipeline)
    if flow.op == "all_to_all":
        return flow.size_bytes * members * (degree - members) / degree
    return flow.size_bytes * (fanout - 1) / fanout * (2 if flow.op == "all_reduce" else 1)


def _leaving_share(fanout: float, level: int, pipeline: PipelineChoice) -> float:
    """Share of a rank's 2v messages per micro-batch that leaves one child of ``level``, by the busiest child.

    Of two children the first sends v messages on and, in a loop, v−1 more by the loop-back. Of three or more, a middle one
    sends v forwards on and v backwards back; where these leave by trunks of their own (buildings, regions), each trunk
    carries v.
    """
    if fanout == 2 and SCHEDULES[pipeline.schedule].placement == "loop":
        return (2 * pipeline.num_chunks - 1) / (2 * pipeline.num_chunks)
    if fanout == 2:
        return 0.5
    return 0.5 if level >= CAMPUS else 1.0


def _predicted(
    flow: Flow, shape: GroupShape, links: Links, launch_s: float, equal_copies: float
) -> PredictedCollective:
    timed = _time(flow, shape, links, launch_s, equal_copies)
    return PredictedCollective(
        name=f"{flow.axis} {flow.op} of {flow.what}",
        axis=flow.axis,
        op=flow.op,
        group_size=int(shape.degree[0]),
        bytes_per_rank=flow.size_bytes,
        per_step=flow.per_step,
        level=LINK_LEVELS[int(shape.span[0])],
        algorithm=ALGORITHM_NAMES[int(timed.algorithm[0])],
        time_s=float(timed.time_s[0]),
    )


def _time(flow: Flow, shape: GroupShape, links: Links, launch_s: float, equal_copies: float) -> Timed:
    size: Floats = np.array([flow.size_bytes])
    if flow.op == "all_to_all":
        return all_to_all(size, shape, links, launch_s, equal_copies)
    if flow.op == "all_reduce":
        return all_reduce(size, shape, links, launch_s)
    if flow.op == "send":
        delays = neighbour_messages(size, shape, links)
        near, far = delays.near_latency_s + delays.near_occupancy_s, delays.far_latency_s + delays.far_occupancy_s
        return Timed(np.maximum(near, far), np.array([POINT_TO_POINT]))
    return gather(size, shape, links, launch_s, "reduce_scatter" if flow.op == "reduce_scatter" else "all_gather")
