"""The verb schedule: time the actions of a pipeline schedule, given by name or by a plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scaleacross.api.files import verified_plan
from scaleacross.api.problems import problem_of
from scaleacross.cost_models.pipeline.exact import virtual_boundaries
from scaleacross.cost_models.pipeline.timeline import plan_timeline, timeline
from scaleacross.cost_models.pipeline.timing import time_schedule
from scaleacross.errors import InputError, VerificationError
from scaleacross.schedules.pipeline import SCHEDULES, generate
from scaleacross.schedules.pipeline.check import check
from scaleacross.spec.parallelism import ScheduleName, has_chunks
from scaleacross.spec.plan import Plan
from scaleacross.spec.timeline import PipelineTimeline
from scaleacross.units import human_seconds

MAX_ACTIONS: Final = 400_000


def schedule(
    name: ScheduleName,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int | None = None,
    *,
    forward_s: float = 1e-3,
    input_gradient_s: float = 1e-3,
    weight_gradient_s: float = 1e-3,
    latency_s: float = 0.0,
    message_s: float = 0.0,
    boundaries: Sequence[int] | None = None,
    max_in_flight: int | None = None,
    message_bytes: float | None = None,
) -> PipelineTimeline:
    """Return the timeline of one step of schedule ``name``, in seconds.

    Args:
        name: name in ``SCHEDULES``.
        num_ranks: pipeline ranks p.
        num_microbatches: micro-batches m.
        num_chunks: model chunks per rank v; None: 1, or 2 where the schedule needs more.
        forward_s: forward pass of one micro-batch through all layers of a rank, s.
        input_gradient_s: its input gradients, s.
        weight_gradient_s: its weight gradients, s.
        latency_s: travel time of a message, s.
        message_s: time that a message occupies the link, s.
        boundaries: k: only messages between ranks k and k+1 (counted from 0) are delayed, and the loop-back; None: all.
        max_in_flight: chunk activations that fit in a rank's memory.
        message_bytes: bytes of one message, for the totals.

    Raises:
        InputError: the schedule refuses the shape or does not fit in memory, a time is negative or not finite, or a
            boundary does not exist.
    """
    if name not in SCHEDULES:
        generate(name, num_ranks, num_microbatches, 1)  # raises an error that lists the known names
    _require_size(num_ranks, num_microbatches, num_chunks or 1)
    chunks = num_chunks if num_chunks is not None else 1 if has_chunks(name, 1) else 2
    made = generate(name, num_ranks, num_microbatches, chunks)
    if max_in_flight is not None:
        try:
            check(made, max_in_flight)
        except VerificationError as error:
            raise InputError(f"does not fit in memory: {error}") from error
    if input_gradient_s < 0 or not forward_s + input_gradient_s + weight_gradient_s > 0:
        raise InputError(
            f"times must not be negative, nor all zero: forward {forward_s:g} s, input gradient {input_gradient_s:g} s, weight "
            f"gradient {weight_gradient_s:g} s"
        )
    share = made.num_copies / made.num_chunks  # of a rank's layers in one chunk, as one micro-batch passes them
    delayed = _delayed(num_ranks, boundaries)
    size = num_ranks if chunks > 1 else num_ranks - 1
    latency, occupancy = (
        virtual_boundaries(
            label, [seconds if slow else 0.0 for slow in delayed[:size]], num_ranks, chunks, made.placement
        )
        for label, seconds in (("latency", latency_s), ("message time", message_s))
    )
    backward_s = input_gradient_s + weight_gradient_s
    rank_times = (forward_s * share, backward_s * share)
    times = time_schedule(made, *rank_times, latency, occupancy, weight_s=weight_gradient_s * share)
    parts = {"forward": forward_s, "input gradient": input_gradient_s, "weight gradient": weight_gradient_s}
    passes = ", ".join(f"{name} {human_seconds(seconds)}" for name, seconds in parts.items())
    note = f"{passes} of a micro-batch on a rank, given or by default"
    return timeline(made, times, message_bytes).model_copy(update={"note": note})


def _require_size(*sizes: int) -> None:
    """Raise InputError for more actions than can be drawn and timed within seconds."""
    actions = 2 * max(0, sizes[0]) * max(0, sizes[1]) * max(0, sizes[2])
    if actions > MAX_ACTIONS:
        raise InputError(
            f"{sizes[0]:,} ranks x {sizes[1]:,} micro-batches x {sizes[2]:,} chunks are {actions:,} forwards and backwards; "
            f"at most {MAX_ACTIONS:,} are drawn: take fewer micro-batches, the pattern repeats"
        )


def schedule_of_plan(plan: Plan | str | Path) -> PipelineTimeline:
    """Return the timeline of one step of a plan's pipeline, with the times of its cost model.

    Raises:
        InputError: the plan cannot be read, or has no pipeline.
        VerificationError: a plan read from a file does not recompute.
    """
    found = plan if isinstance(plan, Plan) else verified_plan(plan)
    return plan_timeline(problem_of(found.job, ()), found.decision)


def _delayed(num_ranks: int, boundaries: Sequence[int] | None) -> list[bool]:
    """Return whether each boundary between ranks k and k+1 is delayed; last the loop-back from the last rank."""
    if boundaries is None:
        return [True] * num_ranks
    out = [False] * num_ranks
    for boundary in boundaries:
        if not 0 <= boundary < num_ranks - 1:
            raise InputError(
                f"there is no boundary {boundary}: between {num_ranks} ranks they are numbered 0 to {num_ranks - 2}"
            )
        out[boundary] = True
    # stages of several chunks return from the last rank to the first over the same slow link
    out[-1] = any(out)
    return out
