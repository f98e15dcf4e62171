"""Layers of torchtitan's pipeline stages: as the settings list them, else as torchtitan divides the model.

Source: torchtitan/distributed/pipeline_parallel.py of 0.3.0 and 0.2.2 (pipeline_llm, generate_llm_fqn_per_model_part).
Embedding and output count as layers of the first and the last stage, and the first stages get the remaining layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scaleacross.errors import InputError
from scaleacross.readers.settings import fill_ranks
from scaleacross.schedules.pipeline import SCHEDULES
from scaleacross.schedules.pipeline.stage_placement import locate
from scaleacross.spec.parallelism import PipelineChoice, ScheduleName, has_chunks

WEIGHTS: Final = ("pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers")
PER_STAGE: Final = "pipeline_parallel_layers_per_stage"
DEFAULT_BATCH: Final = 8
"""Default of TrainingConfig.local_batch_size."""


def pipeline(
    parallel: Mapping[str, Any], training: Mapping[str, Any], name: str, pp: int, num_layers: int
) -> tuple[PipelineChoice, tuple[tuple[int, ...], ...] | None]:
    """Return the schedule, and layers by [rank][chunk]; None for the layers without a pipeline.

    Raises:
        InputError: an unknown schedule, or stages that it cannot run.
    """
    if pp == 1:
        each = training.get("local_batch_size", DEFAULT_BATCH)
        return PipelineChoice(schedule="1F1B", micro_batch_sequences=each), None
    schedule = parallel.get("pipeline_parallel_schedule", "1F1B")
    if schedule not in SCHEDULES:
        raise InputError(f"{name}: pipeline_parallel_schedule {schedule!r} is none of {', '.join(SCHEDULES)}")
    counts = _layers(parallel, name, schedule, pp, num_layers)
    fill_ranks(name, counts, pp, num_layers)
    chunks = len(counts) // pp
    if not has_chunks(schedule, chunks):
        raise InputError(
            f"{name}: {schedule} does not run {len(counts)} stages on pp {pp}, {chunks} of them on each rank"
        )
    table = [[0] * chunks for _ in range(pp)]
    for stage, count in enumerate(counts):
        rank, chunk = locate(SCHEDULES[schedule].placement, pp, stage)
        table[rank][chunk] = count
    each = parallel.get("pipeline_parallel_microbatch_size", 1)
    choice = PipelineChoice(schedule=schedule, num_chunks=chunks, micro_batch_sequences=each)
    return choice, tuple(map(tuple, table))


def _layers(parallel: Mapping[str, Any], name: str, schedule: ScheduleName, pp: int, num_layers: int) -> list[int]:
    """Return layers of every stage in model order."""
    if parts := parallel.get("module_fqns_per_model_part"):
        return [sum(module.startswith("layers.") for module in part) for part in parts]
    first, last = (parallel.get(key, 1) for key in WEIGHTS)
    weighted, each = num_layers + first + last, parallel.get(PER_STAGE)
    num_stages = -(-weighted // each) if each else pp * (1 if has_chunks(schedule, 1) else 2)
    # the first ``more`` stages get one of the remaining layers each
    least, more = divmod(weighted, num_stages)
    if least < max(1, first, last):
        raise InputError(
            f"{name}: {num_layers} layers in {num_stages} stages, of which the first has {first} fewer and the last {last}: "
            f"torchtitan cuts {least} for each and stops"
        )
    counts = [least + (stage < more) for stage in range(num_stages)]
    counts[0] -= first
    counts[-1] -= last
    return counts


def check_accumulation(training: Mapping[str, Any], name: str, pp: int, dp: int, sequences: int) -> None:
    """Raise InputError where the pipeline would run several times per step, each with its own warm-up and cool-down."""
    local = training.get("local_batch_size", DEFAULT_BATCH)
    if pp > 1 and local * dp != sequences:
        raise InputError(
            f"{name}: training.local_batch_size {local} on {dp} replicas is not the global batch of {sequences} sequences: "
            "torchtitan would run the pipeline several times a step, filled and drained each time, which is not modelled; state "
            f"local_batch_size {sequences / dp:g}"
        )
