"""One optimizer step from its parts.

    step = m · (forward + backward)                 computation of the busiest rank
         + fill                                     forward (+ backward) of the ranks before it once, a chunk each
         + Σ_axes serial                            tp, cp, ep collectives on the critical path; pipeline message delays
         + Σ_windows exposed(Σ_axes window time)    gradient and parameter traffic that exceeds its window
         + passes with shards                       gathers and reductions of every micro-batch (``least_passes``)
         + hbm                                      HBM time that overlapped traffic takes from element-wise work, in dp
         + optimizer

For arrays of candidates (``step_times``) this is a bound: one rank, with the computation of the ranks before it.
Exposed collectives of its layers occur ``overlap.rounds`` times; m of these are shown as their axis, the rest as
bubble. A placed decision is timed action by action (``pipeline.placed``, ``placed_times``); its schedule determines
warm-up, cool-down, waits and delays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaleacross.cost_models.axes import Terms
from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.columns import columns_of
from scaleacross.cost_models.early_gradients import Early, early_gradients
from scaleacross.cost_models.groups import GroupShape, exact_shape
from scaleacross.cost_models.layer_overlap import LayerOverlap
from scaleacross.cost_models.least_passes import LeastPasses
from scaleacross.cost_models.levels import Levels
from scaleacross.cost_models.overlap import (
    TRAFFIC_ROWS,
    beyond_windows_s,
    computation_s,
    rounds,
    windows,
)
from scaleacross.cost_models.pipeline.placed import TimedPipeline
from scaleacross.cost_models.traffic import Volumes
from scaleacross.spec.parallelism import Degrees, GridAxis
from scaleacross.spec.placement import communicator_axes

PER_ROUND = ("tp", "cp", "ep")
"""Serial components that occur once per round, so that a part of them is bubble."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds per candidate, each (n,). Parts add up to ``step_s``.

    Attributes:
        exposed_s: by tp, cp, ep, pp, dp.
        after_pipeline_s: lower bound on the part that follows the pipeline, however long the pipeline is.
    """

    step_s: Floats
    compute_s: Floats
    bubble_s: Floats
    exposed_s: dict[str, Floats]
    optimizer_s: Floats
    after_pipeline_s: Floats


def placement_free_s(volumes: Volumes) -> Floats:
    """Seconds of a step that no placement changes, (n,): computation, its loss of HBM, and the optimizer."""
    fixed: Floats = computation_s(volumes.candidates, volumes.work) + hbm_lost_s(volumes) + volumes.work.optimizer_s
    return fixed


def hbm_lost_s(volumes: Volumes) -> Floats:
    """Seconds of a step by which element-wise work falls behind because concurrent traffic passes through HBM, (n,).

    It counts even where that traffic outlasts its window and the step waits for it: too high there by at most this.
    """
    return volumes.work.hbm_s_per_byte * volumes.received_concurrently_bytes


def step_times(volumes: Volumes, terms: Sequence[Terms]) -> StepTimes:
    """Step times of an array of candidates from the terms of all axes."""
    candidates, work = volumes.candidates, volumes.work
    busy = candidates.num_micro_batches / rounds(candidates, work)
    exposed: dict[str, Floats] = {name: np.zeros(len(candidates)) for name in ("tp", "cp", "ep", "pp", "dp")}
    bubble = np.array(work.fill_s)
    for term in terms:
        for name, seconds in term.serial_s.items():
            share = busy if name in PER_ROUND else np.ones_like(busy)
            exposed[name] = exposed[name] + share * seconds
            # serial_s counts all rounds; those beyond m belong to warm-up and cool-down
            bubble = bubble + (1 - share) * seconds
    over, traffic = windows(candidates, work), [part for term in terms for part in term.traffic_s]
    compute = candidates.num_micro_batches * (work.forward_s + work.backward_s)
    waited = sum((exposed[name] for name in ("tp", "cp", "ep", "pp")), start=bubble - work.fill_s)
    shards, of_shards = LeastPasses.of(volumes), np.zeros(len(candidates))
    if shards is not None:
        beyond, whole = shards.bounds_s(sum(traffic, start=np.zeros((TRAFFIC_ROWS, len(candidates)))))
        # ``whole`` bounds the pipeline with all its parts, so only its excess over these counts
        of_shards = np.maximum(beyond, whole - (compute + work.fill_s + waited))
        waited = waited + of_shards
        over = shards.overlapping(over, waited)
    early = early_gradients(volumes) if any(term.crosses is not None and term.crosses.any() for term in terms) else None
    if early is not None:
        before = sum(term.early_s for term in terms)
        early = early.where(np.any([term.crosses for term in terms if term.crosses is not None], axis=0))
        over = early.overlapping(over, waited, before)
        traffic = [part for term in terms for part in _unshared(term, early)]
    exposed["dp"] = exposed["dp"] + beyond_windows_s(traffic, work.buckets, over) + hbm_lost_s(volumes)
    # windows of these candidates grow with the waits of passes: what exceeds them is no certain tail after the pipeline
    open_ended = np.zeros(len(candidates), dtype=bool) if early is None else early.gradients_cross
    open_ended = open_ended if shards is None else open_ended | shards.every_pass
    after_pipeline = work.optimizer_s + np.where(open_ended, 0.0, exposed["dp"])
    exposed["dp"] = exposed["dp"] + of_shards
    total = compute + bubble + work.optimizer_s + sum(exposed.values(), start=np.zeros(len(candidates)))
    return StepTimes(total, compute, bubble, exposed, work.optimizer_s, after_pipeline)


def _unshared(term: Terms, early: Early) -> Iterator[Floats]:
    """Traffic of an axis, with gradients timed as if alone on inter-building links."""
    if not term.unshared_s:
        yield from term.traffic_s
    for shared, unshared in zip(term.traffic_s, term.unshared_s, strict=bool(term.unshared_s)):
        yield early.alone(shared, unshared)


def placed_times(
    volumes: Volumes, pipeline: TimedPipeline, terms: Sequence[Terms], layer_overlap: LayerOverlap
) -> StepTimes:
    """Step times of one candidate whose pipeline was timed.

    Args:
        volumes: a row for every pipeline rank of the slowest replicas.
        terms: traffic in windows, of all ranks; the step waits for the rank with most exposed traffic.
        layer_overlap: effects that the laws of windows do not contain.
    """
    exposed = {name: np.full(1, seconds) for name, seconds in pipeline.waited_s.items()}
    exposed["pp"] = np.full(1, pipeline.total_s - pipeline.alone_s)
    after_pipeline, optimizer = _after_pipeline_s(volumes, terms, layer_overlap)
    exposed["dp"] = exposed.get("dp", 0.0) + after_pipeline
    compute, bubble = np.full(1, pipeline.compute_s), np.full(1, pipeline.bubble_s)
    total = compute + bubble + optimizer + sum(exposed.values(), start=np.zeros(1))
    return StepTimes(total, compute, bubble, exposed, optimizer, after_pipeline + optimizer)


def placed_step_s(
    volumes: Volumes, pipeline: TimedPipeline, terms: Sequence[Terms], layer_overlap: LayerOverlap
) -> float:
    """``placed_times(...).step_s`` without its parts; these need the pipeline timed once more."""
    return pipeline.total_s + sum(float(part[0]) for part in _after_pipeline_s(volumes, terms, layer_overlap))


def _after_pipeline_s(volumes: Volumes, terms: Sequence[Terms], layer_overlap: LayerOverlap) -> tuple[Floats, Floats]:
    """Exposed data-parallel seconds of the rank with most of them, and seconds of the optimizer, each (1,)."""
    exposed = after_ranks_s(volumes, terms, layer_overlap)
    return exposed.max(keepdims=True), volumes.work.optimizer_s.max(keepdims=True)


def after_ranks_s(volumes: Volumes, terms: Sequence[Terms], layer_overlap: LayerOverlap) -> Floats:
    """Exposed data-parallel seconds of every pipeline rank, (ranks,)."""
    waited = sum((term.serial_total_s for term in terms), start=np.zeros(len(volumes.candidates)))
    over = layer_overlap.on(windows(volumes.candidates, volumes.work, placed=True))
    traffic = [part for term in terms for part in term.traffic_s]
    exposed: Floats = waited + beyond_windows_s(traffic, volumes.work.buckets, over) + hbm_lost_s(volumes)
    return exposed


Count = Callable[[int, int, Levels], GroupShape]


def exact_shapes(
    degrees: Degrees,
    axis_order: Sequence[GridAxis],
    levels: Levels,
    count: Count = exact_shape,
) -> Mapping[str, GroupShape]:
    """Shapes of the groups of every grid axis under an axis order, and of the expert groups (``ep``, ``expert``).

    Args:
        count: computes the shape of a degree and a stride on ``levels``, or looks it up.

    Raises:
        ValueError: the degrees do not tile the device list of ``levels``.
    """
    return {name: count(*axis, levels) for name, axis in communicator_axes(degrees, axis_order).items()}


def one_row(shape: GroupShape) -> GroupShape:
    """The shape of one decision as arrays with a leading candidate axis of length 1."""
    return GroupShape(*(np.asarray(column)[None] for column in columns_of(shape)))
