"""Builds the order problem of a decided plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scaleacross.cost_models.pipeline.timeline import PlannedPipeline
from scaleacross.schedules.pipeline.check import peak_in_flight
from scaleacross.solvers.pipeline_order.problem import OrderProblem, order_problem
from scaleacross.spec.plan import StageMemory


def problem_of_plan(pipe: PlannedPipeline, memory: Sequence[StageMemory], *, split: bool) -> OrderProblem:
    """Return the order problem of ``pipe``; activations count as in the memory model: all of them until B or W.

    What the first forward and the last backward wait for beyond the others (``Actions.outer_s``) is left out.

    Args:
        memory: per rank, computed with the order of ``pipe.schedule``.
        split: whether the backward is split into I and W.

    Raises:
        InfeasibleError: a rank cannot hold even one micro-batch.
    """
    per_chunk = np.array([rank.activations_bytes for rank in memory]) / np.maximum(1, peak_in_flight(pipe.schedule))
    free = np.array(
        [one.capacity_bytes - one.headroom_bytes - one.total_bytes + one.activations_bytes for one in memory]
    )
    most = pipe.schedule.num_microbatches * pipe.schedule.num_chunks
    stages, (latency_s, occupancy_s) = pipe.actions, pipe.actions.between_stages()
    return order_problem(
        pipe.schedule.num_ranks,
        pipe.schedule.num_microbatches,
        stages.forward_s,
        stages.input_s + stages.weight_s if split else stages.backward_s,
        weight_s=stages.weight_s if split else None,
        num_chunks=pipe.schedule.num_chunks,
        placement=pipe.schedule.placement,
        latency_s=latency_s,
        occupancy_s=occupancy_s,
        most_held=np.minimum(most, np.floor(np.maximum(free, 0.0) / np.maximum(per_chunk, 1.0))),
    )
