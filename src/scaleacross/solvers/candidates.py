"""Memory tests and lower bounds on step time for arrays of candidates on one pool.

The joint search, the baselines and the report on infeasible jobs use ``Bounder``. It has two bounds per candidate. Both
evaluate the cost model on group shapes that no placement can beat (``groups.relaxed_shape``):

* coarse: every axis lies as well as if it were the innermost one
* tight:  the best axis order, every axis at the stride that this order gives it (all orders are enumerated)

The tight bound ignores only what borders between unequal buildings add. ``place_parallelism`` adds that exactly.

A million candidates share few collectives (``distinct``), so every figure is computed once per distinct set of columns:
calls by (tp, cp, ep, pp, dp, micro-batch), computation and exposed terms by *partial candidate* (all but SPLIT), and model
states by all columns but SHAPE.
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
from scaleacross.cost_models.candidates import Bools, Candidates, Floats, Ints, expert_axis, keys_axis, stride_of
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
from scaleacross.cost_models.window_traffic import GRADIENT_AXES, unshared_links_s, window_s
from scaleacross.cost_models.work import NO_WORK, LayerWaits, Work, state_work, work_of
from scaleacross.solvers.arcs import Arc, Kinds, added_s, axes_of_several, by_orders, kinds_of, sets_before
from scaleacross.solvers.bounded import Bounded
from scaleacross.solvers.pools import AcceleratorPool
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import GRID_AXES, SHARD_LEVELS, GridAxis
from scaleacross.workloads.layer_profile import ModelProfile

ORDER_BLOCK: Final = 16_384
"""Number of (candidate, axis order) pairs that are bounded together."""


@dataclass(frozen=True)
class Bounder:
    """Bounds and memory tests on one pool, with its best ``links`` and the largest child of every level (``sizes``).

    ``network`` is how communicators run their collectives.
    """

    pool: AcceleratorPool
    job: Job
    profile: ModelProfile
    links: Links
    sizes: Floats
    network: Literal["best", "library"] | Best

    @classmethod
    def on(
        cls, pool: AcceleratorPool, job: Job, profile: ModelProfile, network: Literal["library"] | None = None
    ) -> Bounder:
        """Return the bounder with the pool's best links and ``network``, by default the best that the job allows."""
        asked = network or best_network(job, pool.accelerators)
        return cls(pool, job, profile, pool.optimistic_links(), pool.largest_children(), asked)

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """The accelerator types of the pool."""
        return self.pool.accelerators

    @cached_property
    def types(self) -> tuple[str, ...]:
        """Names of the accelerator types."""
        return tuple(accelerator.name for accelerator in self.accelerators)

    @cached_property
    def waiting_links(self) -> Mapping[str, Links]:
        """Best links of groups that the pipeline waits for, by accelerator type."""
        return {name: self.pool.optimistic_links_on(name) for name in self.types}

    @property
    def launch_s(self) -> float:
        """Seconds to start a collective, on the slowest type."""
        return max(accelerator.collective_start_s for accelerator in self.accelerators)

    @property
    def capacity_bytes(self) -> float:
        """Usable bytes per accelerator, with the job's headroom left free."""
        return self.room_bytes(self.job.memory_headroom_fraction)

    def room_bytes(self, headroom_fraction: float) -> float:
        """Return the usable bytes per accelerator of the smallest type, with this share of memory left free."""
        return min(accelerator.room_bytes(headroom_fraction) for accelerator in self.accelerators)

    @property
    def many_buildings(self) -> bool:
        """Whether the pool has several buildings, so that groups can cross between them."""
        return len(self.pool.buildings) > 1

    def early(self, volumes: Volumes) -> Early | None:
        """Return ``Early`` of candidates whose gradients may cross buildings; None where there can be none."""
        return early_gradients(volumes) if self.many_buildings else None

    def volumes(self, candidates: Candidates, work: Work) -> Volumes:
        """Return the sizes of what these candidates communicate."""
        return Volumes(self.job, self.profile, candidates, work, self.launch_s)

    def needed_bytes(self, candidates: Candidates) -> Floats:
        """Return bytes on the fullest pipeline rank, without the reserve, (n,); too many where host memory is short."""
        needed, pool = np.empty(len(candidates)), (self.accelerators, self.room_bytes(0.0))
        for classes, rows in pipeline_groups(self.profile, candidates):
            needed[rows] = fullest_bytes(self.profile, self.job, candidates.take(rows), classes, *pool)
        return needed

    def partial_needed_bytes(self, partials: Candidates) -> Floats:
        """Return the least bytes of any candidate of each partial candidate, (n,): the minimum over the job's shard levels."""
        levels = [SHARD_LEVELS.index(level) for level in self.job.shard]
        every = replace(
            partials.take(np.tile(np.arange(len(partials)), len(levels))), shard=np.repeat(levels, len(partials))
        )
        return np.min(self.needed_bytes(every).reshape(len(levels), len(partials)), axis=0)

    def partial_floor_s(self, partials: Candidates) -> Floats:
        """Return a lower bound on computation from the layers alone, s, (n,).

        The busiest rank computes at least the mean of all ranks, m times. With one chunk and whole backward passes,
        step ≥ m·a_r + Σ_{s<r} a_s for every rank r, a their passes. So the first r ranks hold
        S_r ≤ step·(1 − (1 − 1/m)^r), and all ranks together hold the layers of the model. This is true for unequal
        layers and batches, as each layer counts on its fastest type. With whole backward passes in several
        chunks, one micro-batch passes all layers.
        """
        kinds = distinct(*(getattr(partials, name) for name in LAYER_COLUMNS), partials.recompute)
        some = partials.take(kinds.first)
        some = replace(some, dp_shard=np.ones_like(some.dp_shard))  # no layer is faster on more accelerators
        whole = (self._layer_counts @ self._passes_s(some).min(axis=0))[kinds.code]
        m, pp = partials.num_micro_batches, partials.pp
        drains = among(partials.schedule, WHOLE)
        fills, once = drains & (partials.num_chunks == 1), np.where(drains, 1.0, 0.0)
        floor: Floats = whole * np.where(fills, 1.0 / (1.0 - (1.0 - 1.0 / m) ** pp), np.maximum(m / pp, once))
        return floor

    def _passes_s(self, candidates: Candidates) -> Floats:
        """Return forward and backward of a micro-batch per layer type and end, s, (accelerator types, layers, n)."""
        times = times_by_type(self.profile, self.job, self.accelerators, candidates)
        return np.stack([layer_pass_s(one, candidates) for one in times])

    @property
    def _layer_counts(self) -> Ints:
        return np.array([*block_counts(self.profile), 1, 1])

    def partial_free_s(self, partials: Candidates) -> Floats:
        """Return computation with warm-up and cool-down, s, (n,), which no placement and no split of dp changes."""
        return computation_s(partials, self._work_of(partials))

    def partial_bound_s(self, partials: Candidates) -> Floats:
        """Return a lower bound on all candidates of each partial candidate, s, (n,): computation, bubble, least exposed terms."""
        work = self._work_of(partials)
        waits = self._waits(self.volumes(partials, work))
        return computation_s(partials, work) + longest_s(waits.waited_s, waits.alone_s)

    def partial_estimate_s(self, partials: Candidates, bound_s: Floats) -> Floats:
        """Return the estimated step time that orders the partial candidates, s, (n,). On one accelerator type it is the bound."""
        return bound_s

    def work(self, candidates: Candidates, kinds: Kinds | None = None) -> Work:
        """Return ``work_of`` on the pool, computed once per distinct candidate (``kinds``, if known)."""
        of_partial, state = kinds or kinds_of(candidates)
        own = state_work(self.profile, self.job, self.accelerators, candidates.take(state.first))
        shared = self._work_of(candidates.take(of_partial.first)).take(of_partial.code)
        return replace(shared, **{name: column[state.code] for name, column in own.items()})

    def coarse(self, candidates: Candidates) -> Bounded:
        """Return the candidates with their work, coarse bound and estimate."""
        of_partial, state = kinds = kinds_of(candidates)
        work = self.work(candidates, kinds)
        volumes = self.volumes(candidates, work)
        free, partials, states = placement_free_s(volumes), volumes.take(of_partial.first), volumes.take(state.first)
        waits = self._waits(partials)
        axes = axes_of_several(states.candidates, GRADIENT_AXES)
        traffic, alone = zip(*(self._carried_s(axis, states, coarse=True) for axis in axes), strict=True)
        summed = np.sum(traffic, axis=0)[:, state.code]
        early = self.early(volumes)
        unshared = () if early is None else (sum(part for part in alone if part is not None)[:, state.code],)
        serial, first, longest = (
            each[of_partial.code] for each in (waits.waited_s, waits.early_s, np.asarray(waits.alone_s))
        )
        terms = waiting(volumes, Terms({"": serial}, (summed,), longest, early_s=first, unshared_s=unshared))
        parts, over, shards = [terms], windows(candidates, work), LeastPasses.of(volumes)
        # only the bound uses ``early``: in the estimate all ranks' gradients share the links between buildings
        together = added_s(parts, over, None, shards)
        added = together if early is None else added_s(parts, over, early, shards)
        return Bounded(candidates, work, free, free + added, free + together)

    def tight(self, bounded: Bounded) -> Bounded:
        """Return the same candidates with the tight bound and its estimate."""
        best = np.empty((2, len(bounded.bound_s)))
        for rows, orders in by_orders(bounded.candidates):
            some = bounded.candidates.take(rows), bounded.work.take(rows)
            best[:, rows] = self.order_figures_s(*some, orders).min(axis=1)
        bound, estimate = bounded.free_s + best
        return replace(bounded, bound_s=bound, estimate_s=estimate)

    def order_bounds_s(self, candidates: Candidates, work: Work, orders: Sequence[Sequence[GridAxis]]) -> Floats:
        """Return lower bounds on exposed communication, s, one for each order of the same axes, (orders, n)."""
        return self.order_figures_s(candidates, work, orders)[0]

    def order_figures_s(self, candidates: Candidates, work: Work, orders: Sequence[Sequence[GridAxis]]) -> Floats:
        """Return ``order_bounds_s`` and the communication in ``Bounded.estimate_s``, s, (2, orders, n)."""
        volumes, kinds, over = self.volumes(candidates, work), kinds_of(candidates), windows(candidates, work)
        early, shards = self.early(volumes), LeastPasses.of(volumes)
        parts, used = [], []
        for axis in (axis for axis in orders[0] if (getattr(candidates, axis) > 1).any()):
            sets, of_order = sets_before(orders, axis)
            stride = np.stack([stride_of(candidates, faster) for faster in sets])
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
        """Return an axis at one stride per candidate, (n,), or at several, (k, n)."""

        def met(kind: Distinct) -> tuple[Volumes, Ints, Ints]:
            """Return one candidate and its stride per distinct (kind, stride), and every candidate's index there."""
            pairs = distinct(np.broadcast_to(kind.code, stride.shape).ravel(), stride.ravel())
            # with several strides rows run stride by stride, so the remainder is the candidate
            some = volumes.take(pairs.first % len(volumes.candidates))
            return some, stride.ravel()[pairs.first], pairs.code.reshape(stride.shape)

        some, strides, waits = met(kinds.partial)
        calls = self._calls(axis, some, strides, coarse=False)
        carrying, strides, carries = met(kinds.state)
        crosses = self._crosses(axis, volumes.candidates, stride)
        window, alone = self._carried_s(axis, carrying, strides)
        return Arc(axis, some, calls, waits, window[:, carries], crosses, None if alone is None else alone[:, carries])

    def _crosses(self, axis: GridAxis, candidates: Candidates, stride: Ints) -> Bools | None:
        """Return whether gradients over an axis cross buildings, (n,) or (k, n); None: the allocation decides."""
        return None

    def _work_of(self, candidates: Candidates) -> Work:
        return work_of(self.profile, self.job, self.accelerators, candidates, self._layer_waits(candidates))

    def _layer_waits(self, candidates: Candidates) -> LayerWaits:
        """Return the least exposed seconds of a layer's collectives: ranks with more layers count as longer."""
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
        """Return a lower bound on what all axes add to the pipeline, s, each axis at its best.

        ``alone_s`` is the longest of the other paths of ``least_waits``.
        """
        stride = np.ones(len(volumes.candidates), dtype=np.int64)
        axes = axes_of_several(volumes.candidates, GRID_AXES)
        every = [waits_of(volumes, self._calls(axis, volumes, stride, coarse=True)) for axis in axes]
        waited, early, passed = (
            sum(parts, start=np.zeros(len(stride))) for parts in zip(*(w[:3] for w in every), strict=True)
        )
        others = [one.alone_s for one in every if one.alone_s is not None]
        return Waits(waited, early, passed, np.max([passed, *others], axis=0))

    def _calls(self, axis: GridAxis, volumes: Volumes, stride: Ints, coarse: bool) -> Calls:
        """Return a lower bound on one call of each collective that the step waits for, s.

        With several accelerator types it is the call on the type that computes slowest, which ``work`` has on all
        ranks.
        """
        first, *others = every = self._calls_by_type(axis, volumes, stride, coarse)
        if not others:
            return first
        kinds = distinct(*(getattr(volumes.candidates, name) for name in (*LAYER_COLUMNS, "world_size")))
        passes = self._layer_counts @ self._passes_s(volumes.candidates.take(kinds.first))
        return chosen_calls(every, passes.argmax(axis=0)[kinds.code])

    def _calls_by_type(self, axis: GridAxis, volumes: Volumes, stride: Ints, coarse: bool) -> list[Calls]:
        """Return ``_calls`` on every accelerator type; a single entry where the types do not differ."""
        candidates = volumes.candidates
        kinds = distinct(*(getattr(candidates, name) for name in (*LAYER_COLUMNS, "pp", "dp")), stride)
        some, strides = volumes.take(kinds.first), stride[kinds.first]
        of = partial(self._group, some.candidates, coarse=coarse, waits=axis in WAITED)
        group = of(
            *(keys_axis(some.candidates, strides) if axis == "cp" else (getattr(some.candidates, axis), strides))
        )
        experts = of(*expert_axis(some.candidates, strides)) if axis == "dp_shard" else None
        heads = of(some.candidates.cp_inner, strides) if axis == "cp" and (some.candidates.cp_inner > 1).any() else None
        if len(self.types) == 1 or axis not in WAITED:
            return [axis_calls(axis, some, group, experts, heads).take(kinds.code)]
        also = ([one and self._on(name, one) for one in (experts, heads)] for name in self.types)
        each = zip(self.types, also, strict=True)
        return [axis_calls(axis, some, self._on(name, group), *others).take(kinds.code) for name, others in each]

    def _on(self, accelerator: str, group: Group) -> Group:
        """Return groups that the pipeline waits for with the links of an accelerator type."""
        return replace(group, links=self.waiting_links[accelerator])

    def _carried_s(
        self, axis: GridAxis, volumes: Volumes, stride: Ints | None = None, coarse: bool = False
    ) -> tuple[Floats, Floats | None]:
        """Return lower bounds on an axis' window traffic, (TRAFFIC_ROWS, n), and on its gradients, (2, n), s.

        The second figure assumes that a group shares inter-building links with no other; None where there is no such
        link.
        """
        if axis not in GRADIENT_AXES:
            return np.zeros((TRAFFIC_ROWS, len(volumes.candidates))), None
        groups = self._carrying(axis, volumes, stride, coarse)
        unshared = unshared_links_s(axis, volumes, *groups) if self.many_buildings else ()
        return window_s(axis, volumes, *groups), sum(unshared[1:], start=unshared[0]) if unshared else None

    def _carrying(
        self, axis: GridAxis, volumes: Volumes, stride: Ints | None, coarse: bool
    ) -> tuple[Group, Group | None]:
        """Return the groups that carry gradients and parameters, and those of experts (dp_shard only)."""
        candidates = volumes.candidates
        stride = np.ones(len(candidates), dtype=np.int64) if stride is None else stride
        kinds = distinct(getattr(candidates, axis), candidates.ep, stride, candidates.world_size)
        some = candidates.take(kinds.first)
        degree, strides = getattr(some, axis), stride[kinds.first]
        group = self._group(some, degree, strides, coarse, kinds.code)
        if axis != "dp_shard":
            return group, None
        return group, self._group(some, some.dp_shard // some.ep, strides * some.ep, coarse, kinds.code)

    def _group(
        self,
        candidates: Candidates,
        degree: Ints,
        stride: Ints,
        coarse: bool,
        rows: Ints | None = None,
        waits: bool = False,
    ) -> Group:
        """Return groups of ``degree`` at ``stride`` in the shapes of ``_lying``; ``rows``: each candidate's shape."""
        shape = self._lying(candidates, degree, stride, coarse, waits)
        return Group(shape, self._links_of(candidates), self.launch_s, rows, self.network)

    def _lying(self, candidates: Candidates, degree: Ints, stride: Ints, coarse: bool, waits: bool) -> GroupShape:
        """Return group shapes that no placement can beat.

        Args:
            coarse: whether the stride may also be larger.
            waits: whether to take the pipeline rank that waits least. Its groups need not cross buildings because
                others do, nor share inter-building links with them.
        """
        pool, world = self.pool, candidates.world_size
        # no child holds more accelerators than the candidate uses
        sizes = np.append(np.minimum(self.sizes[:-1], world[:, None]), world[:, None], axis=1)
        cut, least = pool.must_cross(degree, stride, world), pool.fullest_children(world)
        host, buildings = 1 if coarse else pool.common_host, len(pool.buildings)
        ways = None if coarse else pool.border_ways(stride, world)
        if not waits:
            return relaxed_shape(degree, stride, sizes, cut, least, host, buildings, ways)
        known = told_apart(degree * stride, self.sizes[CAMPUS], candidates.pp)
        shape = relaxed_shape(degree, stride, sizes, np.where(known[..., None], 0, cut), least, host, buildings, ways)
        return alone_shape(shape, ~known & (candidates.pp > 1), candidates.pp) if self.many_buildings else shape

    def _links_of(self, candidates: Candidates) -> Links:
        return self.links
