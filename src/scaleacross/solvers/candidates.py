"""Price candidates in arrays: does it fit, and what can a step cost at best?

Two lower bounds per candidate, both the cost model itself on shapes that no placement can beat
(``groups.relaxed_shape``):

* coarse: every axis lies as well as if it were the innermost one
* tight:  the best axis order, every axis at the stride which that order gives it (all orders are enumerated)

The tight bound misses only what the cut between unequal buildings adds; ``place_parallelism`` settles that exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from scaleacross.cost_models.axes import Terms, axis_terms
from scaleacross.cost_models.collectives import Links
from scaleacross.cost_models.groups import RelaxedShape, relaxed_shape
from scaleacross.cost_models.memory import memory_parts
from scaleacross.cost_models.overlap import exposed_s, windows
from scaleacross.cost_models.settings import Bools, Floats, Ints, Settings
from scaleacross.cost_models.step import placement_free_s
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.work import Work, pipeline_groups, work_of
from scaleacross.solvers.fleets import Fleet
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GRID_AXES, SHARD_LEVELS, GridAxis
from scaleacross.workloads.layer_profile import ModelProfile


@dataclass(frozen=True)
class Priced:
    """Candidates that fit in memory, with their work and lower bound; ``free_s`` is what no placement changes."""

    settings: Settings
    work: Work
    free_s: Floats
    bound_s: Floats

    def take(self, rows: Ints | Bools) -> Priced:
        """The rows selected by an index or mask array."""
        return Priced(self.settings.take(rows), self.work.take(rows), self.free_s[rows], self.bound_s[rows])


@dataclass(frozen=True)
class Pricing:
    """The figures that price candidates on one fleet."""

    fleet: Fleet
    job: Job
    profile: ModelProfile
    links: Links
    sizes: Floats

    @classmethod
    def on(cls, fleet: Fleet, job: Job, profile: ModelProfile) -> Pricing:
        """Pricing with the best links that the fleet can offer."""
        return cls(fleet, job, profile, fleet.optimistic_links(), fleet.largest_children())

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """The accelerator types of the fleet."""
        return self.fleet.accelerators

    @property
    def launch_s(self) -> float:
        """Start-up cost of a collective."""
        return max(accelerator.kernel_launch_s for accelerator in self.accelerators)

    @property
    def capacity_bytes(self) -> float:
        """Memory that the job may use per accelerator."""
        return min(accelerator.usable_memory_bytes for accelerator in self.accelerators)

    def volumes(self, settings: Settings, work: Work) -> Volumes:
        """The sizes of what these candidates communicate."""
        return Volumes(self.job, self.profile, settings, work, self.launch_s)

    def needed_bytes(self, settings: Settings) -> Floats:
        """Bytes on the fullest pipeline rank, without the reserve, (n,)."""
        needed = np.empty(len(settings))
        for classes, rows in pipeline_groups(self.profile, settings):
            parts = memory_parts(self.profile, self.job, settings.take(rows), classes)
            needed[rows] = sum(parts.values(), start=np.zeros(1)).max(axis=0)
        return needed

    def base_needed_bytes(self, bases: Settings) -> Floats:
        """Bytes that every candidate of a base needs at least, (n,): the least over the job's shard levels."""
        levels = [SHARD_LEVELS.index(level) for level in self.job.shard]
        return np.min([self.needed_bytes(replace(bases, shard=np.full(len(bases), code))) for code in levels], axis=0)

    def base_bound_s(self, bases: Settings) -> Floats:
        """Lower bound on all candidates of a base, (n,): computation, bubble, serial terms at their relaxed best."""
        work = work_of(self.profile, self.job, self.accelerators, bases)
        volumes = self.volumes(bases, work)
        ones, sizes = np.ones(len(bases), dtype=np.int64), self._sizes(bases)
        terms = [self._relaxed_terms(axis, volumes, ones, sizes, coarse=True) for axis in GRID_AXES]
        # gradients and parameters ("dp", where the job does not overlap them) depend on the split that is still open
        serial = sum(seconds for term in terms for name, seconds in term.serial_s.items() if name != "dp")
        return placement_free_s(volumes) - work.optimizer_s + serial

    def coarse(self, settings: Settings) -> Priced:
        """Work and coarse bound of candidates."""
        work = work_of(self.profile, self.job, self.accelerators, settings)
        volumes = self.volumes(settings, work)
        free = placement_free_s(volumes)
        sizes = self._sizes(settings)
        ones = np.ones(len(settings), dtype=np.int64)
        terms = [self._relaxed_terms(axis, volumes, ones, sizes, coarse=True) for axis in GRID_AXES]
        return Priced(settings, work, free, free + communication_s(volumes, terms))

    def tight(self, priced: Priced) -> Priced:
        """The same candidates with the tight bound."""
        settings = priced.settings
        volumes = self.volumes(settings, priced.work)
        sizes = self._sizes(settings)
        active = [axis for axis in GRID_AXES if (getattr(settings, axis) > 1).any()]
        known: dict[tuple[GridAxis, frozenset[GridAxis]], Terms] = {}
        best = np.full(len(settings), np.inf)
        for order in permutations(active):
            terms = []
            for position, axis in enumerate(order):
                key = (axis, frozenset(order[:position]))
                if key not in known:
                    stride = np.prod([getattr(settings, faster) for faster in key[1]], axis=0, dtype=np.int64)
                    known[key] = self._relaxed_terms(axis, volumes, stride * np.ones(len(settings), np.int64), sizes)
                terms.append(known[key])
            best = np.minimum(best, communication_s(volumes, terms))
        return Priced(settings, priced.work, priced.free_s, priced.free_s + (best if active else 0.0))

    def _sizes(self, settings: Settings) -> Floats:
        sizes = np.minimum(self.sizes, settings.world_size[:, None])
        sizes[:, -1] = settings.world_size
        return sizes

    def _relaxed_terms(
        self, axis: GridAxis, volumes: Volumes, stride: Ints, sizes: Floats, coarse: bool = False
    ) -> Terms:
        """Terms at a stride; ``coarse``: at that stride or any larger one."""
        settings, fleet = volumes.settings, self.fleet
        least, host = fleet.fullest_children(settings.world_size), fleet.common_host

        def shape(degree: Ints, apart: Ints) -> RelaxedShape:
            cut = fleet.must_cross(degree, apart, settings.world_size)
            return relaxed_shape(degree, apart, sizes, cut, least, 1 if coarse else host)

        whole = shape(getattr(settings, axis), stride)
        if axis != "dp_shard":
            return axis_terms(axis, volumes, whole, self.links)
        expert = shape(settings.dp_shard // settings.ep, stride * settings.ep)
        return axis_terms(axis, volumes, whole, self.links, expert, shape(settings.ep, stride))


def communication_s(volumes: Volumes, terms: Sequence[Terms]) -> Floats:
    """Exposed communication of a step, (n,): serial terms and what the windows do not hide."""
    total = np.zeros(len(volumes.settings))
    if not terms:
        return total
    for term in terms:
        total = total + term.serial_total_s
    in_windows = sum((term.window_s for term in terms), start=np.zeros_like(terms[0].window_s))
    for seconds, window in zip(in_windows, windows(volumes.settings, volumes.work), strict=True):
        total = total + exposed_s(seconds, window)
    return total
