"""Seconds of one micro-batch in every layer (block types, embedding, head), by candidate and accelerator type.

A layer takes the same time on every rank that holds it. So layers are timed once for all candidates with equal (tp, cp,
ep, micro-batch, exchange over cp), remembered, and then summed by rank (``rank_seconds``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats, Ints
from scaleacross.cost_models.columns import column_names, columns_of
from scaleacross.cost_models.compute import LayerTimes, Shards, layer_times
from scaleacross.cost_models.distinct import distinct
from scaleacross.cost_models.offloading import paced
from scaleacross.cost_models.recomputation import layers_again, partly_again
from scaleacross.cost_models.runtime import Runtime, runtime_of
from scaleacross.cost_models.stragglers import slowest_ratio
from scaleacross.spec.accelerator import Accelerator, Precision
from scaleacross.spec.job import Job
from scaleacross.spec.recomputation import MASKS
from scaleacross.workloads.layer_profile import LayerProfile, ModelProfile

Row = tuple[int, ...]
"""A row of ``Shards``."""
LAYER_COLUMNS: Final = (*(name for name in column_names(Shards) if name != "modules"), "activation_offload")
"""Columns of candidates that a layer's seconds depend on, besides ``recompute``."""
Known = TypeVar("Known")
StackedTimes = LayerTimes
"""Layer times of [block types..., embedding, head], (types + 2, n)."""
_MASKS: Final = np.array([*MASKS, 0])  # ANY_POLICY repeats nothing
_REMEMBERED: Final = 16  # pairs of model and accelerator, few in a problem; every exact step time needs them


class TimedLayers(NamedTuple):
    """The layers of a decision, timed on every accelerator type.

    Attributes:
        candidates: the row of the decision, or a row for every pipeline rank (``recomputation.on_ranks``).
        times: ``times_by_type`` for the first of these rows.
    """

    profile: ModelProfile
    job: Job
    accelerators: Sequence[Accelerator]
    candidates: Candidates
    times: Sequence[StackedTimes]

    @classmethod
    def of(
        cls, profile: ModelProfile, job: Job, accelerators: Sequence[Accelerator], candidates: Candidates
    ) -> TimedLayers:
        """Layers timed for the first of ``candidates``. Raises KeyError as ``times_by_type`` does."""
        times = times_by_type(profile, job, accelerators, candidates.take(np.zeros(1, dtype=np.int64)))
        return cls(profile, job, accelerators, candidates, times)


def times_by_type(
    profile: ModelProfile, job: Job, accelerators: Sequence[Accelerator], candidates: Candidates
) -> list[StackedTimes]:
    """Layer times of every candidate on every accelerator type.

    Raises:
        KeyError: an accelerator states no peak for the job's precision.
    """
    shards, rows_to_shards = distinct_shards(candidates)
    times = ((one, stacked_times(profile, job, one, shards)) for one in accelerators)
    return [at_pace(each.take(rows_to_shards), profile, job, candidates, one) for one, each in times]


def shared_seconds(job: Job, times: Sequence[StackedTimes]) -> tuple[Floats, Floats]:
    """Forward and backward seconds of a layer's shared experts that overlap with its all-to-alls, (n,) each.

    They are those of the longest layer and type, or 0 where the job runs shared experts after the all-to-alls.
    """
    overlaps = float(job.experts.shared_overlap)
    ways = ([one.shared_s for one in times], [one.shared_backward_s for one in times])
    forward, backward = (overlaps * np.max(way, axis=(0, 1)) for way in ways)
    return forward, backward


def distinct_shards(candidates: Candidates) -> tuple[Shards, Ints]:
    """The distinct rows of ``Shards`` and the row -> distinct map."""
    modules = _MASKS[candidates.recompute]
    columns = [modules if name == "modules" else getattr(candidates, name) for name in column_names(Shards)]
    kinds = distinct(*columns)
    return Shards(*(column[kinds.first] for column in columns)), kinds.code


def stacked_times(profile: ModelProfile, job: Job, accelerator: Accelerator, shards: Shards) -> StackedTimes:
    """Layer times of every row of ``shards`` on an accelerator of mean speed. KeyError as in ``times_by_type``."""
    table = _table(_Same(profile), _Same(accelerator), job.precision, job.sequence_length, runtime_of(job))
    return StackedTimes(*table.columns(shards))


class _Same(Generic[Known]):
    """Hashable key for an unhashable object: equal only to that very object, which it keeps alive."""

    def __init__(self, it: Known) -> None:
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.it is self.it


@dataclass
class _Table:
    """Times of the rows of ``Shards`` that were needed so far. Parts of ``known`` are replaced at once, never changed.

    Attributes:
        known: column of every row, and the stacked fields of ``StackedTimes``, (fields, types + 2, columns).
    """

    time: Callable[[Shards], Floats]
    known: tuple[Mapping[Row, int], Floats]

    def columns(self, shards: Shards) -> Floats:
        """Stacked times of every row, (fields, types + 2, n); rows not known yet are timed first."""
        rows: list[Row] = list(zip(*(column.tolist() for column in columns_of(shards)), strict=True))
        place, seconds = self.known
        if new := [index for index, row in enumerate(rows) if row not in place]:
            more = self.time(Shards(*(column[new] for column in columns_of(shards))))
            place = {**place, **{rows[index]: seconds.shape[-1] + at for at, index in enumerate(new)}}
            seconds = np.concatenate([seconds, more], axis=-1)
            self.known = place, seconds
        return np.take(seconds, [place[row] for row in rows], axis=-1)


@lru_cache(maxsize=_REMEMBERED)
def _table(
    profile: _Same[ModelProfile],
    accelerator: _Same[Accelerator],
    precision: Precision,
    sequence_length: int,
    runtime: Runtime,
) -> _Table:
    model, machine = profile.it, accelerator.it
    layers: list[LayerProfile] = [*(block for block, _ in model.blocks), model.embedding, model.head]

    def time(shards: Shards) -> Floats:
        once = {
            id(layer): layer_times(layer, model.num_experts, machine, precision, shards, sequence_length, runtime)
            for layer in {id(layer): layer for layer in layers}.values()
        }
        return np.stack([columns_of(once[id(layer)]) for layer in layers], axis=1)

    return _Table(time, ({}, np.empty((len(column_names(StackedTimes)), len(layers), 0))))


def at_pace(
    times: StackedTimes, profile: ModelProfile, job: Job, candidates: Candidates, accelerator: Accelerator
) -> StackedTimes:
    """Layer times on the slowest accelerator that a candidate uses, with passes at least as long as their offload."""
    spread_fraction = accelerator.speed_spread_fraction
    slowed = times.slowed(slowest_ratio(spread_fraction, candidates.world_size)) if spread_fraction else times
    return paced(slowed, recomputed_s(slowed, candidates), profile, job, candidates, accelerator)


def recomputed_s(times: StackedTimes, candidates: Candidates) -> Floats:
    """Seconds that recomputation adds to the backward pass of [block types..., embedding, head], (types + 2, n)."""
    # ``partly_s`` is the modules' time where a row states modules, else that of selective recomputation
    again: Floats = times.partly_s * partly_again(candidates) + times.full_s * layers_again(candidates)
    again[-2:] = 0.0  # embedding and head keep their activations under every policy
    return again


def layer_pass_s(times: StackedTimes, candidates: Candidates) -> Floats:
    """Seconds of forward + backward with recomputation of [block types..., embedding, head], (types + 2, n)."""
    total: Floats = times.forward_s + times.backward_s + recomputed_s(times, candidates)
    return total
