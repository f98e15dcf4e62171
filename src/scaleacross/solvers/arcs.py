"""One axis of many candidates at one stride: what they wait for and what they send, computed for distinct rows only.

Nothing here depends on the overlap settings of a job. Calls, groups and window traffic are computed once, and
``Arc.terms`` applies the settings. An axis that all candidates have at degree 1 makes no arc.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.axes import Calls, Terms, waiting, waits_of
from scaleacross.cost_models.candidates import Bools, Candidates, Floats, Ints
from scaleacross.cost_models.columns import column_names
from scaleacross.cost_models.distinct import Distinct, distinct
from scaleacross.cost_models.early_gradients import Early
from scaleacross.cost_models.least_passes import LeastPasses
from scaleacross.cost_models.least_waits import longest_s
from scaleacross.cost_models.overlap import Window, exposed_s, least_together_s
from scaleacross.cost_models.pipeline.timed_bounds import folded
from scaleacross.cost_models.traffic import Volumes
from scaleacross.spec.parallelism import GRID_AXES, GridAxis
from scaleacross.spec.placement import axis_orders

ENDLESS_S: Final = 1e30
"""Longer than any window's traffic."""
SPLIT: Final = frozenset({"dp_shard", "dp_replicate", "shard", "optimizer_offload"})
"""Columns that change neither computation nor any collective that the step waits for."""
SHAPE: Final = frozenset({"micro_batch", "num_micro_batches", "schedule", "recompute", "context", "activation_offload"})
"""Columns that change no gradient, parameter and optimizer traffic, except through folded stages (``alike``)."""


class Kinds(NamedTuple):
    """Candidates that agree on all columns but SPLIT (``partial``), and on all but SHAPE (``state``)."""

    partial: Distinct
    state: Distinct


def kinds_of(candidates: Candidates) -> Kinds:
    """Return the kinds of some candidates."""
    return Kinds(alike(candidates, SPLIT), alike(candidates, SHAPE))


def alike(candidates: Candidates, without: frozenset[str]) -> Distinct:
    """Return the kinds of candidates that agree on all columns but ``without``.

    Candidates of one kind also agree on whether their stages are folded, which moves layers.
    """
    columns = [getattr(candidates, name) for name in column_names(Candidates) if name not in without]
    if "schedule" in without:
        columns.append(folded(candidates.schedule).astype(np.int64))
    return distinct(*columns)


def axes_of_several(candidates: Candidates, axes: Sequence[GridAxis]) -> Sequence[GridAxis]:
    """Return the ``axes`` over which some candidate has several ranks, at least one axis; single ranks send nothing."""
    return [axis for axis in axes if (getattr(candidates, axis) > 1).any()] or axes[:1]


def by_orders(candidates: Candidates) -> Iterator[tuple[Ints, list[tuple[GridAxis, ...]]]]:
    """Yield rows of candidates with the same axes of degree > 1, and the orders that these axes may lie in."""
    pattern = distinct(*(np.minimum(getattr(candidates, axis), 2) for axis in (*GRID_AXES, "expert_lanes")))
    for kind, row in enumerate(pattern.first):
        active = [axis for axis in GRID_AXES if int(getattr(candidates, axis)[row]) > 1]
        yield np.flatnonzero(pattern.code == kind), axis_orders(active, bool(candidates.expert_lanes[row] > 1))


def sets_before(orders: Sequence[Sequence[GridAxis]], axis: GridAxis) -> tuple[list[frozenset[GridAxis]], Ints]:
    """Return the distinct sets of axes that are faster than ``axis``, and the index of each order's set, (orders,)."""
    before = [frozenset(order[: order.index(axis)]) for order in orders]
    sets = list(dict.fromkeys(before))
    return sets, np.array([sets.index(faster) for faster in before])


