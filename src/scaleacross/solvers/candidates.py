"""Price candidates in arrays: does it fit, and what can a step cost at best?

Two lower bounds per candidate, both the cost model itself on shapes that no placement can beat (``groups.relaxed_shape``):

* coarse: every axis lies as well as if it were the innermost one
* tight:  the best axis order, every axis at the stride which that order gives it (all orders are enumerated)

The tight bound misses only what the cut between unequal buildings adds; ``place_parallelism`` settles that exactly.

A million candidates share few collectives (``distinct``). What depends on a part of the columns is priced once:
calls on (tp, cp, ep, pp, dp, micro-batch), computation and serial terms on *bases* (all but SPLIT), states on all but SHAPE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, Literal

import numpy as np

from scaleacross.cost_models.axes import (
    Calls,
    Terms,
    axis_calls,
    best_network,
    chosen_calls,
    waiting,
    waits_of,
)
from scaleacross.cost_models.candidates import Bools, Candidates, Floats, Ints, expert_axis, keys_axis, stride_behind
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.distinct import Distinct, distinct
from scaleacross.cost_models.early_gradients import Early, early_gradients
from scaleacross.cost_models.groups import GroupShape, relaxed_shape
from scaleacross.cost_models.layer_seconds import LAYER_COLUMNS, layer_pass_s, times_by_type
from scaleacross.cost_models.least_passes import LeastPasses
from scaleacross.cost_models.least_waits import Waits, longest_s
from scaleacross.cost_models.levels import CAMPUS
from scaleacross.cost_models.links import Links
from scaleacross.cost_models.memory import fullest_bytes
from scaleacross.cost_models.network.compression import Best
from scaleacross.cost_models.overlap import TRAFFIC_ROWS, computation_s, windows
from scaleacross.cost_models.pipeline.timed_bounds import WHOLE, among
from scaleacross.cost_models.pipeline.unplaced import WAITED
from scaleacross.cost_models.stages import block_counts, pipeline_groups
from scaleacross.cost_models.step import placement_free_s
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.waiting_groups import alone_shape, told_apart
from scaleacross.cost_models.window_traffic import GRADIENT_AXES, trunks_apart_s, window_s
from scaleacross.cost_models.work import NO_WORK, LayerWaits, Work, state_work, work_of
from scaleacross.solvers.arcs import Arc, Kinds, added_s, axes_of_several, by_orders, kinds_of, sets_before
from scaleacross.solvers.fleets import Fleet
from scaleacross.solvers.priced import Priced
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GRID_AXES, SHARD_LEVELS, GridAxis
from scaleacross.workloads.layer_profile import ModelProfile

ORDER_BLOCK: Final = 16_384
"""Candidates times axis orders that are bounded together."""


@dataclass(frozen=True)
class Pricing:
    """The figures that price candidates on one fleet; ``network`` is how communicators run their collectives."""

    fleet: Fleet
    job: Job
    profile: ModelProfile
    links: Links
    sizes: Floats
    network: Literal["best", "library"] | Best

    @classmethod
    def on(cls, fleet: Fleet, job: Job, profile: ModelProfile, network: Literal["library"] | None = None) -> Pricing:
        """Pricing with the best links that the fleet can offer and the best that any network of the job does, unless named."""
        asked = network or best_network(job, fleet.accelerators)
        return cls(fleet, job, profile, fleet.optimistic_links(), fleet.largest_children(), asked)

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """The accelerator types of the fleet."""
        return self.fleet.accelerators

    @cached_property
    def types(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(accelerator.name for accelerator in self.accelerators)

    @cached_property
    def waiting_links(self) -> Mapping[str, Links]:
        """What groups that the pipeline waits for have at best on accelerators of each type."""
        return {name: self.fleet.optimistic_links_on(name) for name in self.types}

    @property
    def launch_s(self) -> float:
        """Start-up cost of a collective."""
        return max(accelerator.collective_start_s for accelerator in self.accelerators)

    @property
    def capacity_bytes(self) -> float:
        """Memory that the job may use per accelerator, its headroom left free."""
        return self.room_bytes(self.job.memory_headroom_fraction)

    def room_bytes(self, headroom_fraction: float) -> float:
        """The same with that share of memory left free."""
        return min(accelerator.room_bytes(headroom_fraction) for accelerator in self.accelerators)

    @property
    def many_buildings(self) -> bool:
        """Whether anything can cross buildings."""
        return len(self.fleet.buildings) > 1

    def early(self, volumes: Volumes) -> Early | None:
        """Of candidates whose gradients may cross buildings; None where there can be none."""
        return early_gradients(volumes) if self.many_buildings else None

    def volumes(self, candidates: Candidates, work: Work) -> Volumes:
        """The sizes of what these candidates communicate."""
        return Volumes(self.job, self.profile, candidates, work, self.launch_s)

    def needed_bytes(self, candidates: Candidates) -> Floats:
        """Bytes on the fullest pipeline rank, without the reserve, (n,); of candidates that lack host memory more than fit."""
        needed, fleet = np.empty(len(candidates)), (self.accelerators, self.room_bytes(0.0))
        for classes, rows in pipeline_groups(self.profile, candidates):
            needed[rows] = fullest_bytes(self.profile, self.job, candidates.take(rows), classes, *fleet)
        return needed

    def base_needed_bytes(self, bases: Candidates) -> Floats:
        """Bytes that every candidate of a base needs at least, (n,): the least over the job's shard levels."""
        levels = [SHARD_LEVELS.index(level) for level in self.job.shard]
        every = replace(bases.take(np.tile(np.arange(len(bases)), len(levels))), shard=np.repeat(levels, len(bases)))
        return np.min(self.needed_bytes(every).reshape(len(levels), len(bases)), axis=0)

    def base_floor_s(self, bases: Candidates) -> Floats:
        """Computation at least, (n,), from the layers alone: the busiest rank has no less than the mean, m times.

        With one chunk and whole backwards step ≥ m·a_r + Σ_{s<r} a_s for every rank r, a their passes. So the first r ranks
        hold S_r ≤ step·(1 − (1 − 1/m)^r), and all of them, whatever the split, the layers of the model. Holds for unequal
        layers and batches: each layer counts as on its fastest type. Of whole backwards in chunks one micro-batch passes all.
        """
        kinds = distinct(*(getattr(bases, name) for name in LAYER_COLUMNS), bases.recompute)
        some = bases.take(kinds.first)
        some = replace(some, dp_shard=np.ones_like(some.dp_shard))  # no layer is faster on more accelerators
        whole = (self._layer_counts @ self._passes_s(some).min(axis=0))[kinds.code]
        m, pp = bases.num_micro_batches, bases.pp
        drains = among(bases.schedule, WHOLE)
        fills, once = drains & (bases.num_chunks == 1), np.where(drains, 1.0, 0.0)
        floor: Floats = whole * np.where(fills, 1.0 / (1.0 - (1.0 - 1.0 / m) ** pp), np.maximum(m / pp, once))
        return floor

    def _passes_s(self, candidates: Candidates) -> Floats:
        """Forward and backward of a micro-batch through a layer of each type and the ends, (accelerator types, layers, n)."""
        times = times_by_type(self.profile, self.job, self.accelerators, candidates)
        return np.stack([layer_pass_s(one, candidates) for one in times])

    @property
    def _layer_counts(self) -> Ints:
        return np.array([*block_counts(self.profile), 1, 1])

    def base_free_s(self, bases: Candidates) -> Floats:
        """Computation with fill and drain, (n,): the part of a base's step that no placement and no split changes."""
        return computation_s(bases, self._work_of(bases))

    def base_bound_s(self, bases: Candidates) -> Floats:
        """Lower bound on all candidates of a base, (n,): computation, bubble, serial terms at their relaxed best."""
        work = self._work_of(bases)
        waits = self._waits(self.volumes(bases, work))
        return computation_s(bases, work) + longest_s(waits.waited_s, waits.alone_s)

    def base_estimate_s(self, bases: Candidates, bound_s: Floats) -> Floats:
        """What each base may take, (n,): bases are tried in its order. On one type the bound serves."""
        return bound_s

    def work(self, candidates: Candidates, kinds: Kinds | None = None) -> Work:
        """``work_of`` on the fleet, computed once for candidates that share it (``kinds`` of them, if known)."""
        base, state = kinds or kinds_of(candidates)
        own = state_work(self.profile, self.job, self.accelerators, candidates.take(state.first))
        shared = self._work_of(candidates.take(base.first)).take(base.code)
        return replace(shared, **{name: column[state.code] for name, column in own.items()})

    def coarse(self, candidates: Candidates) -> Priced:
        """Work and coarse bound of candidates."""
        base, state = kinds = kinds_of(candidates)
        work = self.work(candidates, kinds)
        volumes = self.volumes(candidates, work)
        free, bases, states = placement_free_s(volumes), volumes.take(base.first), volumes.take(state.first)
        waits = self._waits(bases)
        axes = axes_of_several(states.candidates, GRADIENT_AXES)
        traffic, alone = zip(*(self._carried_s(axis, states, coarse=True) for axis in axes), strict=True)
        summed = np.sum(traffic, axis=0)[:, state.code]
        early = self.early(volumes)
        apart = () if early is None else (sum(part for part in alone if part is not None)[:, state.code],)
        serial, first, longest = (
            each[base.code] for each in (waits.waited_s, waits.early_s, np.asarray(waits.alone_s))
        )
        terms = waiting(volumes, Terms({"": serial}, (summed,), longest, early_s=first, apart_s=apart))
        parts, over, shards = [terms], windows(candidates, work), LeastPasses.of(volumes)
        together = added_s(parts, over, None, shards)
        added = together if early is None else added_s(parts, over, early, shards)
        return Priced(candidates, work, free, free + added, free + together)

    def tight(self, priced: Priced) -> Priced:
        """The same candidates with the tight bound."""
        best = np.empty((2, len(priced.bound_s)))
        for rows, orders in by_orders(priced.candidates):
            some = priced.candidates.take(rows), priced.work.take(rows)
            best[:, rows] = self.order_figures_s(*some, orders).min(axis=1)
        bound, estimate = priced.free_s + best
        return replace(priced, bound_s=bound, estimate_s=estimate)

    def order_bounds_s(self, candidates: Candidates, work: Work, orders: Sequence[Sequence[GridAxis]]) -> Floats:
        """Lower bounds on the exposed communication of candidates, one for each order of the same axes, (orders, n)."""
        return self.order_figures_s(candidates, work, orders)[0]

    def order_figures_s(self, candidates: Candidates, work: Work, orders: Sequence[Sequence[GridAxis]]) -> Floats:
        """``order_bounds_s``, and what ``Priced.estimate_s`` is made of, (2, orders, n)."""
        volumes, kinds, over = self.volumes(candidates, work), kinds_of(candidates), windows(candidates, work)
        early, shards = self.early(volumes), LeastPasses.of(volumes)
        parts, used = [], []
        for axis in (axis for axis in orders[0] if (getattr(candidates, axis) > 1).any()):
            sets, of_order = sets_before(orders, axis)
            stride = np.stack([stride_behind(candidates, faster) for faster in sets])
            parts.append(self._arc(axis, stride, volumes, kinds).terms(volumes))
            used.append(of_order)
        out = np.zeros((2, len(orders), len(candidates)))
        step = max(1, ORDER_BLOCK // max(1, len(candidates)))
        for start in range(0, len(orders) if parts else 0, step):
            placed = [part.take(rows[start : start + step]) for part, rows in zip(parts, used, strict=True)]
            out[:, start : start + step] = added_s(placed, over, None, shards)
            if early is not None:
                out[0, start : start + step] = added_s(placed, over, early, shards)
        return out

    def _arc(self, axis: GridAxis, stride: Ints, volumes: Volumes, kinds: Kinds) -> Arc:
        """An axis at one stride per candidate, (n,), or at several, (k, n)."""

        def met(kind: Distinct) -> tuple[Volumes, Ints, Ints]:
            """One candidate of every kind and stride, that stride, and which of them each candidate is."""
            pairs = distinct(np.broadcast_to(kind.code, stride.shape).ravel(), stride.ravel())
            some = volumes.take(pairs.first % len(volumes.candidates))
            return some, stride.ravel()[pairs.first], pairs.code.reshape(stride.shape)

        some, apart, waits = met(kinds.base)
        calls = self._calls(axis, some, apart, coarse=False)
        carrying, apart, carries = met(kinds.state)
        far, (window, alone) = self._far(axis, volumes.candidates, stride), self._carried_s(axis, carrying, apart)
        return Arc(axis, some, calls, waits, window[:, carries], far, None if alone is None else alone[:, carries])

    def _far(self, axis: GridAxis, candidates: Candidates, stride: Ints) -> Bools | None:
        """Whether gradients over an axis cross buildings, (n,) or (k, n); None: that depends on the fill."""
        return None

    def _work_of(self, candidates: Candidates) -> Work:
        return work_of(self.profile, self.job, self.accelerators, candidates, self._layer_waits(candidates))

    def _layer_waits(self, candidates: Candidates) -> LayerWaits:
        """What one layer's collectives take at least, so that ranks with more of them count as longer."""
        volumes = self.volumes(candidates, NO_WORK.take(np.zeros(len(candidates), dtype=np.int64)))
        innermost, nothing = np.ones(len(candidates), dtype=np.int64), np.zeros(len(candidates))
        exchange, gather = nothing, nothing
        if self.profile.num_experts:
            calls = self._calls("dp_shard", volumes, innermost, coarse=True)
            exposed = 1 - self.job.experts.overlap_fraction
            exchange = exposed * (4 + 2 * volumes.tokens_again) * np.asarray(calls.exchange_s)
        if self.job.overlap.tp_fraction < 1 and (candidates.tp > 1).any():
            gather = 0.5 * np.asarray(self._calls("tp", volumes, innermost, coarse=True).gather_s)
        return LayerWaits(exchange, gather)

    def _waits(self, volumes: Volumes) -> Waits:
        """Lower bound on what all axes add to the pipeline of candidates, each at its best; ``alone_s``: the longest of the other
        paths of ``least_waits``."""
        stride = np.ones(len(volumes.candidates), dtype=np.int64)
        axes = axes_of_several(volumes.candidates, GRID_AXES)
        every = [waits_of(volumes, self._calls(axis, volumes, stride, coarse=True)) for axis in axes]
        waited, early, passed = (
            sum(parts, start=np.zeros(len(stride))) for parts in zip(*(w[:3] for w in every), strict=True)
        )
        others = [one.alone_s for one in every if one.alone_s is not None]
        return Waits(waited, early, passed, np.max([passed, *others], axis=0))

    def _calls(self, axis: GridAxis, volumes: Volumes, stride: Ints, coarse: bool) -> Calls:
        """Lower bound on one call of the collectives that the step waits for; of several accelerator types on the one that
        computes slowest, which ``work`` has on all ranks."""
        first, *others = every = self._calls_by_type(axis, volumes, stride, coarse)
        if not others:
            return first
        kinds = distinct(*(getattr(volumes.candidates, name) for name in (*LAYER_COLUMNS, "world_size")))
        passes = self._layer_counts @ self._passes_s(volumes.candidates.take(kinds.first))
        return chosen_calls(every, passes.argmax(axis=0)[kinds.code])

    def _calls_by_type(self, axis: GridAxis, volumes: Volumes, stride: Ints, coarse: bool) -> list[Calls]:
        """The same on every accelerator type; one for all types that are alike to it."""
        candidates = volumes.candidates
        kinds = distinct(*(getattr(candidates, name) for name in (*LAYER_COLUMNS, "pp", "dp")), stride)
        some, apart = volumes.take(kinds.first), stride[kinds.first]
        of = partial(self._group, some.candidates, coarse=coarse, waits=axis in WAITED)
        group = of(*(keys_axis(some.candidates, apart) if axis == "cp" else (getattr(some.candidates, axis), apart)))
        experts = of(*expert_axis(some.candidates, apart)) if axis == "dp_shard" else None
        heads = of(some.candidates.cp_inner, apart) if axis == "cp" and (some.candidates.cp_inner > 1).any() else None
        if len(self.types) == 1 or axis not in WAITED:
            return [axis_calls(axis, some, group, experts, heads).take(kinds.code)]
        also = ([one and self._on(name, one) for one in (experts, heads)] for name in self.types)
        each = zip(self.types, also, strict=True)
        return [axis_calls(axis, some, self._on(name, group), *others).take(kinds.code) for name, others in each]

    def _on(self, accelerator: str, group: Group) -> Group:
        """Groups that the pipeline waits for on accelerators of a type."""
        return replace(group, links=self.waiting_links[accelerator])

    def _carried_s(
        self, axis: GridAxis, volumes: Volumes, stride: Ints | None = None, coarse: bool = False
    ) -> tuple[Floats, Floats | None]:
        """Lower bound on what an axis adds to the windows, (TRAFFIC_ROWS, n), and on the gradients in it where no other group
        stands in a group's way, (2, n)."""
        if axis not in GRADIENT_AXES:
            return np.zeros((TRAFFIC_ROWS, len(volumes.candidates))), None
        groups = self._carrying(axis, volumes, stride, coarse)
        apart = trunks_apart_s(axis, volumes, *groups) if self.many_buildings else ()
        return window_s(axis, volumes, *groups), sum(apart[1:], start=apart[0]) if apart else None

    def _carrying(
        self, axis: GridAxis, volumes: Volumes, stride: Ints | None, coarse: bool
    ) -> tuple[Group, Group | None]:
        """Groups that gradients and parameters travel in, and those of experts."""
        candidates = volumes.candidates
        stride = np.ones(len(candidates), dtype=np.int64) if stride is None else stride
        kinds = distinct(getattr(candidates, axis), candidates.ep, stride, candidates.world_size)
        some = candidates.take(kinds.first)
        degree, apart = getattr(some, axis), stride[kinds.first]
        group = self._group(some, degree, apart, coarse, kinds.code)
        if axis != "dp_shard":
            return group, None
        return group, self._group(some, some.dp_shard // some.ep, apart * some.ep, coarse, kinds.code)

    def _group(
        self,
        candidates: Candidates,
        degree: Ints,
        stride: Ints,
        coarse: bool,
        rows: Ints | None = None,
        waits: bool = False,
    ) -> Group:
        """Groups of ``degree`` at ``stride`` at their best, as ``_lying``, one row of which each of ``rows`` meets."""
        shape = self._lying(candidates, degree, stride, coarse, waits)
        return Group(shape, self._links_of(candidates), self.launch_s, rows, self.network)

    def _lying(self, candidates: Candidates, degree: Ints, stride: Ints, coarse: bool, waits: bool) -> GroupShape:
        """``coarse``: at that stride or any larger one; ``waits``: as on the pipeline rank that waits least for them, whose
        groups need not cross buildings because others must, or take turns with them on the links between these."""
        fleet, world = self.fleet, candidates.world_size
        sizes = np.append(np.minimum(self.sizes[:-1], world[:, None]), world[:, None], axis=1)
        cut, least = fleet.must_cross(degree, stride, world), fleet.fullest_children(world)
        host, buildings = 1 if coarse else fleet.common_host, len(fleet.buildings)
        ways = None if coarse else fleet.border_ways(stride, world)
        if not waits:
            return relaxed_shape(degree, stride, sizes, cut, least, host, buildings, ways)
        apart = told_apart(degree * stride, self.sizes[CAMPUS], candidates.pp)
        shape = relaxed_shape(degree, stride, sizes, np.where(apart[..., None], 0, cut), least, host, buildings, ways)
        return alone_shape(shape, ~apart & (candidates.pp > 1), candidates.pp) if self.many_buildings else shape

    def _links_of(self, candidates: Candidates) -> Links:
        return self.links
