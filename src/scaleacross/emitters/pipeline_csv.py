"""Target ``pipeline_csv``: the pipeline schedule as PyTorch 2.13's action CSV, and the rank of every stage.

``_PipelineScheduleRuntime._load_csv(file, format="compute_only")`` of torch.distributed.pipelining reads schedule.csv:
a row per pipeline rank, cells in the grammar of ``schedules.pipeline.cells``. It takes the stage-to-rank map from the
rows and adds sends and receives itself. stages.json states the same map in words, for building the stage modules.
"""

from __future__ import annotations

import json

from scaleacross.emitters.model import check_stages
from scaleacross.emitters.trace import TRACE_FILE, trace_json
from scaleacross.errors import EmitError, InputError
from scaleacross.schedules.pipeline import PipelineSchedule, chosen
from scaleacross.schedules.pipeline.cells import from_rows, to_rows
from scaleacross.spec.plan import Plan
from scaleacross.spec.timeline import PipelineTimeline

CSV_FILE, STAGES_FILE = "schedule.csv", "stages.json"


def render(plan: Plan) -> dict[str, str]:
    """Return schedule.csv and stages.json, in folder pipeline_csv/.

    Raises:
        EmitError: the plan has no pipeline, or one that PyTorch's runtime cannot run.
    """
    check_stages(plan)
    if plan.degrees.pp == 1:
        raise EmitError("pp 1: there is no pipeline to schedule")
    try:
        schedule = chosen(plan.decision.pipeline, plan.degrees.pp, plan.num_micro_batches)
    except InputError as error:
        raise EmitError(f"the plan's pipeline schedule: {error}") from error
    layers = [plan.layers_per_stage[rank][chunk] for rank, chunk in places(schedule)]
    return {f"pipeline_csv/{name}": text for name, text in schedule_files(schedule, layers).items()}


def schedule_files(schedule: PipelineSchedule, layers: list[int] | None = None) -> dict[str, str]:
    """Return schedule.csv and stages.json of ``schedule``; ``layers`` per virtual stage where there is a model.

    Raises:
        EmitError: the schedule holds more than one copy of the model.
    """
    if schedule.num_copies > 1:
        raise EmitError(
            f"schedule {schedule.name} runs {schedule.num_copies} copies of the model in two directions; PyTorch's runtime runs "
            "one chain of stages: use DualPipeV on half the ranks"
        )
    stages = {
        "schedule": schedule.name,
        "num_ranks": schedule.num_ranks,
        "num_stages": schedule.num_virtual_stages,
        "num_microbatches": schedule.num_microbatches,
        "placement": schedule.placement,
        "stage_to_rank": [rank for rank, _ in places(schedule)],
        "layers_per_stage": layers,
        "load": f'_PipelineScheduleRuntime(stages, n_microbatches)._load_csv("{CSV_FILE}", format="compute_only")',
    }
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in stages.items() if value is not None)
    return {
        CSV_FILE: "".join(f"{row}\n" for row in to_rows(schedule)),
        STAGES_FILE: "{\n" + ",\n".join(lines) + "\n}\n",
    }


def timeline_files(timeline: PipelineTimeline) -> tuple[dict[str, str], str | None]:
    """Return trace.json with schedule.csv and stages.json, or with the reason why PyTorch cannot run the schedule."""
    shape = (timeline.num_microbatches, timeline.num_chunks, timeline.placement, timeline.num_copies)
    schedule = from_rows(timeline.schedule, [",".join(row.actions) for row in timeline.rows], *shape)
    files = {TRACE_FILE: trace_json(timeline)}
    try:
        return files | schedule_files(schedule), None
    except EmitError as error:
        return files, str(error)


def places(schedule: PipelineSchedule) -> list[tuple[int, int]]:
    """Return (rank, chunk) of every virtual stage."""
    return [schedule.locate(stage) for stage in range(schedule.num_virtual_stages)]
