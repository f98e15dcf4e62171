"""Seconds of a decision's pipeline with other layers in its chunks, from its actions alone.

Seconds of an action are linear in the layers of its stage: whatever layers a stage gains or loses take the mean seconds
of a layer on its rank. Which layers have experts, and what follows or outlasts the pipeline, is left out. So the result
ranks layouts and states no step time. Timing the actions again takes a fraction of a step time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.differing_ranks import Split
from scaleacross.cost_models.pipeline.actions import Actions, timed_ends
from scaleacross.cost_models.plan_cost import PlanCost
from scaleacross.schedules.pipeline import SCHEDULES
from scaleacross.schedules.pipeline.stage_placement import locate


@dataclass(frozen=True)
class MovedPipeline:
    """The pipeline of a decision whose layers may move.

    Attributes:
        actions: of the kind of replicas that sets the step.
        rank, chunk: of every virtual stage, (p·v,).
        layers: of every virtual stage in the decision, (p·v,).
        stage_s: seconds of F, B, I and W, of the first forward and of the last backward, and then on shared links if any
            are, (6 or 10, p·v).
        layer_s: the same seconds per layer, (6 or 10, p·v).
    """

    actions: Actions
    rank: Ints
    chunk: Ints
    layers: Ints
    stage_s: Floats
    layer_s: Floats

    @classmethod
    def of(cls, cost: PlanCost) -> MovedPipeline:
        """Return the pipeline of a decision with several pipeline ranks. Raises ValueError where there is one."""
        actions, split = cost.pipeline.actions, np.array(cost.layers_per_stage)
        if actions is None:
            raise ValueError("one rank runs its passes one after another")
        p, size = actions.num_ranks, split.size
        rank, chunk = np.array([locate(SCHEDULES[actions.schedule].placement, p, stage) for stage in range(size)]).T
        links = () if actions.link_s is None else actions.link_s
        stage_s, layers = np.stack([*actions.seconds, *actions.outer_s, *links]), split[rank, chunk]
        # embedding and head are no layers, so the mean is over other stages where a rank has any
        inner = np.ones(size)
        inner[[0, -1]] = 0.0
        inner = np.where(np.bincount(rank, inner, p)[rank] > 0, inner, 1.0)
        total_s = np.stack([np.bincount(rank, inner * one, p) for one in stage_s])
        # a rank may hold embedding and head alone, without any layer
        layer_s = total_s / np.maximum(1.0, np.bincount(rank, inner * layers, p))
        return cls(actions, rank, chunk, layers, stage_s, layer_s[:, rank])

    def seconds(self, split: Split) -> float:
        """Return the seconds of the pipeline with these layers, [pipeline rank][chunk]."""
        stage_s = self._stage_s(split)
        forward, backward, inputs, weight = stage_s[:4]
        links = None if self.actions.link_s is None else stage_s[6:]
        moved = replace(
            self.actions,
            forward_s=forward,
            backward_s=backward,
            input_s=inputs,
            weight_s=weight,
            outer_s=stage_s[4:6],
            link_s=links,
        )
        return timed_ends(moved).total_s

    def busiest(self, split: Split) -> int:
        """Return the pipeline rank whose passes take longest."""
        return int(np.bincount(self.rank, self._stage_s(split)[:2].sum(axis=0)).argmax())

    def _stage_s(self, split: Split) -> Floats:
        more = np.array(split)[self.rank, self.chunk] - self.layers
        seconds: Floats = np.maximum(0.0, self.stage_s + self.layer_s * more)
        return seconds
