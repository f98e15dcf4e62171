"""What the order of a pipeline step is decided for: times of the stages, links between them, memory of the ranks.

Symbols: p ranks, v chunks per rank, m micro-batches, S = p·v virtual stages in model order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleacross.cost_models.pipeline.timing import PipelineTimes, time_schedule
from scaleacross.errors import InfeasibleError, InputError
from scaleacross.schedules.pipeline import PipelineSchedule
from scaleacross.schedules.pipeline.stage_placement import STAGE_PLACEMENTS, StagePlacement, locate

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class OrderProblem:
    """One pipeline step whose order is open. Build it with ``order_problem``, which checks it.

    Attributes:
        num_ranks, num_microbatches, num_chunks: p, m, v.
        placement: which rank holds which virtual stage.
        forward_s, backward_s: seconds of F and of the full backward of one micro-batch, per virtual stage, shape (S,).
        weight_s: seconds of W, part of ``backward_s``, shape (S,); None keeps the backward in one piece (B).
        latency_s, occupancy_s: per direction (row 0 forward, row 1 backward) and boundary between virtual stages, shape (2, S−1);
            as ``pipeline.timing`` defines them.
        activation_bytes: kept from the start of F to the end of B, or of W, per virtual stage, shape (S,).
        released_bytes: the part of it that the end of I frees, shape (S,).
        memory_limit_bytes: for these activations, per rank, shape (p,).
        gather_s: seconds before which a rank has no parameters and cannot compute (all-gather of sharded ones), shape (p,).
        reduce_s: seconds that a rank needs after its last computation (reduce-scatter of its gradients), shape (p,).
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
    activation_bytes: Floats
    released_bytes: Floats
    memory_limit_bytes: Floats
    gather_s: Floats
    reduce_s: Floats

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
    activation_bytes: ArrayLike = 1.0,
    released_bytes: ArrayLike = 0.0,
    memory_limit_bytes: ArrayLike | None = None,
    gather_s: ArrayLike = 0.0,
    reduce_s: ArrayLike = 0.0,
) -> OrderProblem:
    """An ``OrderProblem``; every array may be a scalar; latency and occupancy of both directions alike have shape (S−1,).

    Without ``memory_limit_bytes`` memory binds nothing. Any unit of bytes will do, e.g. activations of one stage.

    Raises:
        InputError: a count below one, a wrong shape, a negative or non-finite number, a weight gradient longer than the
            backward, a part of an activation larger than the activation.
        InfeasibleError: a rank cannot hold even one micro-batch.
    """
    for name, count in (("ranks", num_ranks), ("micro-batches", num_microbatches), ("chunks", num_chunks)):
        if count < 1:
            raise InputError(f"a pipeline needs at least one of its {name}, got {count}")
    if placement not in STAGE_PLACEMENTS:
        raise InputError(f"no stage placement '{placement}': choose from {', '.join(STAGE_PLACEMENTS)}")
    stages = num_ranks * num_chunks
    activation = _numbers("activation_bytes", activation_bytes, (stages,))
    unlimited = num_microbatches * num_chunks * float(activation.max())
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
        activation_bytes=activation,
        released_bytes=_numbers("released_bytes", released_bytes, (stages,)),
        memory_limit_bytes=_numbers(
            "memory_limit_bytes", unlimited if memory_limit_bytes is None else memory_limit_bytes, (num_ranks,)
        ),
        gather_s=_numbers("gather_s", gather_s, (num_ranks,)),
        reduce_s=_numbers("reduce_s", reduce_s, (num_ranks,)),
    )
    _check_parts(problem)
    _check_memory(problem)
    return problem


def time_order(problem: OrderProblem, schedule: PipelineSchedule) -> PipelineTimes:
    """When everything happens if the ranks follow ``schedule``; ``step_s`` adds the reduction at the end."""
    return time_schedule(
        schedule,
        problem.forward_s,
        problem.backward_s,
        problem.latency_s,
        problem.occupancy_s,
        weight_s=problem.weight_s,
        ready_s=problem.gather_s,
    )


def step_s(problem: OrderProblem, schedule: PipelineSchedule) -> float:
    """Seconds of the step in the order of ``schedule``, the objective: the last rank's end with its reduction."""
    times = time_order(problem, schedule)
    ends = [finish.max() + reduce_s for finish, reduce_s in zip(times.finish_s, problem.reduce_s.tolist(), strict=True)]
    return float(max(ends))


def _numbers(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """``values`` broadcast to ``shape``, finite and not negative."""
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


def _check_parts(problem: OrderProblem) -> None:
    """Parts are at most the whole, and something takes time."""
    for part_name, part, whole_name, whole in (
        ("weight_s", problem.weight_s, "backward_s", problem.backward_s),
        ("released_bytes", problem.released_bytes, "activation_bytes", problem.activation_bytes),
    ):
        if part is not None and (part > whole).any():
            x = int(np.argmax(part > whole))
            raise InputError(
                f"{part_name} of virtual stage {x} is {part[x]:g}, but it is a part of {whole_name} = {whole[x]:g}"
            )
    if not (problem.forward_s + problem.backward_s).any():
        raise InputError("all forward_s and backward_s are zero: there is nothing to order")


def _check_memory(problem: OrderProblem) -> None:
    """One micro-batch at a time must fit: its backward starts when all chunks of a rank hold their activations."""
    needed = np.bincount(problem.rank_of, weights=problem.activation_bytes, minlength=problem.num_ranks)
    short = needed > problem.memory_limit_bytes
    if short.any():
        r = int(np.argmax(short))
        raise InfeasibleError(
            f"rank {r} has {problem.memory_limit_bytes[r]:g} bytes for activations, one micro-batch keeps {needed[r]:g} on its "
            f"{problem.num_chunks} chunk(s): raise memory_limit_bytes, shrink the micro-batch, or recompute activations"
        )
