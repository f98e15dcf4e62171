"""One axis of many candidates at one stride: what they wait for and what they carry, each worked out for distinct rows only.

Nothing here depends on the overlap settings of a job: calls, groups and window traffic are priced once, and ``Arc.waits_s``
applies the settings. An axis that all candidates have at degree 1 makes no arc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.axes import Calls, Terms, serial_s, waiting
from scaleacross.cost_models.distinct import Distinct, distinct
from scaleacross.cost_models.overlap import TRAFFIC_ROWS, Window, exposed_s, least_together_s, windows
from scaleacross.cost_models.pipeline_timed import FOLDED, among
from scaleacross.cost_models.settings import Floats, Ints, Settings
from scaleacross.cost_models.step import placement_free_s
from scaleacross.cost_models.traffic import Volumes
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GridAxis

SPLIT: Final = frozenset({"dp_shard", "dp_replicate", "shard"})
"""Columns that change neither computation nor any collective that the step waits for."""
SHAPE: Final = frozenset({"micro_batch", "num_micro_batches", "schedule", "recompute"})
"""Columns that change no traffic of gradients, parameters and optimizer states, but for folded stages (``_kinds``)."""


class Kinds(NamedTuple):
    """Candidates that agree on all columns but SPLIT (``base``), and on all but SHAPE (``state``)."""

    base: Distinct
    state: Distinct


def kinds_of(settings: Settings) -> Kinds:
    """The kinds of some candidates."""
    return Kinds(alike(settings, SPLIT), alike(settings, SHAPE))


def alike(settings: Settings, without: frozenset[str]) -> Distinct:
    """Candidates that agree on all columns but some, and on whether their stages are folded, which moves layers."""
    columns = [getattr(settings, f.name) for f in fields(settings) if f.name not in without]
    if "schedule" in without:
        columns.append(among(settings.schedule, FOLDED).astype(np.int64))
    return distinct(*columns)


@dataclass(frozen=True)
class Arc:
    """An axis at the strides (n,) of candidates, or at several of each, (k, n).

    ``some`` has one row for all that wait alike, with its ``calls``; ``waits`` (n,) or (k, n) says which row that is.
    ``window_s`` (TRAFFIC_ROWS, n) or (TRAFFIC_ROWS, k, n) is the traffic in the windows.
    """

    axis: GridAxis
    some: Volumes
    calls: Calls
    waits: Ints
    window_s: Floats

    def waits_s(self, job: Job) -> Floats:
        """Seconds of a step that wait for this axis under the overlap settings of ``job``, in the shape of ``waits``."""
        parts = serial_s(self.axis, replace(self.some, job=job), self.calls)
        if not parts:
            return np.zeros(self.waits.shape)
        total: Floats = sum(parts.values(), start=np.zeros(len(self.some.settings)))
        return total[self.waits]

    def terms(self, job: Job) -> Terms:
        """Both under the overlap settings of ``job``, what its windows do not hold (``axes.waiting``) not yet taken out."""
        return Terms({self.axis: self.waits_s(job)}, (self.window_s,))


@dataclass(frozen=True)
class Arranged:
    """Candidates with the arcs of one axis order: all that no overlap setting changes."""

    volumes: Volumes
    arcs: tuple[Arc, ...]

    def step_s(self, job: Job) -> Floats:
        """Step time under the overlap settings of ``job``, (n,)."""
        volumes = replace(self.volumes, job=job)
        serial = sum((arc.waits_s(job) for arc in self.arcs), start=placement_free_s(volumes))
        terms = waiting(volumes, Terms({"": serial}, (self._window_s,)))
        return terms.serial_total_s + exposed_in_windows_s(terms.window_s, self._windows)

    @cached_property
    def _window_s(self) -> Floats:
        """Traffic in the windows, all axes together, (TRAFFIC_ROWS, n)."""
        nothing = np.zeros((TRAFFIC_ROWS, len(self.volumes.settings)))
        return sum((arc.window_s for arc in self.arcs), start=nothing)

    @cached_property
    def _windows(self) -> tuple[Window, ...]:
        """The windows themselves."""
        return windows(self.volumes.settings, self.volumes.work)


def exposed_in_windows_s(traffic_s: Floats, over: Sequence[Window]) -> Floats:
    """What the windows do not hide at least of the traffic in them, (TRAFFIC_ROWS, n) -> (n,)."""
    return exposed_s(least_together_s(traffic_s, over[0].in_a_row), traffic_s[: len(over)], over)
