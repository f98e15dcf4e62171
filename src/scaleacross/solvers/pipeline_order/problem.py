"""Input of the search for a pipeline order: times of the stages, links between them, memory of the ranks.

Symbols: p ranks, v chunks per rank, m micro-batches, S = p·v virtual stages in model order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.pipeline.timing import PipelineTimes, time_schedule
from scaleacross.errors import InfeasibleError, InputError
from scaleacross.schedules.pipeline import PipelineSchedule
from scaleacross.schedules.pipeline.stage_placement import STAGE_PLACEMENTS, StagePlacement, locate


@dataclass(frozen=True)
class OrderProblem:
    """One pipeline step whose order is open. Build it with ``order_problem``, which checks it.

    Attributes:
        num_ranks, num_microbatches, num_chunks: p, m, v.
        placement: which rank holds which virtual stage.
        forward_s, backward_s: seconds of F and of the full backward of one micro-batch, per virtual stage, shape (S,).
        weight_s: seconds of W, part of ``backward_s``, shape (S,); None keeps the backward in one piece (B).
        latency_s, occupancy_s: per direction (row 0 forward, row 1 backward) and boundary between virtual stages, shape
            (2, S−1); as ``pipeline.timing`` defines them.
        most_held: activations of one micro-batch on one virtual stage that a rank has room for, shape (p,); each is
            kept from the start of F to the end of B, or of W.
    """

    num_ranks: int
    num_microbatches: int
    num_chunks: int
    placement: StagePlacement
    forward_s: Floats
    backward_s: Floats
    weight_s: Floats | None
    latency_s: Floats
    occupancy_s: Floats
    most_held: Floats

    @property
    def num_virtual_stages(self) -> int:
        """S = p·v."""
        return self.num_ranks * self.num_chunks

    @property
    def rank_of(self) -> tuple[int, ...]:
        """Rank of each virtual stage."""
        return tuple(locate(self.placement, self.num_ranks, x)[0] for x in range(self.num_virtual_stages))

    @property
    def work_s(self) -> Floats:
        """Seconds that each rank computes in the step, shape (p,)."""
        per_stage = self.num_microbatches * (self.forward_s + self.backward_s)
        work: Floats = np.bincount(self.rank_of, weights=per_stage, minlength=self.num_ranks).astype(np.float64)
        return work


def order_problem(
    num_ranks: int,
    num_microbatches: int,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    *,
    weight_s: ArrayLike | None = None,
    num_chunks: int = 1,
    placement: StagePlacement = "loop",
    latency_s: ArrayLike = 0.0,
    occupancy_s: ArrayLike = 0.0,
    most_held: ArrayLike | None = None,
) -> OrderProblem:
    """Return a checked ``OrderProblem``; every array may be a scalar, and without ``most_held`` memory binds nothing.

    Latency and occupancy have shape (S−1,) where both directions are alike.

    Raises:
        InputError: a count below one, a wrong shape, a negative or non-finite number, a weight gradient longer than the
            backward.
        InfeasibleError: a rank cannot hold even one micro-batch.
    """
    for name, count in (("ranks", num_ranks), ("micro-batches", num_microbatches), ("chunks", num_chunks)):
        if count < 1:
            raise InputError(f"a pipeline needs at least one of its {name}, got {count}")
    if placement not in STAGE_PLACEMENTS:
        raise InputError(f"no stage placement '{placement}': choose from {', '.join(STAGE_PLACEMENTS)}")
    stages = num_ranks * num_chunks
    problem = OrderProblem(
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        num_chunks=num_chunks,
        placement=placement,
        forward_s=_numbers("forward_s", forward_s, (stages,)),
        backward_s=_numbers("backward_s", backward_s, (stages,)),
        weight_s=None if weight_s is None else _numbers("weight_s", weight_s, (stages,)),
        latency_s=_numbers("latency_s", latency_s, (2, stages - 1)),
        occupancy_s=_numbers("occupancy_s", occupancy_s, (2, stages - 1)),
        most_held=_numbers(
            "most_held", num_microbatches * num_chunks if most_held is None else most_held, (num_ranks,)
        ),
    )
    _check_times(problem)
    _check_memory(problem)
    return problem


def time_order(problem: OrderProblem, schedule: PipelineSchedule) -> PipelineTimes:
    """Return when everything happens if the ranks follow ``schedule``."""
    return time_schedule(
        schedule,
        problem.forward_s,
        problem.backward_s,
        problem.latency_s,
        problem.occupancy_s,
        weight_s=problem.weight_s,
    )


def step_s(problem: OrderProblem, schedule: PipelineSchedule) -> float:
    """Return the seconds of the step in the order of ``schedule``, the objective."""
    return time_order(problem, schedule).total_s


def _numbers(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Return ``values`` broadcast to ``shape``; raise InputError unless they are finite and not negative."""
    array = np.asarray(values, dtype=np.float64)
    if array.shape not in ((), shape, shape[1:] or shape):
        raise InputError(f"{name} has shape {array.shape}, expected a scalar or {shape}")
    bad = ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        where = f"[{', '.join(str(k) for k in np.argwhere(bad)[0])}]" if array.shape else ""
        why = ""
        if name == "occupancy_s":
            why = ": a message that never leaves its link blocks the pipeline; give the boundary a bandwidth above zero"
        raise InputError(f"{name}{where} is {array[bad].ravel()[0]}, expected finite and not negative{why}")
    return np.broadcast_to(array, shape)


def _check_times(problem: OrderProblem) -> None:
    """Raise InputError where a weight gradient is longer than its backward, or nothing takes time."""
    part, whole = problem.weight_s, problem.backward_s
    if part is not None and (part > whole).any():
        x = int(np.argmax(part > whole))
        raise InputError(f"weight_s of virtual stage {x} is {part[x]:g}, but it is a part of backward_s = {whole[x]:g}")
    if not (problem.forward_s + problem.backward_s).any():
        raise InputError("all forward_s and backward_s are zero: there is nothing to order")


def _check_memory(problem: OrderProblem) -> None:
    """Raise InfeasibleError unless one micro-batch at a time fits on every rank.

    Its backward starts when all chunks of a rank hold their activations.
    """
    short = problem.most_held < problem.num_chunks
    if short.any():
        r = int(np.argmax(short))
        raise InfeasibleError(
            f"rank {r} has room for {problem.most_held[r]:g} activations, one micro-batch keeps one on each of its "
            f"{problem.num_chunks} chunk(s): shrink the micro-batch, or recompute activations"
        )
