"""Computation of every virtual stage of a decision, by accelerator type.

Pipelines are timed from it, and a plan states it for simulations. It uses the layer times of the cost model by chunk
instead of by rank, and does not know how they overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.compute import ATTENTION_BACKWARD_RATIO
from scaleacross.cost_models.layer_seconds import StackedTimes, TimedLayers, shared_seconds
from scaleacross.cost_models.memory import held_parameters
from scaleacross.cost_models.rank_seconds import LayerGathers, layer_counts, passes_by_type, update_s
from scaleacross.cost_models.recomputation import keys_again, on_rows, own, tokens_again
from scaleacross.cost_models.stages import block_counts, placement_of, virtual_stages
from scaleacross.schedules.pipeline.stage_placement import locate
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.step_work import ChunkWork, PipelineWork

Split = Sequence[Sequence[int]]
"""[pipeline rank][chunk] -> layers."""


@dataclass(frozen=True)
class StageWork:
    """One micro-batch on every virtual stage on one accelerator type, arrays of shape (p·v,) in model order.

    Attributes:
        rank: pipeline rank that holds the stage.
        forward_s, backward_s: computation; recomputation is part of backward.
        weight_s: weight gradients, part of backward_s.
        attention_s: fused attention forward, part of forward_s.
        shared_s, shared_backward_s: shared experts of one layer, concurrent with its all-to-alls.
        num_layers, attention_layers, moe_layers: layers, layers with attention, layers with routed experts.
        tp_forward, tp_backward: gathers (and as many scatters) over tp in either pass.
        keys_again, tokens_again: exchanges of keys and values, and of tokens, that its backward pass repeats, as a
            share of those of the forward pass; (1,) where stages agree.
        dense_parameters, expert_parameters: held before sharding over data parallel.
    """

    rank: Ints
    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    attention_s: Floats
    shared_s: Floats
    shared_backward_s: Floats
    num_layers: Ints
    attention_layers: Floats
    moe_layers: Floats
    tp_forward: Floats
    tp_backward: Floats
    keys_again: Floats
    tokens_again: Floats
    dense_parameters: Floats
    expert_parameters: Floats

    @property
    def held_share(self) -> Floats:
        """Share of every stage in the parameters of its rank, (p·v,); 0 on a rank without any."""
        held = self.dense_parameters + self.expert_parameters
        of_ranks = np.bincount(self.rank, weights=held)
        return np.asarray(held / np.maximum(1.0, of_ranks)[self.rank])


def stage_work(timed: TimedLayers, split: Split) -> dict[str, StageWork]:
    """Work of a decision by accelerator type; ``split``: [pipeline rank][chunk] -> layers.

    Raises:
        ValueError: the split does not hold the layers of the model.
    """
    profile, job, accelerators, candidates, times = timed
    classes, rank = virtual_stages(block_counts(profile), split, placement_of(candidates))
    table = classes.layers
    stages, candidates = np.arange(len(table)), on_rows(candidates, rank)
    held = held_parameters(profile, candidates, classes)
    counts = layer_counts(profile, LayerGathers.of(profile, candidates), classes, stages)

    passes = passes_by_type(times, job, accelerators, candidates, classes, held.total)

    def on(each: StackedTimes, forward: Floats, backward: Floats, weight: Floats, attention: Floats) -> StageWork:
        shared, shared_backward = shared_seconds(job, [each])
        return StageWork(
            rank=rank,
            forward_s=forward,
            backward_s=backward,
            weight_s=weight,
            attention_s=attention,
            shared_s=np.broadcast_to(shared, len(stages)),
            shared_backward_s=np.broadcast_to(shared_backward, len(stages)),
            num_layers=table.sum(axis=1),
            attention_layers=counts["layers"],
            moe_layers=counts["moe_layers"],
            tp_forward=counts["tp_forward"],
            tp_backward=counts["tp_gathers"] / 2 - counts["tp_forward"],
            keys_again=keys_again(profile, candidates),
            tokens_again=tokens_again(profile, candidates),
            dense_parameters=held.dense[:, 0],
            expert_parameters=held.expert[:, 0],
        )

    names = [accelerator.name for accelerator in accelerators]
    return dict(zip(names, map(on, times, *map(own, passes)), strict=True))


def chunk_work(timed: TimedLayers, split: Split) -> dict[str, PipelineWork]:
    """Work of a decision by accelerator type, as a plan states it. Raises ValueError as ``stage_work`` does."""
    works = stage_work(timed, split)
    return {one.name: _of_type(timed, one, works[one.name], split) for one in timed.accelerators}


def _of_type(timed: TimedLayers, accelerator: Accelerator, work: StageWork, split: Split) -> PipelineWork:
    candidates = timed.candidates
    pp, placement = len(split), placement_of(candidates)
    chunks = [
        ChunkWork(
            forward_s=work.forward_s[stage],
            input_gradient_s=max(0.0, work.backward_s[stage] - work.weight_s[stage]),
            weight_gradient_s=work.weight_s[stage],
            attention_s=work.attention_s[stage],
            attention_backward_s=ATTENTION_BACKWARD_RATIO * work.attention_s[stage],
            shared_s=work.shared_s[stage] * work.moe_layers[stage],
            shared_backward_s=work.shared_backward_s[stage] * work.moe_layers[stage],
            num_layers=int(work.num_layers[stage]),
            num_attention_layers=int(work.attention_layers[stage]),
            num_moe_layers=int(work.moe_layers[stage]),
            tp_forward=int(work.tp_forward[stage]),
            tp_backward=float(work.tp_backward[stage]),
            dense_parameters=work.dense_parameters[stage],
            expert_parameters=work.expert_parameters[stage],
        )
        for stage in range(len(work.rank))
    ]
    kinds = list(dict.fromkeys(chunks))
    kind_of = [[0] * len(split[0]) for _ in split]
    for stage, chunk in enumerate(chunks):
        at, index = locate(placement, pp, stage)
        kind_of[at][index] = kinds.index(chunk)

    def of_ranks(values: Floats) -> Floats:
        """Sum over the chunks of every pipeline rank, (pp, 1)."""
        return np.bincount(work.rank, values, pp).astype(np.float64)[:, None]

    dense, expert = of_ranks(work.dense_parameters), of_ranks(work.expert_parameters)
    candidates = candidates.take(np.zeros(1, dtype=np.int64))
    update = [
        float(update_s(timed.job, [accelerator], candidates, *held_by)[0, 0])
        for held_by in zip(dense, expert, strict=True)
    ]
    return PipelineWork(kinds=tuple(kinds), kind_of=tuple(map(tuple, kind_of)), optimizer_s=tuple(update))
