"""One optimizer step from its parts.

    step = m · (forward + backward)                 computation of the busiest rank
         + fill                                     forward (+ backward) of the ranks before it once, a chunk each
         + Σ_axes serial                            tp, cp, ep collectives on the critical path; pipeline message delays
         + Σ_windows exposed(Σ_axes window time)    gradient and parameter traffic that computation does not hide
         + what passes with shards add              gathers and reductions of every micro-batch (``least_passes``)
         + hbm                                      what hidden traffic takes of HBM from element-wise work; shown as dp
         + optimizer

For arrays of candidates (``step_times``) this is a bound: one rank with what comes before it. Collectives of its layers that
wait are paid in ``overlap.rounds``; m of them are shown as the axis that waits, the rest as bubble. A placed decision is timed
action by action (``pipeline.placed``, ``played_times``): fill, waits and delays are what its schedule makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaleacross.cost_models.axes import Terms
from scaleacross.cost_models.beside_layers import BesideLayers
from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.columns import columns_of
from scaleacross.cost_models.early_gradients import Early, early_gradients
from scaleacross.cost_models.groups import GroupShape, exact_shape
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
"""Serial components that are paid once per round, hence share the bubble."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds per candidate, each (n,); ``exposed_s`` by tp, cp, ep, pp, dp. Parts add up to ``step_s``.

    ``behind_s`` of it come after the pipeline at least, however long that is.
    """

    step_s: Floats
    compute_s: Floats
    bubble_s: Floats
    exposed_s: dict[str, Floats]
    optimizer_s: Floats
    behind_s: Floats


def placement_free_s(volumes: Volumes) -> Floats:
    """The part of a step that no placement changes: computation, what it loses of HBM, and the optimizer, (n,)."""
    fixed: Floats = computation_s(volumes.candidates, volumes.work) + hbm_lost_s(volumes) + volumes.work.optimizer_s
    return fixed


def hbm_lost_s(volumes: Volumes) -> Floats:
    """Seconds of a step by which element-wise work falls behind because concurrent traffic passes through HBM, (n,).

    Also where that traffic outlasts its window and the step waits for it anyway: at most what HBM takes of its time too much.
    """
    return volumes.work.hbm_s_per_byte * volumes.received_beside_bytes


def step_times(volumes: Volumes, terms: Sequence[Terms]) -> StepTimes:
    """Assemble a step from the terms of all axes."""
    candidates, work = volumes.candidates, volumes.work
    busy = candidates.num_micro_batches / rounds(candidates, work)
    exposed: dict[str, Floats] = {name: np.zeros(len(candidates)) for name in ("tp", "cp", "ep", "pp", "dp")}
    bubble = np.array(work.fill_s)
    for term in terms:
        for name, seconds in term.serial_s.items():
            share = busy if name in PER_ROUND else np.ones_like(busy)
            exposed[name] = exposed[name] + share * seconds
            bubble = bubble + (1 - share) * seconds
    over, traffic = windows(candidates, work), [part for term in terms for part in term.traffic_s]
    compute = candidates.num_micro_batches * (work.forward_s + work.backward_s)
    waited = sum((exposed[name] for name in ("tp", "cp", "ep", "pp")), start=bubble - work.fill_s)
    shards, of_shards = LeastPasses.of(volumes), np.zeros(len(candidates))
    if shards is not None:
        beyond, whole = shards.bounds_s(sum(traffic, start=np.zeros((TRAFFIC_ROWS, len(candidates)))))
        of_shards = np.maximum(beyond, whole - (compute + work.fill_s + waited))
        waited = waited + of_shards
        over = shards.behind(over, waited)
    early = early_gradients(volumes) if any(term.far is not None and term.far.any() for term in terms) else None
    if early is not None:
        before = sum(term.early_s for term in terms)
        early = early.where(np.any([term.far for term in terms if term.far is not None], axis=0))
        over, traffic = early.behind(over, waited, before), [part for term in terms for part in _apart(term, early)]
    exposed["dp"] = exposed["dp"] + beyond_windows_s(traffic, work.buckets, over) + hbm_lost_s(volumes)
    # windows that end with what passes wait for are longer where these wait longer
    open_ended = np.zeros(len(candidates), dtype=bool) if early is None else early.is_far
    open_ended = open_ended if shards is None else open_ended | shards.every_pass
    behind = work.optimizer_s + np.where(open_ended, 0.0, exposed["dp"])
    exposed["dp"] = exposed["dp"] + of_shards
    total = compute + bubble + work.optimizer_s + sum(exposed.values(), start=np.zeros(len(candidates)))
    return StepTimes(total, compute, bubble, exposed, work.optimizer_s, behind)


def _apart(term: Terms, early: Early) -> Iterator[Floats]:
    """Traffic of an axis with gradients that do not share trunks."""
    if not term.apart_s:
        yield from term.traffic_s
    for shared, apart in zip(term.traffic_s, term.apart_s, strict=bool(term.apart_s)):
        yield early.alone(shared, apart)


def played_times(volumes: Volumes, pipeline: TimedPipeline, terms: Sequence[Terms], beside: BesideLayers) -> StepTimes:
    """A step whose pipeline was timed, one candidate.

    Args:
        volumes: a row for every pipeline rank of the slowest replicas.
        terms: what falls into windows, of all ranks; the step waits for the rank that hides least.
        beside: what windows do not know.
    """
    exposed = {name: np.full(1, seconds) for name, seconds in pipeline.waited_s.items()}
    exposed["pp"] = np.full(1, pipeline.total_s - pipeline.alone_s)
    behind, optimizer = _behind_pipeline_s(volumes, terms, beside)
    exposed["dp"] = exposed.get("dp", 0.0) + behind
    compute, bubble = np.full(1, pipeline.compute_s), np.full(1, pipeline.bubble_s)
    total = compute + bubble + optimizer + sum(exposed.values(), start=np.zeros(1))
    return StepTimes(total, compute, bubble, exposed, optimizer, behind + optimizer)


def played_step_s(volumes: Volumes, pipeline: TimedPipeline, terms: Sequence[Terms], beside: BesideLayers) -> float:
    """``played_times(...).step_s`` without its parts, which need the pipeline timed once more."""
    return pipeline.total_s + sum(float(part[0]) for part in _behind_pipeline_s(volumes, terms, beside))


def _behind_pipeline_s(volumes: Volumes, terms: Sequence[Terms], beside: BesideLayers) -> tuple[Floats, Floats]:
    """What data parallelism leaves exposed on the rank that hides least, and the optimizer, each (1,)."""
    exposed = behind_ranks_s(volumes, terms, beside)
    return exposed.max(keepdims=True), volumes.work.optimizer_s.max(keepdims=True)


def behind_ranks_s(volumes: Volumes, terms: Sequence[Terms], beside: BesideLayers) -> Floats:
    """What data parallelism leaves exposed on every pipeline rank, (ranks,)."""
    waited = sum((term.serial_total_s for term in terms), start=np.zeros(len(volumes.candidates)))
    over = beside.on(windows(volumes.candidates, volumes.work, placed=True))
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
        count: counts the shape of a degree and a stride on ``levels``, or remembers it.

    Raises:
        ValueError: the degrees do not fill the device list of ``levels``.
    """
    return {name: count(*axis, levels) for name, axis in communicator_axes(degrees, axis_order).items()}


def one_row(shape: GroupShape) -> GroupShape:
    """The shape of one decision as arrays with a leading candidate axis of length 1."""
    return GroupShape(*(np.asarray(column)[None] for column in columns_of(shape)))
