"""Candidates on one axis order, priced but for the overlap settings of a job: what ``order_bounds_s`` bounds, without bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scaleacross.cost_models.candidates import Candidates, Floats, stride_of
from scaleacross.cost_models.early_gradients import early_gradients
from scaleacross.cost_models.least_passes import LeastPasses
from scaleacross.cost_models.overlap import Window, windows
from scaleacross.cost_models.step import placement_free_s
from scaleacross.cost_models.traffic import Volumes
from scaleacross.solvers.arcs import Arc, added_s, kinds_of
from scaleacross.solvers.candidates import Bounder
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GridAxis


@dataclass(frozen=True)
class Arranged:
    """Candidates with the arcs of one axis order: all that no overlap setting changes. ``far``: any may cross buildings."""

    volumes: Volumes
    arcs: tuple[Arc, ...]
    far: bool

    def step_s(self, job: Job) -> Floats:
        """Step time under the overlap settings of ``job``, (n,)."""
        volumes = replace(self.volumes, job=job)
        free = placement_free_s(volumes)
        if not self.arcs:
            return free
        early = early_gradients(volumes) if self.far else None
        return free + added_s([arc.terms(volumes) for arc in self.arcs], self._windows, early, LeastPasses.of(volumes))

    @cached_property
    def _windows(self) -> tuple[Window, ...]:
        """The windows themselves."""
        return windows(self.volumes.candidates, self.volumes.work)


def arranged(bounder: Bounder, candidates: Candidates, axis_order: Sequence[GridAxis]) -> Arranged:
    """Candidates with all axes placed in one order, fastest first."""
    kinds = kinds_of(candidates)
    volumes = bounder.volumes(candidates, bounder.work(candidates, kinds))
    arcs = (
        bounder._arc(axis, stride_of(candidates, axis_order[:position]), volumes, kinds)
        for position, axis in enumerate(axis_order)
        if (getattr(candidates, axis) > 1).any()
    )
    return Arranged(volumes, tuple(arcs), bounder.many_buildings)
