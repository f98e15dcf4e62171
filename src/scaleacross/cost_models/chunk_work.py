"""Computation of every model chunk of a decision by accelerator type: what a plan states so that it can be replayed.

The same layer times that price a step, taken chunk by chunk instead of rank by rank, and nothing of how they overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scaleacross.cost_models.compute import ATTENTION_BACKWARD_RATIO
from scaleacross.cost_models.memory import held_parameters
from scaleacross.cost_models.settings import Floats, Settings
from scaleacross.cost_models.stages import RankClasses, layers_of_stages
from scaleacross.cost_models.work import (
    StackedTimes,
    block_counts,
    layer_counts,
    placement_of,
    rank_times,
    times_by_type,
    update_s,
    with_accumulation,
)
from scaleacross.schedules.pipeline.stage_placement import locate
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.step_work import ChunkWork, PipelineWork
from scaleacross.workloads.layer_profile import ModelProfile


def chunk_work(
    profile: ModelProfile,
    job: Job,
    accelerators: Sequence[Accelerator],
    settings: Settings,
    split: Sequence[Sequence[int]],
) -> dict[str, PipelineWork]:
    """Work of one decision (``settings`` has one row) by accelerator type.

    Args:
        split: [pipeline rank][chunk] -> layers.

    Raises:
        ValueError: the split does not hold the layers of the model.
    """
    times = times_by_type(profile, job, accelerators, settings)
    return {
        one.name: _of_type(profile, job, one, each, settings, split)
        for one, each in zip(accelerators, times, strict=True)
    }


def _of_type(
    profile: ModelProfile,
    job: Job,
    accelerator: Accelerator,
    times: StackedTimes,
    settings: Settings,
    split: Sequence[Sequence[int]],
) -> PipelineWork:
    pp, placement = len(split), placement_of(settings)
    table = layers_of_stages(block_counts(profile), split, placement)
    stages = np.arange(len(table))
    rank = np.array([locate(placement, pp, stage)[0] for stage in range(len(table))])
    first, last = (stages == 0).astype(np.int64), (stages == stages[-1]).astype(np.int64)
    classes = RankClasses(table, first, last, rank, np.ones_like(rank))
    held = held_parameters(profile, settings, classes)
    parts = with_accumulation(rank_times(times, settings, classes), job, accelerator, settings, held.total)
    forward, backward, weight, attention = (part[:, 0] for part in parts)
    counts = {name: values.astype(int) for name, values in layer_counts(profile, settings, classes, stages).items()}
    chunks = [
        ChunkWork(
            forward_s=forward[stage],
            input_gradient_s=max(0.0, backward[stage] - weight[stage]),
            weight_gradient_s=weight[stage],
            attention_s=attention[stage],
            attention_backward_s=ATTENTION_BACKWARD_RATIO * attention[stage],
            num_layers=int(table[stage].sum()),
            num_attention_layers=counts["layers"][stage],
            num_moe_layers=counts["moe_layers"][stage],
            tp_forward=counts["tp_forward"][stage],
            tp_backward=counts["tp_gathers"][stage] // 2 - counts["tp_forward"][stage],
            dense_parameters=held.dense[stage, 0],
            expert_parameters=held.expert[stage, 0],
        )
        for stage in stages
    ]
    kinds = list(dict.fromkeys(chunks))
    kind_of = [[0] * len(split[0]) for _ in split]
    for stage, chunk in enumerate(chunks):
        at, index = locate(placement, pp, stage)
        kind_of[at][index] = kinds.index(chunk)

    def of_ranks(values: Floats) -> Floats:
        """Sum over the chunks of every pipeline rank, (pp, 1)."""
        return np.bincount(rank, values[:, 0], pp).astype(np.float64)[:, None]

    dense, expert = of_ranks(held.dense), of_ranks(held.expert)
    update = [
        float(update_s(job, [accelerator], settings, *held_by)[0, 0]) for held_by in zip(dense, expert, strict=True)
    ]
    return PipelineWork(kinds=tuple(kinds), kind_of=tuple(map(tuple, kind_of)), optimizer_s=tuple(update))
