"""Pipeline stages as Megatron-LM arguments."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from scaleacross.schedules.pipeline.interleaved_1f1b import microbatches_per_round
from scaleacross.spec.plan import Plan

GROUP_SIZE: Final = "--microbatch-group-size-per-virtual-pipeline-stage"
"""Option for the micro-batches per round of the interleaved schedule (megatron/core/pipeline_parallel/schedules.py)."""


def layout(layers_per_stage: tuple[tuple[int, ...], ...], prediction_layers: int = 0) -> str:
    """Return the stages as ``--pipeline-model-parallel-layout``: ``Et*7|(t*8|)*14t*7L`` for 7, 8 × 14, 7 layers.

    ``layers_per_stage`` is indexed [pipeline rank][chunk]. The layout lists virtual stages in model order; virtual
    stage k is chunk k // PP of rank k % PP. E embedding, t layer, m prediction layer (the last ones of the model), L
    loss, ``|`` between stages (Megatron Core, core/transformer/pipeline_parallel_layer_layout.py).
    """
    num_chunks = len(layers_per_stage[0])
    counts = [stage[chunk] for chunk in range(num_chunks) for stage in layers_per_stage]
    counts[-1] -= prediction_layers
    end = "m" * prediction_layers + "L"
    if len(counts) == 1:
        return f"E{_layers(counts[0])}{end}"
    first, *middle, last = counts
    text = f"E{_layers(first)}|"
    for count, run in groupby(middle):
        times = len(list(run))
        text += f"({_layers(count)}|)*{times}" if times > 1 else f"{_layers(count)}|"
    return f"{text}{_layers(last)}{end}"


def _layers(count: int) -> str:
    return "t" * count if count < 2 else f"t*{count}"


def pipeline_arguments(plan: Plan) -> list[str]:
    """Return the options for layers per stage: none for an even split, layers per virtual stage, or a layout."""
    pipeline, pp = plan.decision.pipeline, plan.degrees.pp
    if pp == 1:
        return []
    predicted = plan.job.prediction_layers  # an even split divides the other layers only
    *others, last = [stage[chunk] for chunk in range(pipeline.num_chunks) for stage in plan.layers_per_stage]
    counts = {*others, last - predicted}
    if len(counts) > 1:
        return ["--pipeline-model-parallel-layout", layout(plan.layers_per_stage, predicted), *_rounds(plan)]
    if pipeline.num_chunks == 1:
        return []
    return ["--num-layers-per-virtual-pipeline-stage", str(counts.pop()), *_rounds(plan)]


def _rounds(plan: Plan) -> list[str]:
    """Return the option for micro-batches per round where they differ from pp, Megatron-LM's default."""
    per_round = microbatches_per_round(plan.degrees.pp, plan.num_micro_batches)
    if plan.decision.pipeline.num_chunks == 1 or per_round == plan.degrees.pp:
        return []
    return [GROUP_SIZE, str(per_round)]