def added_s(
    parts: Sequence[Terms], over: Sequence[Window], early: Early | None = None, shards: LeastPasses | None = None
) -> Floats:
    """Return a lower bound on what all axes together add to ``placement_free_s``, s, (..., n).

    It is the exposed window traffic, what follows the pipeline, and the longest of four paths: all waits of the axes;
    the pipeline alone; one micro-batch's path; the time that shards keep the fullest rank or the links busy.

    Open recompute policies lengthen windows, by no more than the pipeline computes. A pipeline of which only the
    messages are known may compute as much as overlaps with everything.

    Args:
        early: figures of gradients that cross buildings, None where there can be none.
        shards: figures of traffic in every pass, None where there is none.
    """
    waited = _summed([part.waited_s for part in parts])
    path = np.broadcast_to(sum(part.passed_s for part in parts), waited.shape)
    alone = [part.alone_s for part in parts if part.alone_s is not None]
    alone += [path] if (path > waited).any() else []
    traffic = _summed([part.window_s for part in parts])
    if shards is not None:
        beyond, whole = shards.bounds_s(traffic)
        waited = waited + beyond
        alone.append(np.maximum(0.0, whole - shards.computed_s))
    longest = longest_s(waited, np.max(alone, axis=0) if alone else None)
    over = over if shards is None else shards.overlapping(over, longest)
    early = None if early is None else _where_crossing(early, parts, longest.shape)
    if early is not None:
        every = (unshared for part in parts for unshared in part.unshared_s)
        unshared = sum(every, start=np.zeros(2).reshape(2, *(1,) * longest.ndim))
        before = sum(part.early_s for part in parts)
        traffic, over = early.alone(traffic, unshared), early.overlapping(over, longest, before)
    exposed = exposed_in_windows_s(traffic, over)
    if alone and over[0].later.any():
        # passes of open policies may overlap with any traffic, so a path that lacks them gets endless windows
        endless = [one._replace(length_s=np.where(one.later, ENDLESS_S, one.length_s)) for one in over]
        exposed = longest_s(exposed + waited, exposed_in_windows_s(traffic, endless) + np.max(alone, axis=0))
    else:
        exposed += longest
    for part in parts:
        exposed += part.serial_s.get("dp", 0.0)
    return exposed


def _summed(columns: Sequence[Floats]) -> Floats:
    """Return the sum of arrays of one shape, without the stack of them that ``np.sum`` makes first."""
    total = columns[0].copy()
    for column in columns[1:]:
        total += column
    return total


def _where_crossing(early: Early, parts: Sequence[Terms], shape: tuple[int, ...]) -> Early | None:
    """Return ``early`` of the candidates, (..., n), that may have such gradients; None where none has."""
    known = [part.crosses for part in parts if part.crosses is not None]
    crosses = np.broadcast_to(np.any(known, axis=0) if known else np.ones((), dtype=bool), shape)
    return early.where(crosses) if crosses.any() else None


@dataclass(frozen=True)
class Arc:
    """An axis at the strides (n,) of candidates, or at several of each, (k, n).

    Attributes:
        some: one row for all candidates that wait alike, with its ``calls``.
        waits: row of ``some`` of every candidate, (n,) or (k, n).
        window_s: traffic in the windows, (TRAFFIC_ROWS, n) or (TRAFFIC_ROWS, k, n).
        crosses: whether gradients cross buildings, (n,) or (k, n); None where that is not known.
        unshared_s: gradients of groups that share links with no other, (2, n) or (2, k, n); None without such links.
    """

    axis: GridAxis
    some: Volumes
    calls: Calls
    waits: Ints
    window_s: Floats
    crosses: Bools | None = None
    unshared_s: Floats | None = None

    def terms(self, volumes: Volumes) -> Terms:
        """Return what the axis adds under the overlap settings of the job of ``volumes`` (of all candidates)."""
        waits = waits_of(replace(self.some, job=volumes.job), self.calls)
        alone = None if waits.alone_s is None or not waits.alone_s.any() else waits.alone_s[self.waits]
        waited, early, passed = (each[self.waits] for each in waits[:3])
        unshared = () if self.unshared_s is None else (self.unshared_s,)
        return waiting(
            volumes, Terms({self.axis: waited}, (self.window_s,), alone, self.crosses, early, unshared, passed)
        )


def exposed_in_windows_s(traffic_s: Floats, over: Sequence[Window]) -> Floats:
    """Return the least exposed part of once-per-step traffic in the windows, s, (TRAFFIC_ROWS, n) -> (n,)."""
    return exposed_s(least_together_s(traffic_s, over[0].in_a_row), traffic_s[: len(over)], over)
