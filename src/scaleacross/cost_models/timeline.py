"""Timelines: one pipeline step with its times, of any schedule, or of the pipeline of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleacross.cost_models.axes import group_of, network_of
from scaleacross.cost_models.groups import exact_shape
from scaleacross.cost_models.levels import build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.pipeline_exact import virtual_boundaries
from scaleacross.cost_models.pipeline_penalty import boundary_times
from scaleacross.cost_models.pipeline_timing import PipelineTimes, time_schedule
from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.cost_models.settings import Floats
from scaleacross.cost_models.step import one_row
from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import Kind, PipelineSchedule, chosen
from scaleacross.schedules.pipeline.cells import to_rows
from scaleacross.schedules.pipeline.check import peak_in_flight
from scaleacross.schedules.pipeline.traffic import messages_over_cut
from scaleacross.spec.placement import strides
from scaleacross.spec.plan import Decision
from scaleacross.spec.timeline import PipelineTimeline, TimelineMessage, TimelineRow
from scaleacross.workloads.problem import Problem

_NOTE: Final = (
    "computation and messages of the pipeline alone, every rank as slow as the busiest; the step of the plan adds the exposed "
    "collectives of the other axes and the optimizer"
)


def timeline(
    schedule: PipelineSchedule, times: PipelineTimes, message_bytes: float | None = None, note: str = ""
) -> PipelineTimeline:
    """``times`` of ``schedule`` as a timeline."""
    cells = [row.split(",") for row in to_rows(schedule)]
    rows = tuple(
        TimelineRow(
            actions=tuple(cells[rank]),
            start_s=tuple(times.start_s[rank].tolist()),
            end_s=tuple(times.finish_s[rank].tolist()),
            peak_in_flight=peak,
        )
        for rank, peak in enumerate(peak_in_flight(schedule))
    )
    return PipelineTimeline(
        schedule=schedule.name,
        num_ranks=schedule.num_ranks,
        num_microbatches=schedule.num_microbatches,
        num_chunks=schedule.num_chunks,
        num_copies=schedule.num_copies,
        placement=schedule.placement,
        step_s=times.total_s,
        rows=rows,
        messages=_messages(schedule, times, cells),
        messages_per_cut=tuple(messages_over_cut(schedule, rank) for rank in range(1, schedule.num_ranks)),
        message_bytes=message_bytes,
        note=note,
    )


def _messages(schedule: PipelineSchedule, times: PipelineTimes, cells: list[list[str]]) -> tuple[TimelineMessage, ...]:
    """All messages that leave their rank."""
    out = []
    for rank, actions in enumerate(schedule.actions):
        for at, action in enumerate(actions):
            stage, forward = schedule.virtual_stage(rank, action.chunk), action.kind is Kind.F
            ends = schedule.is_last(stage) if forward else schedule.is_first(stage)
            if action.kind is Kind.W or ends:
                continue
            target = schedule.locate(stage + 1 if forward else stage - 1)[0]
            if target != rank:
                sent, arrival = float(times.finish_s[rank][at]), float(times.arrival_s[rank][at])
                message = {"source": rank, "target": target, "action": cells[rank][at]}
                out.append(TimelineMessage(**message, sent_s=sent, arrival_s=arrival))
    return tuple(out)


@dataclass(frozen=True)
class PlannedPipeline:
    """The pipeline of a decided plan, as ``pipeline_penalty`` times it: all ranks as slow as the one that makes the step.

    Attributes:
        schedule: the plan's order.
        forward_s, backward_s, weight_s: of one micro-batch on one chunk.
        latency_s, occupancy_s: per boundary between virtual stages, shape (p·v−1,).
        message_bytes: of one message.
    """

    schedule: PipelineSchedule
    forward_s: float
    backward_s: float
    weight_s: float
    latency_s: Floats
    occupancy_s: Floats
    message_bytes: float


def planned_pipeline(problem: Problem, decision: Decision) -> PlannedPipeline:
    """Schedule and times of the pipeline of a decided plan.

    Raises:
        InputError: the plan has no pipeline, or no placement.
    """
    degrees, placement, pipeline = decision.degrees, decision.placement, decision.pipeline
    if degrees.pp == 1 or placement is None:
        raise InputError(
            f"a plan with pp {degrees.pp} has no pipeline to show" if placement else "the plan is not placed"
        )
    levels = build_levels(problem.topology, placement.fill)
    volumes = plan_cost(problem.job, problem.profile, problem.topology, decision, levels=levels).volumes
    settings, work = volumes.settings, volumes.work
    size = volumes.hidden_bytes / settings.tp
    shape = one_row(exact_shape(degrees.pp, strides(degrees, placement.axis_order)["pp"], levels))
    group = group_of(network_of(decision), "pp", shape, links_of(levels), volumes.launch_s)
    message = group.neighbour_messages(size, "activations")
    schedule = chosen(pipeline, degrees.pp, int(settings.num_micro_batches[0]))
    far = tuple(float(np.broadcast_to(part, 1)[0]) for part in message)
    length = degrees.pp if pipeline.num_chunks > 1 else degrees.pp - 1
    shape_of = (degrees.pp, pipeline.num_chunks, schedule.placement)
    latency, occupancy = (
        virtual_boundaries(name, values[:length], *shape_of)
        for name, values in zip(("latency_s", "occupancy_s"), boundary_times(degrees.pp, far), strict=True)
    )
    F, B, W = (float(part[0]) / pipeline.num_chunks for part in (work.forward_s, work.backward_s, work.weight_s))
    return PlannedPipeline(schedule, F, B, W, latency, occupancy, float(size[0]))


def plan_timeline(problem: Problem, decision: Decision) -> PipelineTimeline:
    """The pipeline of a decided plan with its times.

    Raises:
        InputError: the plan has no pipeline, or no placement.
    """
    pipe = planned_pipeline(problem, decision)
    seconds = (pipe.forward_s, pipe.backward_s, pipe.latency_s, pipe.occupancy_s)
    times = time_schedule(pipe.schedule, *seconds, weight_s=pipe.weight_s)
    return timeline(pipe.schedule, times, pipe.message_bytes, _NOTE)
