"""Timelines: one pipeline step with its times, of any schedule, or of the pipeline of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scaleacross.cost_models.pipeline.actions import Actions
from scaleacross.cost_models.pipeline.timing import PipelineTimes, time_schedule
from scaleacross.cost_models.plan_cost import plan_cost
from scaleacross.errors import InputError
from scaleacross.schedules.pipeline import Kind, PipelineSchedule, chosen
from scaleacross.schedules.pipeline.cells import to_rows
from scaleacross.schedules.pipeline.check import peak_in_flight
from scaleacross.schedules.pipeline.traffic import messages_over_cut
from scaleacross.spec.plan import Decision
from scaleacross.spec.timeline import PipelineTimeline, TimelineMessage, TimelineRow
from scaleacross.workloads.problem import Problem

_NOTE: Final = (
    "the pipeline as the plan's estimate times it: every stage with its own layers, what these wait for, and messages; the step "
    "of the plan adds what data parallelism leaves exposed, and the optimizer"
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
    """The pipeline of a decided plan: its schedule, the seconds of its estimate, and the bytes of one message."""

    schedule: PipelineSchedule
    actions: Actions
    message_bytes: float


def planned_pipeline(problem: Problem, decision: Decision) -> PlannedPipeline:
    """Schedule and times of the pipeline of a decided plan.

    Raises:
        InputError: the plan has no pipeline, or no placement.
    """
    degrees, placement = decision.degrees, decision.placement
    if degrees.pp == 1 or placement is None:
        raise InputError(
            f"a plan with pp {degrees.pp} has no pipeline to show" if placement else "the plan is not placed"
        )
    cost = plan_cost(problem.job, problem.profile, problem.topology, decision)
    actions, volumes = cost.pipeline.actions, cost.volumes
    if actions is None:
        raise ValueError(f"a pipeline of {degrees.pp} ranks was not timed")
    schedule = chosen(decision.pipeline, degrees.pp, actions.num_microbatches)
    return PlannedPipeline(schedule, actions, float((volumes.hidden_bytes / volumes.candidates.tp)[0]))


def plan_timeline(problem: Problem, decision: Decision) -> PipelineTimeline:
    """The pipeline of a decided plan with its times.

    Raises:
        InputError: the plan has no pipeline, or no placement.
    """
    pipe = planned_pipeline(problem, decision)
    stages = pipe.actions
    times = time_schedule(
        pipe.schedule,
        stages.forward_s,
        stages.backward_s,
        *stages.between_stages(),
        weight_s=stages.weight_s,
        input_s=stages.input_s,
        outer_s=stages.outer_s,
        link_s=stages.link_s,
        crossing=stages.crosses(),
    )
    return timeline(pipe.schedule, times, pipe.message_bytes, _NOTE)
